"""Payload classes, what handlers are given beside them, and their fields as plain data.

Workers import this module, so it does without lxml."""

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, dataclass_transform
from xml.etree.ElementTree import fromstring

from agentix.agentserver.errors import RegistrationError
from agentix.agentserver.names import is_ncname

__all__ = [
    "Atom",
    "BooleanType",
    "BytesType",
    "DateTimeType",
    "DateType",
    "DecimalType",
    "EnumType",
    "Field",
    "FieldType",
    "FloatType",
    "HandlerMetadata",
    "IntegerType",
    "ListType",
    "LiteralType",
    "MapType",
    "OptionalType",
    "Plain",
    "RecordType",
    "Reply",
    "TextType",
    "brief",
    "from_data",
    "is_xmlified",
    "spell",
    "to_data",
    "xmlify",
]


T = TypeVar("T")

MARK = "__agentix_xmlify__"
"""The attribute that marks a class; it counts on the class itself, not on a base of it."""


@dataclass_transform(field_specifiers=(dataclasses.field,))
def xmlify(cls: type[T]) -> type[T]:
    """Mark a payload class.

    It works above `@dataclass`, below it, and alone, where the class becomes a dataclass. What a
    field may be is checked at registration, not here, so importing a class stays cheap.

    Example:
        ```python
        from agentix.agentserver import xmlify


        @xmlify
        class AddPayload:
            a: int = 0  # the first number
            b: int = 0  # the second number


        assert AddPayload(a=1) == AddPayload(a=1, b=0)
        ```
    """
    if "__dataclass_fields__" not in cls.__dict__:
        make_dataclass(cls)
    setattr(cls, MARK, True)
    return cls


def is_xmlified(cls: type) -> bool:
    """Return whether a class itself, not only a base of it, is marked."""
    return MARK in cls.__dict__ and dataclasses.is_dataclass(cls)


def make_dataclass(cls: type[Any]) -> None:
    """Make a dataclass of a class that may still be given to `@dataclass` afterwards.

    `dataclass` keeps methods that it finds, and takes a field's specification off the class. So
    what it would see a second time is what the author wrote: the methods wait until the first
    instance is made, and a `@dataclass(frozen=True)` above makes its own.
    """
    before = dict(cls.__dict__)
    specified = {
        name: copy.copy(value)
        for name, value in before.items()
        if isinstance(value, dataclasses.Field)
    }
    dataclasses.dataclass(cls)
    parameters = cls.__dict__["__dataclass_params__"]
    made = {
        name: value
        for name, value in cls.__dict__.items()
        if value is not before.get(name, dataclasses.MISSING)
        and not name.startswith(("__dataclass_", "__doc__"))
    }
    if "__new__" in before:
        return
    for name in made:
        delattr(cls, name)
    for name, value in (before | specified).items():
        if name in made or name in specified:
            setattr(cls, name, value)

    def first(kind: type[Any], /, *args: object, **kwargs: object) -> Any:
        if made and cls.__dict__["__dataclass_params__"] is parameters:
            complete(cls, made, specified)
        return object.__new__(kind)

    first.__wrapped__ = made.get("__init__", cls.__init__)  # type: ignore[attr-defined]
    setattr(cls, "__new__", first)  # noqa: B010 - to mypy, an assignment redefines the method


def complete(cls: type[Any], made: dict[str, Any], specified: dict[str, Any]) -> None:
    """Return a class what a dataclass has; nothing waits any longer afterwards."""
    for name in specified:
        if name not in made:
            delattr(cls, name)
    for name, value in made.items():
        setattr(cls, name, value)
    made.clear()
    specified.clear()


@dataclass(frozen=True)
class HandlerMetadata:
    """What the pump tells a handler beside the payload; nothing in it names a sender or a path.

    Example:
        ```python
        from agentix.agentserver import HandlerMetadata, xmlify


        @xmlify
        class AddPayload:
            a: int = 0
            b: int = 0


        async def add(payload: AddPayload, metadata: HandlerMetadata) -> bytes:
            return f"<result>{payload.a + payload.b}</result>".encode()
        ```
    """

    thread_id: str
    """The opaque id of the thread, a UUID; a safe key for state of that thread."""
    own_name: str | None = None
    """The registered name of the listener; only where it is declared with `agent: true`."""


@xmlify
class Reply:
    """What an agent without a `reply_class` receives when one that it called answers.

    Example:
        ```python
        from agentix.agentserver import Reply

        reply = Reply(tag="result", xml="<result>42</result>")
        assert reply.text == "42"
        ```
    """

    tag: str
    """The tag of the answer."""
    xml: str
    """The answer as canonical XML."""

    @property
    def text(self) -> str:
        """The text in the answer, without its elements."""
        return "".join(fromstring(self.xml).itertext())  # noqa: S314 - the pump wrote it


