"""The classes of a stub package: dataclasses, mappings with fixed keys, enumerations, aliases."""

import keyword
from collections.abc import Iterator, Mapping

from agentix.namespace_sdk.stubs.text import docstring, literal
from agentix.namespace_sdk.stubs.types import Schema, Types
from agentix.namespace_sdk.stubs.values import expression
from agentix.schema import ENUM_NAMES, TYPED_DICT

__all__ = ["write_classes"]


def write_classes(
    definitions: Mapping[str, Schema], names: Mapping[str, str], types: Types
) -> dict[str, str]:
    """Writes the class of each definition, those that others are made of first.

    Args:
        definitions: The `$defs` of the namespace.
        names: The name of the class for each of their keys.
        types: The annotations of the namespace.

    Returns:
        The source of each class, by its name.
    """
    written: dict[str, str] = {}
    for key in _ordered(definitions):
        if names[key] not in written:
            written[names[key]] = _class(names[key], definitions[key], types, definitions)
    return written


def _ordered(definitions: Mapping[str, Schema]) -> list[str]:
    """Orders definitions so that an alias comes after what it means."""
    done: dict[str, None] = {}
    entered: set[str] = set()

    def visit(key: str) -> None:
        if key in entered or key not in definitions:
            return
        entered.add(key)
        for reference in _references(definitions[key]):
            visit(reference)
        done[key] = None

    for key in definitions:
        visit(key)
    return list(done)


def _references(node: object) -> Iterator[str]:
    if isinstance(node, Mapping):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"].removeprefix("#/$defs/")
        for child in node.values():
            yield from _references(child)
    elif isinstance(node, list):
        for child in node:
            yield from _references(child)


def _class(name: str, schema: Schema, types: Types, definitions: Mapping[str, Schema]) -> str:
    match schema:
        case {"enum": [*values]} if ENUM_NAMES in schema:
            return _enumeration(name, schema, list(values))
        case {"properties": Mapping() as properties}:
            usable = all(
                field.isidentifier() and not keyword.iskeyword(field) for field in properties
            )
            if not usable:
                return _mapping_by_call(name, schema, types)
            if schema.get(TYPED_DICT):
                return _mapping(name, schema, types)
            return _dataclass(name, schema, types, definitions)
        case _:
            return f"{name}: typing.TypeAlias = {types.annotation(schema)}\n"


def _enumeration(name: str, schema: Schema, values: list[object]) -> str:
    members = zip(schema[ENUM_NAMES], values, strict=True)
    lines = [f"    {member} = {literal(value)}" for member, value in members]
    return _block(f"class {name}(enum.Enum):", schema, lines)


def _mapping(name: str, schema: Schema, types: Types) -> str:
    lines = [
        f"    {field}: {_item(field, each, schema, types)}"
        for field, each in schema["properties"].items()
    ]
    return _block(f"class {name}(typing_extensions.TypedDict):", schema, lines)


def _mapping_by_call(name: str, schema: Schema, types: Types) -> str:
    """Writes a mapping whose keys are no names of Python."""
    lines = [
        f"        {literal(field)}: {literal(_item(field, each, schema, types))},"
        for field, each in schema["properties"].items()
    ]
    return "\n".join(
        [
            f"{name} = typing_extensions.TypedDict(",
            f"    {literal(name)},",
            "    {",
            *lines,
            "    },",
            ")",
            "",
        ]
    )


def _item(field: str, value: Schema, schema: Schema, types: Types) -> str:
    annotation = types.annotation(value)
    required = field in schema.get("required", [])
    return annotation if required else f"typing_extensions.NotRequired[{annotation}]"


def _dataclass(name: str, schema: Schema, types: Types, definitions: Mapping[str, Schema]) -> str:
    lines: list[str] = []
    for field, value in schema["properties"].items():
        default = _default(field, value, schema, types, definitions, bool(lines))
        lines.append(f"    {field}: {types.annotation(value)}{default}")
        if isinstance(value.get("description"), str):
            lines.append(docstring(value["description"], "    "))
    return "@dataclasses.dataclass\n" + _block(f"class {name}:", schema, lines)


def _default(
    field: str,
    value: Schema,
    schema: Schema,
    types: Types,
    definitions: Mapping[str, Schema],
    follows: bool,
) -> str:
    """Writes the default of a field; one with a default that is not known is given by name."""
    if field in schema.get("required", []):
        return ""
    told = expression(value, value["default"], types, definitions) if "default" in value else None
    if told is None:
        return " = dataclasses.field(kw_only=True)" if follows else ""
    if told.startswith(("[", "{", "set(")):
        return f" = dataclasses.field(default_factory=lambda: {told})"
    return f" = {told}"


def _block(head: str, schema: Schema, lines: list[str]) -> str:
    description = schema.get("description")
    told = [docstring(description, "    "), ""] if isinstance(description, str) else []
    body = told[: 2 if lines else 1] + lines
    return "\n".join([head, *(body or ["    pass"]), ""])
