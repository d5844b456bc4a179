"""JSON types: the types of a namespace's functions, from JSON Schema to payload fields and back.

The pump never imports a namespace. What a runtime says of a function in JSON Schema is all that it
knows, and it is checked like anything else that comes from outside.
"""

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agentix.agentserver.errors import PayloadError, RegistrationError
from agentix.agentserver.names import is_ncname
from agentix.agentserver.payload.kinds import (
    BooleanType,
    BytesType,
    DateTimeType,
    DateType,
    DecimalType,
    Field,
    FieldType,
    FloatType,
    IntegerType,
    ListType,
    LiteralType,
    MapType,
    OptionalType,
    RecordType,
    TextType,
    from_data,
    to_data,
)

__all__ = ["Schemas", "from_json", "to_json"]

DEEPEST = 16
REFERENCE = "#/$defs/"
FORMATS: Mapping[str, FieldType] = {
    "base64url": BytesType(),
    "date": DateType(),
    "date-time": DateTimeType(),
    "decimal": DecimalType(),
}
PLAIN: Mapping[str, FieldType] = {
    "integer": IntegerType(),
    "number": FloatType(),
    "boolean": BooleanType(),
}
NULL = {"type": "null"}


@dataclass(frozen=True)
class Schemas:
    """The definitions that the schemas of one namespace share."""

    definitions: Mapping[str, Any]

    def record(self, name: str, parameters: list[Mapping[str, Any]]) -> RecordType:
        """Makes the payload of a function: a field for each parameter.

        Raises:
            RegistrationError: A parameter has no XML form, or collects several arguments.
        """
        fields = []
        for each in parameters:
            if str(each.get("kind", "")).startswith("var_"):
                raise RegistrationError(f"{name}: the parameter {each.get('name')!r} is open-ended")
            required = each.get("required") is True
            fields.append(self._field(str(each.get("name")), each.get("schema"), required, 0))
        return _checked(RecordType(name, tuple(fields)))

    def result(self, schema: object) -> tuple[RecordType, bool]:
        """Makes the payload of a result, and tells whether that stands for a value of its own.

        Raises:
            RegistrationError: The result has no XML form.
        """
        if schema == NULL:
            return RecordType("Result", ()), False
        kind = self.type(schema)
        if isinstance(kind, RecordType):
            return _checked(kind), False
        required = not isinstance(kind, OptionalType)
        return _checked(RecordType("Result", (Field("value", kind, "", required),))), True

    def type(self, schema: object, depth: int = 0) -> FieldType:
        """Makes a type of its schema.

        Raises:
            RegistrationError: It has no XML form.
        """
        if depth > DEEPEST or not isinstance(schema, Mapping):
            raise RegistrationError(f"no XML form for the schema {str(schema)[:80]}")
        match schema:
            case {"$ref": str(reference)} if reference.startswith(REFERENCE):
                found = self.definitions.get(reference.removeprefix(REFERENCE))
                return self.type(found, depth + 1)
            case {"anyOf": [one, other]} if NULL in (one, other):
                return OptionalType(self.type(other if one == NULL else one, depth + 1))
            case {"enum": list(values)}:
                return LiteralType(tuple(values))
            case {"const": value}:
                return LiteralType((value,))
            case {"type": "string", "format": str(form)} if form in FORMATS:
                return FORMATS[form]
            case {"type": "string"} if "format" not in schema or schema["format"] == "path":
                return TextType()
            case {"type": str(name)} if name in PLAIN:
                return PLAIN[name]
            case {"type": "array", "items": items}:
                return ListType(self.type(items, depth + 1))
            case {"type": "object", "properties": dict(properties)}:
                return self._object(schema, properties, depth + 1)
            case {"type": "object", "additionalProperties": dict(values)}:
                return MapType(self.type(values, depth + 1))
        raise RegistrationError(f"no XML form for the schema {str(schema)[:80]}")

    def _object(
        self, schema: Mapping[str, Any], properties: Mapping[str, object], depth: int
    ) -> RecordType:
        title = str(schema.get("title", "Record"))
        required = schema.get("required", ())
        fields = [
            self._field(name, each, name in required, depth) for name, each in properties.items()
        ]
        return RecordType(title if is_ncname(title) else "Record", tuple(fields))

    def _field(self, name: str, schema: object, required: bool, depth: int) -> Field:
        kind = self.type(schema, depth)
        about = schema if isinstance(schema, Mapping) else {}
        default = about.get("default")
        shown = default if isinstance(default, str | int | float) else None
        doc = str(about.get("description", ""))
        return Field(name, kind, doc, required and not isinstance(kind, OptionalType), shown)


def _checked(record: RecordType) -> RecordType:
    """Holds a record to the rules that descriptions of workers are held to."""
    return from_data(to_data(record))


def from_json(kind: FieldType, value: Any) -> Any:
    """Turns a JSON value into a plain one.

    Raises:
        PayloadError: It is not of the type.
    """
    try:
        return _walk(kind, value, _decoded)
    except (TypeError, AttributeError, binascii.Error, ValueError, KeyError) as error:
        raise PayloadError(f"a value is not of its declared type: {error}") from error


def to_json(kind: FieldType, value: Any) -> Any:
    """Turns a plain value into a JSON one."""
    return _walk(kind, value, lambda data: base64.urlsafe_b64encode(data).decode())


def _decoded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def _walk(kind: FieldType, value: Any, of_bytes: Callable[[Any], Any]) -> Any:
    """Changes the bytes in a value, and leaves out what is absent."""
    match kind:
        case BytesType():
            return of_bytes(value)
        case ListType(item):
            return [_walk(item, each, of_bytes) for each in value]
        case MapType(inner):
            return {str(key): _walk(inner, each, of_bytes) for key, each in value.items()}
        case OptionalType(inner):
            return None if value is None else _walk(inner, value, of_bytes)
        case RecordType(_, fields):
            return dict(_members(fields, value, of_bytes))
        case FloatType():
            return float(value)
    return value


def _members(
    fields: tuple[Field, ...], value: Any, of_bytes: Callable[[Any], Any]
) -> Iterator[tuple[str, Any]]:
    for field in fields:
        if field.name in value:
            yield field.name, _walk(field.type, value[field.name], of_bytes)
