"""Prompts: what a language model is told about a listener that it may call."""

from collections.abc import Iterator

from agentix.agentserver.payload.kinds import (
    NAMES,
    EnumType,
    Field,
    FieldType,
    ListType,
    LiteralType,
    MapType,
    OptionalType,
    RecordType,
    spell,
)

__all__ = ["prompt"]


def prompt(name: str, description: str, record: RecordType, example: str) -> str:
    """Writes the part of a prompt that presents one listener.

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
    """Writes a line for each field, and below a field of records one for each of theirs."""
    for field in record.fields:
        yield f"- {prefix}{field.name}({type_name(field.type)}){remark(field)}"
        match records_in(field.type):
            case RecordType() as inner, path:
                yield from parameter_lines(inner, f"{prefix}{field.name}{path}.")


def records_in(kind: FieldType, path: str = "") -> tuple[RecordType, str] | None:
    """Finds the record that a type is made of, and the way to it through lists and dicts."""
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
    """Gives the name of a type, as Python writes it."""
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
    """Gives what follows a field's name: its documentation, and what its absence means."""
    doc = f" - {field.doc}" if field.doc else ""
    if field.required:
        return doc
    return f"{doc} (optional{'' if field.default is None else f', default {shown(field.default)}'})"


def shown(value: str | float) -> str:
    """Gives a default as a prompt shows it."""
    return repr(value) if isinstance(value, str) else spell(value)  # type: ignore[arg-type]
