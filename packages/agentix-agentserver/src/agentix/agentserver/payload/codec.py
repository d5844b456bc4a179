"""Codecs: the XML schema of a payload class, and its values to XML and back."""

import base64
import datetime
import math
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from lxml import etree
from lxml.etree import _Element as Element

from agentix.agentserver.errors import PayloadError, RegistrationError
from agentix.agentserver.names import collapse, listener_namespace
from agentix.agentserver.payload.text import example, prompt
from agentix.agentserver.payload.types import (
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
    brief,
    spell,
)

__all__ = [
    "Decode",
    "PayloadCodec",
    "compile_schema",
    "decoder",
    "encoder",
    "schema",
]


class PayloadCodec:
    """The schema, the decoder, the encoder, the example and the prompt of a payload.

    Args:
        root: The root tag, as `names.root_tag` derives it.
        record: The description of the payload class.

    Raises:
        RegistrationError: No schema can be made.
    """

    __slots__ = (
        "_encode",
        "_qualified",
        "_schema",
        "decode",
        "namespace",
        "record",
        "root",
        "xsd",
    )

    def __init__(self, root: str, record: RecordType) -> None:
        self.root = root
        self.record = record
        self.namespace = listener_namespace(root.rpartition(".")[0])
        """The listener's own XML namespace, whose elements are taken for unqualified ones."""
        self._qualified = f"{{{self.namespace}}}{root}"
        self.xsd = schema(root, record)
        """The schema: canonical bytes, the same for the same record."""
        self._schema = compile_schema(self.xsd)
        self.decode: Decode = decoder(record)
        """Reads the plain values of an element that `validate` accepted.

        It raises PayloadError where Python has no value for what the schema allows, such as an
        integer of 5,000 digits.
        """
        self._encode = encoder(root, record)

    def validate(self, element: Element) -> bool:
        """Return whether the schema accepts an element, in place wherever it is in its tree.

        Where the root is in the listener's own namespace, it and what is below it are taken out
        of that namespace first, in the tree itself.
        """
        if element.tag == self._qualified:
            unqualify(element, self.namespace)
        try:
            return self._schema.validate(element)
        except etree.LxmlError:  # a tree that no parser of ours makes
            return False

    def encode(self, plain: Plain) -> Element:
        """Write plain values as an element.

        Raises:
            PayloadError: They have no valid XML form.
        """
        element = self._encode(plain)
        if not self.validate(element):
            raise PayloadError(f"{self.root}: the schema refuses {brief(plain)}")
        return element

    def example(self) -> str:
        """Return a valid payload, in one line."""
        return etree.tostring(self._encode(example(self.record)), encoding="unicode")

    def prompt(self, name: str, description: str) -> str:
        """Tell a language model how to call the listener.

        Args:
            name: The listener's registered name.
            description: What it does, in the words of the organism.
        """
        return prompt(name, description, self.record, self.example())


def unqualify(root: Element, namespace: str) -> None:
    """Take elements out of a namespace."""
    prefix = f"{{{namespace}}}"
    for element in root.iter():
        element.tag = str(element.tag).removeprefix(prefix)


XS: Final = "http://www.w3.org/2001/XMLSchema"

BUILT_IN: Final[dict[type, str]] = {
    IntegerType: "xs:integer",
    TextType: "xs:string",
    FloatType: "xs:double",
    BooleanType: "xs:boolean",
    DecimalType: "xs:decimal",
    BytesType: "xs:base64Binary",
}

DAY: Final = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
PATTERNS: Final[dict[type, tuple[str, str]]] = {
    DateType: ("xs:date", DAY),
    DateTimeType: (
        "xs:dateTime",
        DAY + r"T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?(Z|[+\-][0-9]{2}:[0-9]{2})?",
    ),
}
"""The part of a built-in type that Python has too: years of four digits, microseconds."""