Plain: TypeAlias = dict[str, Any]
"""A payload by field, of str, int, float, bool, bytes, None, list and dict only.

Decimals, dates, times and members of enumerations are text. Fields that are absent are left out, so
that the class's own defaults apply.
"""

Atom: TypeAlias = str | int | bool
"""What a `Literal` may list."""

DEEPEST = 16
"""How deep types may be nested."""

MOST = 1_000
"""How many fields a record, or values an enumeration, may have."""

LONGEST_TEXT = 4_096
"""Characters of a field's documentation, and of a default that is shown."""

WIDEST = 1_024
"""Bits of an integer that is a default or one of several values; Python writes 4,300 digits."""

CONTROL = frozenset(map(chr, [*range(9), 11, 12, *range(14, 32), 0xFFFE, 0xFFFF]))
"""Characters that no XML document can hold (XML 1.0, production 2), lone surrogates aside."""


@dataclass(frozen=True)
class IntegerType:
    """`int`, of any size up to what Python reads: 4,300 digits."""


@dataclass(frozen=True)
class TextType:
    """`str`, every character kept."""


@dataclass(frozen=True)
class FloatType:
    """`float`, infinities and NaN included."""


@dataclass(frozen=True)
class BooleanType:
    """`bool`."""


@dataclass(frozen=True)
class DecimalType:
    """`decimal.Decimal`, finite."""


@dataclass(frozen=True)
class DateType:
    """`datetime.date`."""


@dataclass(frozen=True)
class DateTimeType:
    """`datetime.datetime`, with or without an offset from UTC."""


@dataclass(frozen=True)
class BytesType:
    """`bytes`, in base64."""


@dataclass(frozen=True)
class LiteralType:
    """`Literal[...]` of texts, integers and truth values, whose spellings all differ."""

    values: tuple[Atom, ...]
    """The values, in the order of the annotation."""


@dataclass(frozen=True)
class EnumType:
    """A subclass of `Enum`, by its values where all are texts, else by its members' names."""

    values: tuple[str, ...]
    """The spellings, in the order of the class."""


@dataclass(frozen=True)
class ListType:
    """`list[T]`: one `<item>` each."""

    item: "FieldType"
    """The type of each item."""


@dataclass(frozen=True)
class MapType:
    """`dict[str, T]`: one `<entry>` each, of a `<key>` and a `<value>`."""

    value: "FieldType"
    """The type of each value."""


@dataclass(frozen=True)
class OptionalType:
    """`T | None`: the element is left out for None."""

    type: "FieldType"
    """The type of what is there."""


@dataclass(frozen=True)
class Field:
    """One field of a record."""

    name: str
    """The name, which is the element's name too."""
    type: "FieldType"
    """What it holds."""
    doc: str = ""
    """What its author says about it."""
    required: bool = True
    """Whether the element must be there."""
    default: Atom | float | None = None
    """The plain value of an absent element, where it is one word or number; for prompts."""


@dataclass(frozen=True)
class RecordType:
    """A dataclass: one element a field, in any order."""

    name: str
    """The name of the class."""
    fields: tuple[Field, ...]
    """The fields, in the order of the class."""


Simple: TypeAlias = (
    IntegerType | TextType | FloatType | BooleanType | DecimalType | DateType | DateTimeType
    | BytesType
)  # fmt: skip
FieldType: TypeAlias = (
    Simple | LiteralType | EnumType | ListType | MapType | OptionalType | RecordType
)

SIMPLE: Mapping[str, Simple] = {
    "int": IntegerType(),
    "str": TextType(),
    "float": FloatType(),
    "bool": BooleanType(),
    "Decimal": DecimalType(),
    "date": DateType(),
    "datetime": DateTimeType(),
    "bytes": BytesType(),
}
"""The kinds without parameters, by the names that data and prompts have for them."""

NAMES: Mapping[type, str] = {type(kind): name for name, kind in SIMPLE.items()}


def brief(value: object) -> str:
    """Show the beginning of a value in a message, whatever it is."""
    try:
        return repr(value)[:80]
    except Exception:  # an integer of too many digits, or a class's own mistake
        return f"a {type(value).__name__}"


def spell(atom: Atom) -> str:
    """Return the text by which XML spells a value of a `Literal`."""
    if isinstance(atom, bool):
        return "true" if atom else "false"
    return str(atom)


