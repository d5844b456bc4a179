"""Descriptions: payload classes in plain data, with the documentation of their fields."""

import ast
import dataclasses
import datetime
import inspect
import sys
import types
import typing
from collections.abc import Iterator
from decimal import Decimal
from enum import Enum, Flag
from functools import lru_cache
from types import ModuleType
from typing import Annotated, Any, NewType, Union, get_args, get_origin

from agentix.agentserver.errors import RegistrationError
from agentix.agentserver.names import is_ncname
from agentix.agentserver.payload.types import (
    LONGEST_TEXT,
    Atom,
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
    RecordType,
    TextType,
    brief,
    can_be_shown,
    from_data,
    is_short_text,
    is_text,
    is_xmlified,
    spell,
    to_data,
)

__all__ = [
    "describe_record",
    "documentation",
    "enum_spellings",
    "field_hints",
    "split_optional",
]


SIMPLE: dict[object, FieldType] = {
    int: IntegerType(),
    str: TextType(),
    float: FloatType(),
    bool: BooleanType(),
    Decimal: DecimalType(),
    datetime.date: DateType(),
    datetime.datetime: DateTimeType(),
    bytes: BytesType(),
}

SUPPORTED = (
    "a field may be int, str, float, bool, Decimal, date, datetime, bytes, Literal[...], an Enum, "
    "list[T], dict[str, T], another dataclass, or T | None"
)


def describe_record(cls: type) -> RecordType:
    """Describe a payload class.

    Args:
        cls: A dataclass marked with `@xmlify`.

    Raises:
        RegistrationError: It is not marked, or a field is of a type that has no XML form; the
            message names the class, the field and the reason.
    """
    if not isinstance(cls, type) or not is_xmlified(cls):
        raise RegistrationError(f"{cls!r} is no payload class: put @xmlify above it")
    return from_data(to_data(record_type(cls, ())))


def record_type(cls: type, outer: tuple[type, ...]) -> RecordType:
    """Describe a dataclass, given those that it is nested in."""
    if cls in outer:
        raise RegistrationError(f"{cls.__name__} contains itself; no finite schema can say that")
    docs = documentation(cls)
    fields = tuple(
        describe_field(cls, field, hint, docs.get(field.name, ""), (*outer, cls))
        for field, hint in field_hints(cls)
    )
    check_constructor(cls, fields)
    return RecordType(cls.__name__, fields)


def check_constructor(cls: type, fields: tuple[Field, ...]) -> None:
    """Check that an instance can be made of the fields, and of them alone."""
    try:
        inspect.signature(cls).bind(**dict.fromkeys(field.name for field in fields))
    except TypeError as error:
        raise RegistrationError(f"{cls.__name__} cannot be made of its fields: {error}") from error


def field_hints(cls: type) -> Iterator[tuple["dataclasses.Field[Any]", Any]]:
    """Return the fields that a constructor takes, each with its resolved annotation.

    Raises:
        RegistrationError: An annotation names something that does not exist.
    """
    fields = [field for field in dataclasses.fields(cls) if field.init]
    hints: dict[str, Any] = {field.name: field.type for field in fields}
    if not all(isinstance(hint, type) for hint in hints.values()):
        hints = resolved_hints(cls)
    for field in fields:
        yield field, hints[field.name]


def resolved_hints(cls: type) -> dict[str, Any]:
    """Return the annotations of a class, texts in them evaluated."""
    try:
        return typing.get_type_hints(cls, include_extras=True)
    except Exception as error:  # annotations are code: evaluating them may raise anything
        raise RegistrationError(
            f"{cls.__name__}: an annotation cannot be resolved: {error}"
        ) from error


def describe_field(
    cls: type, field: "dataclasses.Field[Any]", hint: Any, doc: str, outer: tuple[type, ...]
) -> Field:
    """Describe one field of a dataclass."""
    place = f"{cls.__name__}.{field.name}"
    if not is_ncname(field.name):
        raise RegistrationError(f"{place}: the name is no XML name")
    inner, optional = split_optional(hint)
    kind = field_type(place, inner, outer)
    has_default = (
        field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
    )
    return Field(
        name=field.name,
        type=OptionalType(kind) if optional else kind,
        doc=one_line(own_doc(field, hint) or doc)[:LONGEST_TEXT],
        required=not (has_default or optional),
        default=shown_default(field.default),
    )


def own_doc(field: "dataclasses.Field[Any]", hint: Any) -> str:
    """Return the documentation that a field carries itself: `Annotated`, or its metadata."""
    if get_origin(hint) is Annotated:
        for extra in hint.__metadata__:
            if isinstance(extra, str):
                return extra
    return str(field.metadata.get("doc", ""))


def one_line(text: str) -> str:
    """Put a text into one line that XML can hold."""
    return " ".join("".join(sign if is_text(sign) else " " for sign in text).split())


def shown_default(value: object) -> Atom | float | None:
    """Return the default that a prompt shows; None where one word or number does not say it."""
    match value:
        case Enum():
            return enum_spellings(type(value)).get(value)
        case bool() | float() | int() | str():
            return value if can_be_shown(value) else None
        case Decimal() | datetime.date():
            return str(value)
        case _:
            return None


def split_optional(hint: Any) -> tuple[Any, bool]:
    """Take `Annotated` and `| None` off an annotation, and tell whether None was there."""
    hint = bare(hint)
    if get_origin(hint) not in (Union, types.UnionType):
        return hint, False
    members = [member for member in get_args(hint) if member is not types.NoneType]
    optional = len(members) < len(get_args(hint))
    return (bare(members[0]), optional) if len(members) == 1 else (hint, optional)