def schema(root: str, record: RecordType) -> bytes:
    """Write the schema of a payload.

    Args:
        root: The root tag.
        record: The description of its class.

    Returns:
        Indented canonical XML, the same bytes for the same description, and so the same bytes
        wherever it is embedded.
    """
    document = etree.Element(f"{{{XS}}}schema", nsmap={"xs": XS})
    element = part(document, "element", name=root)
    element.append(complex_type(record))
    etree.indent(document)
    return etree.tostring(document, method="c14n", exclusive=True, with_comments=False)


def compile_schema(xsd: bytes) -> etree.XMLSchema:
    """Compile a schema.

    Raises:
        RegistrationError: libxml2 refuses it, such as for a name that it does not take.
    """
    try:
        return etree.XMLSchema(etree.fromstring(xsd))
    except etree.XMLSchemaParseError as error:
        raise RegistrationError(f"no schema can be made: {error}") from error


def part(parent: Element, kind: str, /, **attributes: str) -> Element:
    """Add an element of the schema language."""
    return etree.SubElement(parent, f"{{{XS}}}{kind}", attributes)


def complex_type(record: RecordType) -> Element:
    """Write the type of a record: its fields, in any order, each at most once."""
    kind = etree.Element(f"{{{XS}}}complexType")
    group = part(kind, "all")
    for field in record.fields:
        add_field(group, field)
    return kind


def add_field(group: Element, field: Field) -> None:
    """Write one field, with its documentation."""
    required = {} if field.required else {"minOccurs": "0"}
    element = typed(group, field.name, field.type, required)
    if field.doc:
        note = etree.Element(f"{{{XS}}}annotation")
        part(note, "documentation").text = field.doc
        element.insert(0, note)


def typed(group: Element, name: str, kind: FieldType, occurs: dict[str, str]) -> Element:
    """Write an element of a type."""
    match kind:
        case OptionalType(inner):
            return typed(group, name, inner, occurs)
        case RecordType():
            return holding(group, name, occurs, complex_type(kind))
        case ListType(item):
            return holding(group, name, occurs, repeated("item", item))
        case MapType(value):
            entry = RecordType("entry", (Field("key", TextType()), Field("value", value)))
            return holding(group, name, occurs, repeated("entry", entry))
        case LiteralType(values):
            return holding(group, name, occurs, choice(kind, [*map(spell, values)]))
        case EnumType(values):
            return holding(group, name, occurs, choice(kind, [*values]))
        case DateType() | DateTimeType():
            base, pattern = PATTERNS[type(kind)]
            return holding(group, name, occurs, restriction(base, [("pattern", pattern)]))
        case _:
            return part(group, "element", name=name, type=BUILT_IN[type(kind)], **occurs)


def holding(group: Element, name: str, occurs: dict[str, str], kind: Element) -> Element:
    """Write an element that holds its own type."""
    element = part(group, "element", name=name, **occurs)
    element.append(kind)
    return element


def repeated(name: str, kind: FieldType) -> Element:
    """Write the type of a list: any number of elements of one name."""
    outer = etree.Element(f"{{{XS}}}complexType")
    sequence = part(outer, "sequence")
    typed(sequence, name, kind, {"minOccurs": "0", "maxOccurs": "unbounded"})
    return outer


def choice(kind: LiteralType | EnumType, spellings: list[str]) -> Element:
    """Write the type of a choice.

    Integers are compared as numbers. Texts are compared without the white space around them,
    unless that is what tells one from another.
    """
    if all(type(value) is int for value in kind.values):
        base = "xs:integer"
    elif all(text == " ".join(text.split()) for text in spellings):
        base = "xs:token"
    else:
        base = "xs:string"
    return restriction(base, [("enumeration", text) for text in spellings])


def restriction(base: str, facets: list[tuple[str, str]]) -> Element:
    """Write a type by what it allows of another."""
    kind = etree.Element(f"{{{XS}}}simpleType")
    outer = part(kind, "restriction", base=base)
    for facet, value in facets:
        part(outer, facet, value=value)
    return kind


