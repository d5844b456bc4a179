"""From JSON Schemas to annotations of Python, for types that survive the wire as they are."""

import re
from collections.abc import Mapping
from typing import Any

from agentix.namespace_sdk.stubs.text import literal

__all__ = ["Schema", "Types"]

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


class Types:
    """Gives the annotation of each schema of one namespace.

    Args:
        names: The name of the class for each key of `$defs`.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def annotation(self, schema: Schema) -> str:
        """Gives the annotation of a schema; `typing.Any` for what Python has no word for."""
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
                return f"dict[str, {self._values(schema)}]"
            case {"type": str(name)} if name in PLAIN:
                return PLAIN[name]
            case _:
                return "typing.Any"

    def class_of(self, reference: str) -> str:
        """Gives the class that a reference means."""
        match = REFERENCE.fullmatch(reference)
        return self._names.get(match["key"], "typing.Any") if match else "typing.Any"

    def _union(self, choices: list[Schema]) -> str:
        told = dict.fromkeys(self.annotation(choice) for choice in choices)
        if "typing.Any" in told:
            return "typing.Any"
        return " | ".join(told)

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

    def _values(self, schema: Schema) -> str:
        values = schema.get("additionalProperties")
        return self.annotation(values) if isinstance(values, Mapping) else "typing.Any"
