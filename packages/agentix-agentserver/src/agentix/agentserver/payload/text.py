"""Texts about a payload class: an example of it, and what a model is told of it."""

from collections.abc import Iterator
from itertools import cycle
from typing import Any

from agentix.agentserver.payload.types import (
    NAMES,
    BooleanType,
    BytesType,
    DateTimeType,
    DateType,
    DecimalType,
    EnumType,
    Field,
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
    spell,
)

__all__ = [
    "example",
    "prompt",
]


def prompt(name: str, description: str, record: RecordType, example: str) -> str:
    """Write the part of a prompt that presents one listener.

    Args:
        name: The registered name.
        description: What the listener does.
        record: What its payload is made of.
        example: A valid payload.
    """
    lines = [f"Tool: {name}", f"Description: {description}"]
    parameters = [*parameter_lines(record, "")]
    lines += ["Parameters:", *parameters] if parameters else ["Parameters: none"]
    lines += ["Example input:", example, "Returns: raw XML"]
    return "\n".join(lines) + "\n"


def parameter_lines(record: RecordType, prefix: str) -> Iterator[str]:
    """Write a line for each field, and below a field of records one for each of theirs."""
    for field in record.fields:
        yield f"- {prefix}{field.name}({type_name(field.type)}){remark(field)}"
        match records_in(field.type):
            case RecordType() as inner, path:
                yield from parameter_lines(inner, f"{prefix}{field.name}{path}.")


def records_in(kind: FieldType, path: str = "") -> tuple[RecordType, str] | None:
    """Find the record that a type is made of, and the way to it through lists and dicts."""
    match kind:
        case RecordType():
            return kind, path
        case OptionalType(inner):
            return records_in(inner, path)
        case ListType(item):
            return records_in(item, f"{path}.item")
        case MapType(value):
            return records_in(value, f"{path}.entry.value")
        case _:
            return None


def type_name(kind: FieldType) -> str:
    """Return the name of a type, as Python writes it."""
    match kind:
        case OptionalType(inner):
            return type_name(inner)
        case RecordType(name):
            return name
        case ListType(item):
            return f"list[{type_name(item)}]"
        case MapType(value):
            return f"dict[str, {type_name(value)}]"
        case LiteralType(values):
            return " | ".join(map(spell, values))
        case EnumType(values):
            return " | ".join(values)
        case _:
            return NAMES[type(kind)]


def remark(field: Field) -> str:
    """Return what follows a field's name: its documentation, and what its absence means."""
    doc = f" - {field.doc}" if field.doc else ""
    if field.required:
        return doc
    return f"{doc} (optional{'' if field.default is None else f', default {shown(field.default)}'})"


def shown(value: str | float) -> str:
    """Return a default as a prompt shows it."""
    return repr(value) if isinstance(value, str) else spell(value)  # type: ignore[arg-type]


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
    """Make an example with a value in every field; integers are 40 and 2 in turn."""
    return record_example(record, cycle((40, 2)))


def record_example(record: RecordType, integers: Iterator[int]) -> Plain:
    """Make an example of a record."""
    return {field.name: value_example(field.type, integers) for field in record.fields}


def value_example(kind: FieldType, integers: Iterator[int]) -> Any:
    """Make an example of a type."""
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