Decode: TypeAlias = Callable[[Element], Any]


def decoder(kind: FieldType) -> Decode:
    """Compile what reads a valid element of a type.

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
    """Compile what reads a record; fields that are absent are left out."""
    reads: dict[Any, Decode] = {field.name: decoder(field.type) for field in record.fields}

    def decode(element: Element) -> dict[Any, Any]:
        return {(name := child.tag): reads[name](child) for child in element[:]}

    return decode


def map_decoder(read: Decode) -> Decode:
    """Compile what reads a dict; the schema allows a key twice, a dict does not."""

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
    """Compile what reads one of several values."""

    def decode(element: Element) -> Any:
        text = element.text or ""
        if text in values:
            return values[text]
        text = collapse(text)
        return values[text] if text in values else values[str(int(text))]

    return decode


def integer(element: Element) -> int:
    """Read xs:integer, which has no largest number; Python reads 4,300 digits."""
    try:
        return int(element.text or "")
    except ValueError as error:
        raise PayloadError(f"an integer that Python does not read: {error}") from error


def text(element: Element) -> str:
    """Read xs:string."""
    return element.text or ""


def floating(element: Element) -> float:
    """Read xs:double."""
    return float(element.text or "")


def boolean(element: Element) -> bool:
    """Read xs:boolean."""
    return (element.text or "").strip() in ("true", "1")


def decimal(element: Element) -> str:
    """Read xs:decimal."""
    return (element.text or "").strip()


def binary(element: Element) -> bytes:
    """Read xs:base64Binary, of which libxml2 lets characters pass that are none of base64."""
    try:
        return base64.b64decode("".join((element.text or "").split()), validate=True)
    except ValueError as error:
        raise PayloadError(f"no base64: {error}") from error


def day(element: Element) -> str:
    """Read xs:date, which has a year 0 that Python lacks."""
    try:
        return datetime.date.fromisoformat((element.text or "").strip()).isoformat()
    except ValueError as error:
        raise PayloadError(f"a date that Python does not have: {error}") from error


def moment(element: Element) -> str:
    """Read xs:dateTime, which has an hour 24 that Python lacks."""
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


Fill: TypeAlias = Callable[[Element, Any], None]


def encoder(root: str, record: RecordType) -> Callable[[Plain], Element]:
    """Compile what writes a payload.

    Returns:
        A function that raises PayloadError for a value that XML cannot hold; whether the element
        is valid is for the schema to say.
    """
    fill = record_filler(record)

    def encode(plain: Plain) -> Element:
        element = etree.Element(root)
        fill(element, plain)
        return element

    return encode


def filler(kind: FieldType) -> Fill:
    """Compile what writes a value of a type into its element."""
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
    """Compile what writes a record; None is written by leaving the field out."""
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
    """Compile what writes a list."""

    def fill(element: Element, values: list[Any]) -> None:
        for value in values:
            item(etree.SubElement(element, "item"), value)

    return fill


def map_filler(inner: Fill) -> Fill:
    """Compile what writes a dict."""
    key = text_filler(str)

    def fill(element: Element, values: dict[str, Any]) -> None:
        for name, value in values.items():
            entry = etree.SubElement(element, "entry")
            key(etree.SubElement(entry, "key"), name)
            inner(etree.SubElement(entry, "value"), value)

    return fill


def text_filler(write: Callable[[Any], str]) -> Fill:
    """Compile what writes a value as text."""

    def fill(element: Element, value: Any) -> None:
        try:
            element.text = write(value)
        except ValueError as error:  # control characters, and halves of surrogate pairs
            raise PayloadError(f"{brief(value)} has no form in XML: {error}") from error

    return fill


def spell_float(value: float) -> str:
    """Return the text by which XML spells a float."""
    if math.isfinite(value):
        return repr(float(value))
    return "NaN" if math.isnan(value) else "INF" if value > 0 else "-INF"
