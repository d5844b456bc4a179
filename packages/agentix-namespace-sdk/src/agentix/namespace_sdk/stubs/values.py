"""From JSON to expressions of Python: the defaults of parameters and fields."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from agentix.namespace_sdk.stubs.text import literal
from agentix.namespace_sdk.stubs.types import Schema, Types
from agentix.schema import ENUM_NAMES
from agentix.stub import adapter_of

__all__ = ["UNKNOWN", "expression"]

UNKNOWN = "typing.cast(typing.Any, None)"
"""Stands for a default that only the namespace knows."""

CALLS = {
    "datetime.date": "datetime.date.fromisoformat({})",
    "datetime.datetime": "datetime.datetime.fromisoformat({})",
    "datetime.time": "datetime.time.fromisoformat({})",
    "decimal.Decimal": "decimal.Decimal({})",
    "ipaddress.IPv4Address": "ipaddress.IPv4Address({})",
    "ipaddress.IPv6Address": "ipaddress.IPv6Address({})",
    "pathlib.Path": "pathlib.Path({})",
    "uuid.UUID": "uuid.UUID({})",
}
"""How a text of JSON becomes a value of a type."""


def expression(
    schema: Schema, value: Any, types: Types, definitions: Mapping[str, Schema]
) -> str | None:
    """Gives the expression of a value; `None` where its type has none that is sure to be right.

    Args:
        schema: The schema of the value.
        value: The value as JSON.
        types: The annotations of the namespace.
        definitions: The `$defs` of the namespace.
    """
    annotation = types.annotation(schema)
    if annotation == "datetime.timedelta":
        return f"datetime.timedelta(seconds={_seconds(value)})"
    if annotation in CALLS and isinstance(value, str):
        return CALLS[annotation].format(literal(value))
    match schema, value:
        case {"$ref": str(reference)}, _:
            return _member(definitions.get(reference.rpartition("/")[2], {}), value, annotation)
        case _, None | bool() | int():
            return repr(value)
        case _, float():
            return repr(value) if value == value and abs(value) != float("inf") else None
        case _, str() if annotation in ("str", "typing.Any") or "Literal" in annotation:
            return literal(value)
        case _, list():
            items = schema.get("prefixItems") or [schema.get("items") or {}] * len(value)
            inner = [
                expression(*pair, types, definitions) for pair in zip(items, value, strict=False)
            ]
            return None if None in inner else _collection(annotation, [*filter(None, inner)])
        case _, {} if not value:
            return "{}"
        case _:
            return None


def _seconds(value: Any) -> str:
    """Reads a duration, which ISO 8601 writes as a text."""
    seconds = adapter_of(timedelta).validate_python((value,))[0].total_seconds()
    return f"{seconds:g}"


def _member(definition: Schema, value: Any, name: str) -> str | None:
    """Gives the member of an enumeration."""
    names = definition.get(ENUM_NAMES, [])
    values = definition.get("enum", [])
    return f"{name}.{names[values.index(value)]}" if names and value in values else None


def _collection(annotation: str, items: list[str]) -> str | None:
    inner = ", ".join(items)
    match annotation.partition("[")[0]:
        case "list":
            return f"[{inner}]"
        case "set":
            return f"{{{inner}}}" if items else "set()"
        case "tuple":
            return f"({inner},)" if items else "()"
        case _:
            return None
