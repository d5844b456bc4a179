"""JSON Schemas and JSON values as Python: annotations, default values, docstrings."""

import json
import math
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from agentix.schema import ENUM_NAMES
from agentix.stub import adapter_of

__all__ = ["UNKNOWN", "Schema", "SchemaTranslator", "docstring", "literal"]

Schema = Mapping[str, Any]
"""A JSON Schema of the dialect that runtimes write."""

FORMATS = {
    "base64url": "bytes",
    "date": "datetime.date",
    "date-time": "datetime.datetime",
    "decimal": "decimal.Decimal",
    "directory-path": "pathlib.Path",
    "duration": "datetime.timedelta",
    "file-path": "pathlib.Path",
    "ipv4": "ipaddress.IPv4Address",
    "ipv6": "ipaddress.IPv6Address",
    "path": "pathlib.Path",
    "time": "datetime.time",
    "uuid": "uuid.UUID",
    "uuid1": "uuid.UUID",
    "uuid3": "uuid.UUID",
    "uuid4": "uuid.UUID",
    "uuid5": "uuid.UUID",
}
"""What a text of a format is in Python; of any other it stays a text."""

PLAIN = {
    "boolean": "bool",
    "integer": "int",
    "null": "None",
    "number": "float",
    "string": "str",
}

REFERENCE = re.compile(r"#/\$defs/(?P<key>.+)")

HASHABLE = {"bool", "bytes", "float", "int", "str", *FORMATS.values()}
"""What sets can hold."""

UNKNOWN = "typing.cast(typing.Any, None)"
"""The expression of a default that only the namespace knows."""

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


class SchemaTranslator:
    """JSON Schemas of one namespace, and values of them, as Python that survives the wire as it is.

    Args:
        definitions: The `$defs` of the namespace.
        names: The name of the class for each of their keys.
    """

    def __init__(self, definitions: Mapping[str, Schema], names: Mapping[str, str]) -> None:
        self.definitions = definitions
        self.names = names

    def annotation(self, schema: Schema) -> str:
        """Return the annotation of a schema; `typing.Any` for what Python has no word for."""
        match schema:
            case {"$ref": str(reference)}:
                return self.class_of(reference)
            case {"const": value}:
                return f"typing.Literal[{literal(value)}]"
            case {"enum": [*values]}:
                return f"typing.Literal[{', '.join(map(literal, values))}]"
            case {"anyOf": [*choices]} | {"oneOf": [*choices]}:
                return self._union(choices)
            case {"allOf": [only]}:
                return self.annotation(only)
            case {"type": "string"}:
                return FORMATS.get(schema.get("format", ""), "str")
            case {"type": "array"}:
                return self._array(schema)
            case {"type": "object"}:
                return f"dict[str, {self._value(schema)}]"
            case {"type": str(name)} if name in PLAIN:
                return PLAIN[name]
            case _:
                return "typing.Any"

    def class_of(self, reference: str) -> str:
        """Return the name of the class that a reference means."""
        match = REFERENCE.fullmatch(reference)
        return self.names.get(match["key"], "typing.Any") if match else "typing.Any"

    def expression(self, schema: Schema, value: Any) -> str | None:
        """Return the expression of a value; `None` where its type has none that is surely right.

        Args:
            schema: The schema of the value.
            value: The value as JSON.
        """
        annotation = self.annotation(schema)
        if annotation == "datetime.timedelta":
            return f"datetime.timedelta(seconds={_seconds(value)})"
        if annotation in CALLS and isinstance(value, str):
            return CALLS[annotation].format(literal(value))
        match schema, value:
            case {"$ref": str(reference)}, _:
                definition = self.definitions.get(reference.rpartition("/")[2], {})
                return _member(definition, value, annotation)
            case _, None | bool() | int():
                return repr(value)
            case _, float():
                return repr(value) if math.isfinite(value) else None
            case _, str() if annotation in ("str", "typing.Any") or "Literal" in annotation:
                return literal(value)
            case _, list():
                items = schema.get("prefixItems") or [schema.get("items") or {}] * len(value)
                inner = [*map(self.expression, items, value)]
                return None if None in inner else _collection(annotation, [*filter(None, inner)])
            case _, {} if not value:
                return "{}"
            case _:
                return None

    def _union(self, choices: list[Schema]) -> str:
        annotations = dict.fromkeys(map(self.annotation, choices))
        return "typing.Any" if "typing.Any" in annotations else " | ".join(annotations)

    def _array(self, schema: Schema) -> str:
        positions = schema.get("prefixItems")
        if positions is not None and schema.get("maxItems") == len(positions):
            inner = ", ".join(map(self.annotation, positions))
            return f"tuple[{inner or '()'}]"
        item = self.annotation(schema.get("items") or {})
        if schema.get("maxItems") == 0:
            return "tuple[()]"
        if schema.get("uniqueItems") and item in HASHABLE:
            return f"set[{item}]"
        return f"list[{item}]"

    def _value(self, schema: Schema) -> str:
        values = schema.get("additionalProperties")
        return self.annotation(values) if isinstance(values, Mapping) else "typing.Any"


def _seconds(value: Any) -> str:
    """Return the seconds of a duration, which JSON has as a text (ISO 8601) or a number."""
    seconds = adapter_of(timedelta).validate_python((value,))[0].total_seconds()
    return f"{seconds:g}"


def _member(definition: Schema, value: Any, name: str) -> str | None:
    """Return the member of an enumeration."""
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


def literal(value: object) -> str:
    """Return the literal of a plain value: a text in double quotes, as formatters have it."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def docstring(text: str, indent: str) -> str:
    """Return a docstring."""
    escaped = text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    if escaped.endswith('"'):
        escaped = f'{escaped[:-1]}\\"'
    lines = escaped.splitlines() or [""]
    if len(lines) == 1:
        return f'{indent}"""{lines[0]}"""'
    more = [f"{indent}{line}" if line else "" for line in lines[1:]]
    return "\n".join([f'{indent}"""{lines[0]}', *more, f'{indent}"""'])
