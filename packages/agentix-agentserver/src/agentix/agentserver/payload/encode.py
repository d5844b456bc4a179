"""Plain values to elements, by closures compiled from the description of a class."""

import base64
import math
from collections.abc import Callable
from typing import Any, TypeAlias

from lxml import etree
from lxml.etree import _Element as Element

from agentix.agentserver.errors import PayloadError
from agentix.agentserver.payload.kinds import (
    BooleanType,
    BytesType,
    FieldType,
    FloatType,
    ListType,
    LiteralType,
    MapType,
    OptionalType,
    Plain,
    RecordType,
    brief,
    spell,
)

__all__ = ["encoder"]

Fill: TypeAlias = Callable[[Element, Any], None]


def encoder(root: str, record: RecordType) -> Callable[[Plain], Element]:
    """Compiles what writes a payload.

    Returns:
        A function that raises PayloadError for a value that XML can not hold; whether the element
        is valid is for the schema to say.
    """
    fill = record_filler(record)

    def encode(plain: Plain) -> Element:
        element = etree.Element(root)
        fill(element, plain)
        return element

    return encode


def filler(kind: FieldType) -> Fill:
    """Compiles what writes a value of a type into its element."""
    match kind:
        case OptionalType(inner):
            return filler(inner)
        case RecordType():
            return record_filler(kind)
        case ListType(item):
            return list_filler(filler(item))
        case MapType(value):
            return map_filler(filler(value))
        case FloatType():
            return text_filler(spell_float)
        case BytesType():
            return text_filler(lambda value: base64.b64encode(value).decode("ascii"))
        case BooleanType() | LiteralType():
            return text_filler(spell)
        case _:
            return text_filler(str)


def record_filler(record: RecordType) -> Fill:
    """Compiles what writes a record; None is written by leaving the field out."""
    fills = {field.name: filler(field.type) for field in record.fields}
    silent = {
        field.name
        for field in record.fields
        if isinstance(field.type, OptionalType) and field.default is None
    }

    def fill(element: Element, plain: Plain) -> None:
        for name, value in plain.items():
            if name not in fills:
                raise PayloadError(f"{record.name} has no field {brief(name)}")
            if value is not None:
                fills[name](etree.SubElement(element, name), value)
            elif name not in silent:
                raise PayloadError(f"{record.name}.{name} is None, which its default replaces")

    return fill


def list_filler(item: Fill) -> Fill:
    """Compiles what writes a list."""

    def fill(element: Element, values: list[Any]) -> None:
        for value in values:
            item(etree.SubElement(element, "item"), value)

    return fill


def map_filler(inner: Fill) -> Fill:
    """Compiles what writes a dict."""
    key = text_filler(str)

    def fill(element: Element, values: dict[str, Any]) -> None:
        for name, value in values.items():
            entry = etree.SubElement(element, "entry")
            key(etree.SubElement(entry, "key"), name)
            inner(etree.SubElement(entry, "value"), value)

    return fill


def text_filler(write: Callable[[Any], str]) -> Fill:
    """Compiles what writes a value as text."""

    def fill(element: Element, value: Any) -> None:
        try:
            element.text = write(value)
        except ValueError as error:  # control characters, and halves of surrogate pairs
            raise PayloadError(f"{brief(value)} has no form in XML: {error}") from error

    return fill


def spell_float(value: float) -> str:
    """Gives the text by which XML spells a float."""
    if math.isfinite(value):
        return repr(float(value))
    return "NaN" if math.isnan(value) else "INF" if value > 0 else "-INF"
