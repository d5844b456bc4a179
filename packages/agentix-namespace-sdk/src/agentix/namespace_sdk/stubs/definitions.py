"""The classes and functions of a stub package: their names, and how they are written.

name_classes ──► SchemaTranslator ──► write_classes    dataclasses, mappings, enumerations
                                 └──► write_function   stubs
"""

import keyword
import re
from collections.abc import Iterable, Iterator, Mapping

from agentix.namespace_sdk.stubs.translator import (
    UNKNOWN,
    Schema,
    SchemaTranslator,
    docstring,
    literal,
)
from agentix.schema import ENUM_NAMES, TYPED_DICT, FunctionSchema, ParameterSchema

__all__ = ["MODULES", "name_classes", "write_classes", "write_function"]

LINE_LENGTH = 100

DIRECTION = re.compile(r"(?P<base>.+)-(?P<direction>Input|Output)")

MODULES = (
    *("collections.abc", "dataclasses", "datetime", "decimal", "enum", "ipaddress", "pathlib"),
    *("typing", "typing_extensions", "uuid"),
)
"""Modules that stubs may import, whose names classes cannot have."""


def name_classes(definitions: Mapping[str, Schema], functions: Iterable[str]) -> SchemaTranslator:
    """Choose the name of the class for each key of `$defs`.

    A type that is read in another form than it is written has two keys; where the annotations of
    its fields are the same in both, they are one class.

    Args:
        definitions: The `$defs`.
        functions: Names that classes cannot have.
    """
    apart: set[str] = set()
    taken = {module.partition(".")[0] for module in MODULES}.union(functions)
    while True:
        names = _names(definitions, apart, set(taken))
        to_python = SchemaTranslator(definitions, names)
        unlike = {
            base
            for base in _pairs(definitions) - apart
            if _shape(definitions[f"{base}-Input"], to_python)
            != _shape(definitions[f"{base}-Output"], to_python)
        }
        if not unlike:
            return to_python
        apart |= unlike


def _pairs(definitions: Mapping[str, Schema]) -> set[str]:
    found = (DIRECTION.fullmatch(key) for key in definitions)
    bases = {match["base"] for match in found if match}
    return {b for b in bases if f"{b}-Input" in definitions and f"{b}-Output" in definitions}


def _shape(schema: Schema, to_python: SchemaTranslator) -> object:
    properties = schema.get("properties")
    if properties is None:
        return to_python.annotation(schema)
    return {name: to_python.annotation(each) for name, each in properties.items()}


def _names(definitions: Mapping[str, Schema], apart: set[str], taken: set[str]) -> dict[str, str]:
    names: dict[str, str] = {}
    for key, schema in definitions.items():
        match = DIRECTION.fullmatch(key)
        base = match["base"] if match else key
        if match and base not in apart and f"{base}-Input" in names:
            names[key] = names[f"{base}-Input"]
            continue
        suffix = "Input" if match and base in apart and match["direction"] == "Input" else ""
        wanted = _identifier(str(schema.get("title", base)), base) + suffix
        while wanted in taken:
            wanted += "_"
        taken.add(wanted)
        names[key] = wanted
    return names


def _identifier(title: str, key: str) -> str:
    chosen = title if title.isidentifier() else re.sub(r"\W+", "_", key).strip("_")
    usable = chosen.isidentifier() and not keyword.iskeyword(chosen)
    return chosen if usable else f"Type_{chosen}"


def write_classes(to_python: SchemaTranslator) -> dict[str, str]:
    """Write the class of each definition, those that others are made of first.

    Args:
        to_python: The translator of its schemas.

    Returns:
        The source of each class, by its name.
    """
    written: dict[str, str] = {}
    for key in _ordered(to_python.definitions):
        name = to_python.names[key]
        if name not in written:
            written[name] = _class(name, to_python.definitions[key], to_python)
    return written


def _ordered(definitions: Mapping[str, Schema]) -> list[str]:
    """Return the keys of definitions so that an alias comes after what it means."""
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


def _class(name: str, schema: Schema, to_python: SchemaTranslator) -> str:
    match schema:
        case {"enum": [*values]} if ENUM_NAMES in schema:
            return _enumeration(name, schema, list(values))
        case {"properties": Mapping() as properties}:
            usable = all(
                field.isidentifier() and not keyword.iskeyword(field) for field in properties
            )
            if not usable:
                return _mapping_by_call(name, schema, to_python)
            if schema.get(TYPED_DICT):
                return _mapping(name, schema, to_python)
            return _dataclass(name, schema, to_python)
        case _:
            return f"{name}: typing.TypeAlias = {to_python.annotation(schema)}\n"


