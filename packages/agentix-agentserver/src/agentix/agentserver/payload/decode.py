"""Elements to plain values, by closures compiled from the description of a class.

They run after the schema has accepted the element, so they only look at what it leaves open. The
elements within one are taken all at once, by a slice, which costs lxml half of what a loop does.
"""

import base64
import datetime
from collections.abc import Callable
from typing import Any, TypeAlias

from lxml.etree import _Element as Element

from agentix.agentserver.errors import PayloadError
from agentix.agentserver.names import collapse
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
    RecordType,
    TextType,
    spell,
)

__all__ = ["Decode", "decoder"]

Decode: TypeAlias = Callable[[Element], Any]


def decoder(kind: FieldType) -> Decode:
    """Compiles what reads a valid element of a type.

    Returns:
        A function that raises PayloadError where Python has no value for what the schema allows.
    """
    match kind:
        case OptionalType(inner):
            return decoder(inner)
        case RecordType():
            return record_decoder(kind)
        case ListType(item):
            read = decoder(item)
            return lambda element: [read(child) for child in element[:]]
        case MapType(value):
            return map_decoder(decoder(value))
        case LiteralType(values):
            return choice_decoder({spell(value): value for value in values})
        case EnumType(values):
            return choice_decoder({value: value for value in values})
        case _:
            return READERS[type(kind)]


def record_decoder(record: RecordType) -> Decode:
    """Compiles what reads a record; fields that are absent are left out."""
    reads: dict[Any, Decode] = {field.name: decoder(field.type) for field in record.fields}

    def decode(element: Element) -> dict[Any, Any]:
        return {(name := child.tag): reads[name](child) for child in element[:]}

    return decode


def map_decoder(read: Decode) -> Decode:
    """Compiles what reads a dict; the schema allows a key twice, a dict does not."""

    def decode(element: Element) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for entry in element:
            first, second = entry
            key, value = (first, second) if first.tag == "key" else (second, first)
            name = key.text or ""
            if name in found:
                raise PayloadError(f"the key {name!r:.60} is given twice")
            found[name] = read(value)
        return found

    return decode


def choice_decoder(values: dict[str, Any]) -> Decode:
    """Compiles what reads one of several values."""

    def decode(element: Element) -> Any:
        text = element.text or ""
        if text in values:
            return values[text]
        text = collapse(text)
        return values[text] if text in values else values[str(int(text))]

    return decode


def integer(element: Element) -> int:
    """Reads xs:integer, which has no largest number; Python reads 4,300 digits."""
    try:
        return int(element.text or "")
    except ValueError as error:
        raise PayloadError(f"an integer that Python does not read: {error}") from error


def text(element: Element) -> str:
    """Reads xs:string."""
    return element.text or ""


def floating(element: Element) -> float:
    """Reads xs:double."""
    return float(element.text or "")


def boolean(element: Element) -> bool:
    """Reads xs:boolean."""
    return (element.text or "").strip() in ("true", "1")


def decimal(element: Element) -> str:
    """Reads xs:decimal."""
    return (element.text or "").strip()


def binary(element: Element) -> bytes:
    """Reads xs:base64Binary, of which libxml2 lets characters pass that are none of base64."""
    try:
        return base64.b64decode("".join((element.text or "").split()), validate=True)
    except ValueError as error:
        raise PayloadError(f"no base64: {error}") from error


def day(element: Element) -> str:
    """Reads xs:date, which has a year 0 that Python lacks."""
    try:
        return datetime.date.fromisoformat((element.text or "").strip()).isoformat()
    except ValueError as error:
        raise PayloadError(f"a date that Python does not have: {error}") from error


def moment(element: Element) -> str:
    """Reads xs:dateTime, which has an hour 24 that Python lacks."""
    try:
        return datetime.datetime.fromisoformat((element.text or "").strip()).isoformat()
    except ValueError as error:
        raise PayloadError(f"a time that Python does not have: {error}") from error


READERS: dict[type, Decode] = {
    IntegerType: integer,
    TextType: text,
    FloatType: floating,
    BooleanType: boolean,
    DecimalType: decimal,
    BytesType: binary,
    DateType: day,
    DateTimeType: moment,
}
