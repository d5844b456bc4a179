"""XSD of a payload, made from the description of its class."""

from typing import Final

from lxml import etree
from lxml.etree import _Element as Element

from agentix.agentserver.errors import RegistrationError
from agentix.agentserver.payload.kinds import (
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
    spell,
)

__all__ = ["compile_schema", "schema"]

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
    """Writes the schema of a payload.

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
    """Compiles a schema.

    Raises:
        RegistrationError: libxml2 refuses it, such as for a name that it does not take.
    """
    try:
        return etree.XMLSchema(etree.fromstring(xsd))
    except etree.XMLSchemaParseError as error:
        raise RegistrationError(f"no schema can be made: {error}") from error


def part(parent: Element, kind: str, /, **attributes: str) -> Element:
    """Adds an element of the schema language."""
    return etree.SubElement(parent, f"{{{XS}}}{kind}", attributes)


def complex_type(record: RecordType) -> Element:
    """Writes the type of a record: its fields, in any order, each at most once."""
    kind = etree.Element(f"{{{XS}}}complexType")
    group = part(kind, "all")
    for field in record.fields:
        add_field(group, field)
    return kind


def add_field(group: Element, field: Field) -> None:
    """Writes one field, with its documentation."""
    required = {} if field.required else {"minOccurs": "0"}
    element = typed(group, field.name, field.type, required)
    if field.doc:
        note = etree.Element(f"{{{XS}}}annotation")
        part(note, "documentation").text = field.doc
        element.insert(0, note)


def typed(group: Element, name: str, kind: FieldType, occurs: dict[str, str]) -> Element:
    """Writes an element of a type."""
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
    """Writes an element that holds its own type."""
    element = part(group, "element", name=name, **occurs)
    element.append(kind)
    return element


def repeated(name: str, kind: FieldType) -> Element:
    """Writes the type of a list: any number of elements of one name."""
    outer = etree.Element(f"{{{XS}}}complexType")
    sequence = part(outer, "sequence")
    typed(sequence, name, kind, {"minOccurs": "0", "maxOccurs": "unbounded"})
    return outer


def choice(kind: LiteralType | EnumType, spellings: list[str]) -> Element:
    """Writes the type of a choice.

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
    """Writes a type by what it allows of another."""
    kind = etree.Element(f"{{{XS}}}simpleType")
    outer = part(kind, "restriction", base=base)
    for facet, value in facets:
        part(outer, facet, value=value)
    return kind