def _enumeration(name: str, schema: Schema, values: list[object]) -> str:
    members = zip(schema[ENUM_NAMES], values, strict=True)
    lines = [f"    {member} = {literal(value)}" for member, value in members]
    return _block(f"class {name}(enum.Enum):", schema, lines)


def _mapping(name: str, schema: Schema, to_python: SchemaTranslator) -> str:
    lines = [
        f"    {field}: {_item(field, each, schema, to_python)}"
        for field, each in schema["properties"].items()
    ]
    return _block(f"class {name}(typing_extensions.TypedDict):", schema, lines)


def _mapping_by_call(name: str, schema: Schema, to_python: SchemaTranslator) -> str:
    """Write a mapping whose keys are no names of Python."""
    lines = [
        f"        {literal(field)}: {literal(_item(field, each, schema, to_python))},"
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


def _item(field: str, value: Schema, schema: Schema, to_python: SchemaTranslator) -> str:
    annotation = to_python.annotation(value)
    required = field in schema.get("required", [])
    return annotation if required else f"typing_extensions.NotRequired[{annotation}]"


def _dataclass(name: str, schema: Schema, to_python: SchemaTranslator) -> str:
    lines: list[str] = []
    for field, value in schema["properties"].items():
        default = _default(field, value, schema, to_python, bool(lines))
        lines.append(f"    {field}: {to_python.annotation(value)}{default}")
        if isinstance(value.get("description"), str):
            lines.append(docstring(value["description"], "    "))
    return "@dataclasses.dataclass\n" + _block(f"class {name}:", schema, lines)


def _default(
    field: str, value: Schema, schema: Schema, to_python: SchemaTranslator, follows: bool
) -> str:
    """Return the default of a field; one whose default is not known is keyword-only."""
    if field in schema.get("required", []):
        return ""
    default = None
    if "default" in value:
        default = to_python.expression(value, value["default"])
    if default is None:
        return " = dataclasses.field(kw_only=True)" if follows else ""
    if default.startswith(("[", "{", "set(")):
        return f" = dataclasses.field(default_factory=lambda: {default})"
    return f" = {default}"


def _block(head: str, schema: Schema, lines: list[str]) -> str:
    description = schema.get("description")
    head_lines = [docstring(description, "    "), ""] if isinstance(description, str) else []
    body = head_lines[: 2 if lines else 1] + lines
    return "\n".join([head, *(body or ["    pass"]), ""])


def write_function(function: FunctionSchema, module: str, to_python: SchemaTranslator) -> str:
    """Write a stub.

    Args:
        function: What is known of it.
        module: What its package is called.
        to_python: The translator of its schemas.
    """
    parameters = [*_parameters(function.parameters, to_python)]
    result = to_python.annotation(function.result)
    if function.streams:
        result = f"collections.abc.AsyncIterator[{result}]"
    lines = [f"def {function.name}({', '.join(parameters)}) -> {result}:"]
    if len(lines[0]) > LINE_LENGTH:
        own_lines = [f"    {parameter}," for parameter in parameters]
        lines = [f"def {function.name}(", *own_lines, f") -> {result}:"]
    if function.description:
        lines.append(docstring(function.description, "    "))
    more = ", ..." if function.parameters else ""
    call = f"call via RuntimeClient.remote({module}.{function.name}{more})"
    return "\n".join([*lines, f"    raise NotImplementedError({literal(call)})", ""])


def _parameters(parameters: list[ParameterSchema], to_python: SchemaTranslator) -> Iterator[str]:
    """Yield parameters, with the marks between their kinds."""
    previous = ""
    starred = False
    for parameter in parameters:
        if previous == "positional_only" != parameter.kind:
            yield "/"
        if parameter.kind == "keyword_only" and not starred:
            yield "*"
            starred = True
        starred = starred or parameter.kind == "var_positional"
        yield _parameter(parameter, to_python)
        previous = parameter.kind
    if previous == "positional_only":
        yield "/"


def _parameter(parameter: ParameterSchema, to_python: SchemaTranslator) -> str:
    schema = parameter.value
    match parameter.kind:
        case "var_positional":
            return f"*{parameter.name}: {to_python.annotation(schema.get('items') or {})}"
        case "var_keyword" if "$ref" in schema:
            return f"**{parameter.name}: typing.Unpack[{to_python.annotation(schema)}]"
        case "var_keyword":
            values = schema.get("additionalProperties")
            value = to_python.annotation(values) if isinstance(values, Mapping) else "typing.Any"
            return f"**{parameter.name}: {value}"
    declared = f"{parameter.name}: {to_python.annotation(schema)}"
    if parameter.required:
        return declared
    default = None
    if "default" in schema:
        default = to_python.expression(schema, schema["default"])
    return f"{declared} = {UNKNOWN if default is None else default}"