def to_data(kind: FieldType) -> dict[str, Any]:
    """Turn a description into plain data: dicts, lists, texts, numbers, truth values and None."""
    match kind:
        case LiteralType(values):
            return {"kind": "Literal", "values": [*values]}
        case EnumType(values):
            return {"kind": "Enum", "values": [*values]}
        case ListType(item):
            return {"kind": "list", "of": to_data(item)}
        case MapType(value):
            return {"kind": "dict", "of": to_data(value)}
        case OptionalType(inner):
            return {"kind": "Optional", "of": to_data(inner)}
        case RecordType(name, fields):
            return {"kind": "record", "name": name, "fields": [*map(field_to_data, fields)]}
        case _:
            return {"kind": NAMES[type(kind)]}


def field_to_data(field: Field) -> dict[str, Any]:
    """Turn the description of a field into plain data."""
    return {
        "name": field.name,
        "type": to_data(field.type),
        "doc": field.doc,
        "required": field.required,
        "default": field.default,
    }


def from_data(data: object) -> RecordType:
    """Read the description of a class from what a worker sent, which may be anything.

    Raises:
        RegistrationError: It is no such description, or one that no schema can express.
    """
    record = read(data, 0)
    if not isinstance(record, RecordType):
        raise RegistrationError("the description of a payload class is not that of a record")
    return record


def read(data: object, depth: int) -> FieldType:
    """Read the description of one type."""
    if depth > DEEPEST:
        raise RegistrationError(f"types are nested more than {DEEPEST} deep")
    if not isinstance(data, dict):
        raise RegistrationError(f"a {type(data).__name__} describes no type")
    match data:
        case {"kind": str(name), **nothing} if name in SIMPLE and not nothing:
            return SIMPLE[name]
        case {"kind": "Literal", "values": list(values)}:
            return LiteralType(tuple(spellings(values, str | int)))
        case {"kind": "Enum", "values": list(values)}:
            return EnumType(tuple(spellings(values, str)))
        case {"kind": "list", "of": inner}:
            return ListType(read(inner, depth + 1))
        case {"kind": "dict", "of": inner}:
            return MapType(read(inner, depth + 1))
        case {"kind": "record", "name": str(name), "fields": list(fields)} if is_ncname(name):
            return RecordType(name, tuple(read_fields(name, fields, depth + 1)))
        case _:
            raise RegistrationError(f"{brief(data.get('kind'))} describes no type here")


def read_fields(record: str, fields: list[object], depth: int) -> Iterator[Field]:
    """Read the descriptions of the fields of a record."""
    if len(fields) > MOST:
        raise RegistrationError(f"{record} has {len(fields)} fields; {MOST} are the most")
    seen: set[str] = set()
    for data in fields:
        field = read_field(data, depth)
        if field.name in seen:
            raise RegistrationError(f"{record} has two fields {field.name!r}")
        seen.add(field.name)
        yield field


def read_field(data: object, depth: int) -> Field:
    """Read the description of one field."""
    match data:
        case {
            "name": str(name),
            "type": dict(kind),
            "doc": str(doc),
            "required": bool(required),
            "default": str() | int() | float() | None as default,
        } if is_ncname(name) and is_short_text(doc) and can_be_shown(default):
            return Field(name, read_field_type(kind, depth), doc, required, default)
        case _:
            raise RegistrationError("a field of a payload class is described wrongly")


def read_field_type(data: dict[str, object], depth: int) -> FieldType:
    """Read the type of a field, the one place where None may be."""
    match data:
        case {"kind": "Optional", "of": inner}:
            return OptionalType(read(inner, depth + 1))
        case _:
            return read(data, depth)


def spellings(values: list[object], allowed: Any) -> Iterator[Any]:
    """Check the values of a `Literal` or an `Enum`: XML must be able to tell them apart."""
    seen: set[str] = set()
    if not 0 < len(values) <= MOST:
        raise RegistrationError(f"{len(values)} values to choose from; 1 to {MOST} are allowed")
    for value in values:
        if not isinstance(value, allowed) or not can_be_shown(value) or spell(value) in seen:
            raise RegistrationError(f"{brief(value)} cannot be told apart as one of several")
        seen.add(spell(value))
        yield value


def can_be_shown(value: Atom | float | None) -> bool:
    """Return whether a value is one that a prompt can show."""
    match value:
        case str():
            return is_short_text(value)
        case int():
            return value.bit_length() <= WIDEST
        case _:
            return True


def is_short_text(text: str) -> bool:
    """Return whether a text is one that XML can hold, and short enough to be shown."""
    return len(text) <= LONGEST_TEXT and is_text(text)


def is_text(text: str) -> bool:
    """Return whether XML can hold a text: no control characters, no halves of surrogate pairs."""
    return CONTROL.isdisjoint(text) and not any("\ud800" <= sign <= "\udfff" for sign in text)
