"""Examples of payloads: plain values that fit the description of a class."""

from collections.abc import Iterator
from itertools import cycle
from typing import Any

from agentix.agentserver.payload.kinds import (
    BooleanType,
    BytesType,
    DateTimeType,
    DateType,
    DecimalType,
    EnumType,
    FieldType,
    FloatType,
    IntegerType,
    ListType,
    LiteralType,
    MapType,
    OptionalType,
    Plain,
    RecordType,
    TextType,
)

__all__ = ["example"]

VALUES: dict[type, Any] = {
    TextType: "text",
    FloatType: 1.5,
    BooleanType: True,
    DecimalType: "9.99",
    DateType: "2026-01-31",
    DateTimeType: "2026-01-31T12:00:00+00:00",
    BytesType: b"bytes",
}


def example(record: RecordType) -> Plain:
    """Makes an example with a value in every field; integers are 40 and 2 in turn."""
    return record_example(record, cycle((40, 2)))


def record_example(record: RecordType, integers: Iterator[int]) -> Plain:
    """Makes an example of a record."""
    return {field.name: value_example(field.type, integers) for field in record.fields}


def value_example(kind: FieldType, integers: Iterator[int]) -> Any:
    """Makes an example of a type."""
    match kind:
        case IntegerType():
            return next(integers)
        case OptionalType(inner):
            return value_example(inner, integers)
        case RecordType():
            return record_example(kind, integers)
        case ListType(item):
            return [value_example(item, integers)]
        case MapType(value):
            return {"key": value_example(value, integers)}
        case LiteralType(values) | EnumType(values):
            return values[0]
        case _:
            return VALUES[type(kind)]