def bare(hint: Any) -> Any:
    """Take `Annotated`, `NewType` and named aliases off an annotation."""
    while True:
        if get_origin(hint) is Annotated:
            hint = hint.__origin__
        elif isinstance(hint, NewType):
            hint = hint.__supertype__
        elif type(hint).__name__ == "TypeAliasType":
            hint = hint.__value__
        else:
            return hint


def field_type(place: str, hint: Any, outer: tuple[type, ...]) -> FieldType:
    """Describe the type of a field."""
    hint = bare(hint)
    if (simple := SIMPLE.get(hint) if isinstance(hint, type) else None) is not None:
        return simple
    arguments = get_args(hint)
    match get_origin(hint):
        case typing.Literal:
            return literal_type(place, arguments)
        case origin if origin is list and len(arguments) == 1:
            return ListType(field_type(f"{place}[]", arguments[0], outer))
        case origin if origin is dict and len(arguments) == 2 and bare(arguments[0]) is str:
            return MapType(field_type(f"{place}[]", arguments[1], outer))
        case None if (
            isinstance(hint, type) and issubclass(hint, Enum) and not issubclass(hint, Flag)
        ):
            return EnumType(told_apart(place, tuple(enum_spellings(hint).values())))
        case None if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            return record_type(hint, outer)
        case _:
            raise RegistrationError(f"{place}: {name_of(hint)} has no XML form; {SUPPORTED}")


def literal_type(place: str, values: tuple[Any, ...]) -> LiteralType:
    """Describe a `Literal`."""
    for value in values:
        if type(value) not in (str, int, bool):
            raise RegistrationError(f"{place}: Literal takes str, int and bool, not {value!r}")
        if not can_be_shown(value):
            raise RegistrationError(f"{place}: {brief(value)} is too long, or none that XML holds")
    return LiteralType(told_apart(place, values))


def told_apart(place: str, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Check that XML can hold every value of a choice, each by a spelling of its own."""
    seen: set[str] = set()
    for text in map(spell, values):
        if not is_short_text(text) or text in seen:
            raise RegistrationError(f"{place}: {text!r:.80} cannot be told apart in XML")
        seen.add(text)
    return values


def enum_spellings(cls: type[Enum]) -> dict[Enum, str]:
    """Return how XML spells each member: by its value where all are texts, else by its name."""
    members = [*cls]
    if all(isinstance(member.value, str) for member in members):
        return {member: str(member.value) for member in members}
    return {member: member.name for member in members}


def name_of(hint: Any) -> str:
    """Return an annotation as its author wrote it, as far as Python keeps that."""
    return hint.__qualname__ if isinstance(hint, type) and not get_args(hint) else str(hint)


TO_TOOLS = ("noqa", "type:", "pragma", "fmt:", "pyright:")
"""How comments begin that are no documentation."""


def documentation(cls: type) -> dict[str, str]:
    """Return the documentation of the fields of a class and its bases, by name.

    A docstring below a field goes before the comment on its line. Where there is no source, such
    as in a frozen program, nothing is documented this way.
    """
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if "__annotations__" in base.__dict__:
            found |= documentation_of(base)
    return found


def documentation_of(cls: type) -> dict[str, str]:
    """Return what the body of one class says."""
    module = sys.modules.get(cls.__module__)
    found = documented(module).get(cls.__qualname__) if module is not None else None
    return {} if found is None else found


@lru_cache(maxsize=64)
def documented(module: ModuleType) -> dict[str, dict[str, str]]:
    """Return what the source of a module says of the fields of each class, by qualified name."""
    try:
        source = inspect.getsource(module)
        tree = ast.parse(source)
    except (OSError, TypeError, SyntaxError, ValueError):
        return {}
    lines = source.encode().split(b"\n")
    found: dict[str, dict[str, str]] = {}
    for name, definition in classes(tree, ""):
        found.setdefault(name, dict(fields(definition, lines)))
    return found


def classes(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.ClassDef]]:
    """Return every class below a node, with its qualified name."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.ClassDef(name=name):
                yield prefix + name, child
                yield from classes(child, f"{prefix}{name}.")
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield from classes(child, f"{prefix}{name}.<locals>.")
            case ast.stmt() | ast.excepthandler() | ast.match_case():
                yield from classes(child, prefix)


def fields(definition: ast.ClassDef, lines: list[bytes]) -> Iterator[tuple[str, str]]:
    """Return the documentation of each field in the body of a class."""
    body = definition.body
    ends = {statement.end_lineno: statement.end_col_offset for statement in body}
    for statement, following in zip(body, [*body[1:], None], strict=True):
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name), end_lineno=int(line)):
                text = docstring(following) or comment(lines[line - 1][ends[line] :])
                yield name, " ".join(text.split())


def docstring(statement: ast.stmt | None) -> str:
    """Return the text of a statement that is only a text."""
    match statement:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return text
        case _:
            return ""


def comment(rest: bytes) -> str:
    """Return the comment that the rest of a line is, without the remarks to tools."""
    text = rest.decode().lstrip(" \t\f;")
    if not text.startswith("#"):
        return ""
    text = text.lstrip("#: ").rstrip()
    return "" if text.startswith(TO_TOOLS) else text
