"""Records: a class with fields, its schema, its example, its prompt, and its values."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import pytest
import xmlschema
from lxml import etree

from agentix.agentserver.errors import PayloadError, RegistrationError
from agentix.agentserver.payload import (
    PayloadCodec,
    constructor,
    describe_record,
    from_data,
    to_data,
    to_plain,
)
from agentix.agentserver.payload.types import Field, IntegerType, RecordType, xmlify
from agentix.agentserver.xml.envelope import read_emission
from tests.agentserver.everything import Everything
from tests.agentserver.future_payloads import Shape
from tests.agentserver.xml_samples import ADD_ROOT, LIMITS, AddPayload, add_codec

XS = "{http://www.w3.org/2001/XMLSchema}"


def parsed(text: str) -> etree._Element:
    """Parse one payload, as from a handler."""
    (payload,) = read_emission(text.encode(), LIMITS).payloads
    return payload


def add(fields: str, start: str = ADD_ROOT) -> etree._Element:
    """Parse a payload for the calculator."""
    return parsed(f"<{start}>{fields}</{start.partition(' ')[0]}>")


def test_a_record_is_validated_decoded_and_constructed() -> None:
    codec = add_codec()
    element = add("<a>7</a><b>35</b>")
    assert codec.validate(element)
    assert codec.decode(element) == {"a": 7, "b": 35}
    assert constructor(AddPayload)({"a": 7, "b": 35}) == AddPayload(7, 35)


def test_an_instance_is_encoded() -> None:
    element = add_codec().encode(to_plain(AddPayload(7, 35)))
    assert etree.tostring(element) == f"<{ADD_ROOT}><a>7</a><b>35</b></{ADD_ROOT}>".encode()


def test_a07_the_schema_says_what_the_class_says() -> None:
    schema = etree.fromstring(add_codec().xsd)
    (root,) = schema.iterchildren(f"{XS}element")
    assert root.get("name") == ADD_ROOT
    children = [*root.iterdescendants(f"{XS}element")]
    assert [dict(child.attrib) for child in children] == [
        {"name": "a", "type": "xs:integer", "minOccurs": "0"},
        {"name": "b", "type": "xs:integer", "minOccurs": "0"},
    ]


def test_a07_two_validators_compile_the_schema_and_agree() -> None:
    codec = add_codec()
    other = xmlschema.XMLSchema(codec.xsd.decode())
    for fields, valid in (("<a>7</a>", True), ("<a>x</a>", False), ("<c/>", False)):
        text = f"<{ADD_ROOT}>{fields}</{ADD_ROOT}>"
        assert codec.validate(etree.fromstring(text)) is other.is_valid(text) is valid


def test_a07_regenerating_gives_identical_bytes() -> None:
    record = describe_record(AddPayload)
    first = PayloadCodec(ADD_ROOT, record).xsd
    again = PayloadCodec(ADD_ROOT, from_data(to_data(record))).xsd
    assert first == again
    canonical = etree.tostring(etree.fromstring(first), method="c14n", exclusive=True)
    assert canonical == first


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("<b>35</b><a>7</a>", AddPayload(7, 35)),
        ("<b>35</b>", AddPayload(0, 35)),
        ("", AddPayload(0, 0)),
        ("\n  <a>\n7 </a>\n  <b>+35</b>\n", AddPayload(7, 35)),
    ],
)
def test_a08_fields_come_in_any_order_or_not_at_all(fields: str, expected: AddPayload) -> None:
    codec = add_codec()
    element = add(fields)
    assert codec.validate(element)
    assert constructor(AddPayload)(codec.decode(element)) == expected


@pytest.mark.parametrize(
    "fields",
    [
        "<a>1</a><a>1</a>",
        "<c>1</c>",
        "7",
        "<a>1</a>7",
        "<A>1</A>",
        "<a><b>1</b></a>",
        "<a x='1'>1</a>",
    ],
)
def test_a08_other_structures_are_refused(fields: str) -> None:
    assert not add_codec().validate(add(fields))


def test_a_required_field_must_be_there() -> None:
    @xmlify
    class Needed:
        a: int

    codec = PayloadCodec("x.needed", describe_record(Needed))
    assert not codec.validate(etree.fromstring("<x.needed/>"))
    assert codec.validate(etree.fromstring("<x.needed><a>1</a></x.needed>"))


def test_a_payload_may_be_in_the_listeners_own_namespace() -> None:
    codec = add_codec()
    own = "https://xml-pipeline.org/ns/listener/calculator.add/v1"
    for text in (
        f'<{ADD_ROOT} xmlns="{own}"><a>7</a><b>35</b></{ADD_ROOT}>',
        f'<p:{ADD_ROOT} xmlns:p="{own}"><p:a>7</p:a><b>35</b></p:{ADD_ROOT}>',
    ):
        element = parsed(text)
        assert codec.validate(element)
        assert codec.decode(element) == {"a": 7, "b": 35}
        assert element.tag == ADD_ROOT


@pytest.mark.parametrize(
    "text",
    [
        f'<{ADD_ROOT} xmlns="urn:other"><a>7</a></{ADD_ROOT}>',
        f'<{ADD_ROOT}><a xmlns="urn:other">7</a></{ADD_ROOT}>',
        f'<{ADD_ROOT} xmlns="https://xml-pipeline.org/ns/listener/other/v1"/>',
        f'<{ADD_ROOT}><a xmlns="https://xml-pipeline.org/ns/listener/calculator.add/v1">7</a></{ADD_ROOT}>',
        "<calculator.add.other/>",
        "<Calculator.add.addpayload/>",
        "<a/>",
    ],
)  # fmt: skip
def test_other_namespaces_and_roots_are_refused(text: str) -> None:
    assert not add_codec().validate(parsed(text))


@xmlify
@dataclass
class Words:
    comment: str
    text: str
    tag: str
    tail: str = ""
    attrib: str = ""
    größe: str = ""
    item: str = ""
    nsmap: int = 0
    self: int = 0
    plain: int = 0


def test_a_field_may_have_any_xml_name() -> None:
    codec = PayloadCodec("x.words", describe_record(Words))
    words = Words("c", "t", "g", "l", "a", "ö", "i", 1, 2, 3)
    element = codec.encode(to_plain(words))
    assert (
        constructor(Words)(codec.decode(parsed(etree.tostring(element, encoding="unicode"))))
        == words
    )


@pytest.mark.parametrize("cls", [AddPayload, Everything, Shape, Words])
def test_a09_the_example_is_valid_for_every_type(cls: type) -> None:
    record = describe_record(cls)
    codec = PayloadCodec(f"x.{cls.__name__.lower()}", record)
    element = parsed(codec.example())
    assert codec.validate(element)
    assert xmlschema.XMLSchema(codec.xsd.decode()).is_valid(codec.example())
    assert {child.tag for child in element} == {field.name for field in record.fields}
    constructor(cls)(codec.decode(element))


def test_a09_the_prompt_says_how_to_call() -> None:
    codec = add_codec()
    assert codec.example() == f"<{ADD_ROOT}><a>40</a><b>2</b></{ADD_ROOT}>"
    assert codec.prompt("calculator.add", "Adds two integers.") == (
        "Tool: calculator.add\n"
        "Description: Adds two integers.\n"
        "Parameters:\n"
        "- a(int) - the first number (optional, default 0)\n"
        "- b(int) - the second number (optional, default 0)\n"
        "Example input:\n"
        f"<{ADD_ROOT}><a>40</a><b>2</b></{ADD_ROOT}>\n"
        "Returns: raw XML\n"
    )


def test_a09_a_changed_field_changes_schema_example_and_prompt() -> None:
    first = RecordType("A", (Field("a", IntegerType(), "one"),))
    second = RecordType("A", (Field("b", IntegerType(), "one"),))
    old, new = PayloadCodec("x.a", first), PayloadCodec("x.a", second)
    assert old.xsd.replace(b'name="a"', b'name="b"') == new.xsd != old.xsd
    assert (old.example(), new.example()) == ("<x.a><a>40</a></x.a>", "<x.a><b>40</b></x.a>")
    assert "- a(int) - one\n" in old.prompt("x", "X.")
    assert "- b(int) - one\n" in new.prompt("x", "X.")


def test_a_prompt_names_the_types_of_all_fields() -> None:
    codec = PayloadCodec("x.everything", describe_record(Everything))
    lines = codec.prompt("x", "X.").splitlines()
    assert lines[3:-3] == [
        "- integer(int)",
        "- text(str)",
        "- number(float)",
        "- flag(bool)",
        "- amount(Decimal)",
        "- day(date)",
        "- moment(datetime)",
        "- data(bytes)",
        "- word(a | b)",
        "- color(red | green)",
        "- level(LOW | HIGH)",
        "- items(list[int])",
        "- table(dict[str, list[Point]])",
        "- table.entry.value.item.x(int)",
        "- table.entry.value.item.y(int) (optional, default 0)",
        "- point(Point)",
        "- point.x(int)",
        "- point.y(int) (optional, default 0)",
        "- user(int)",
        "- old(int) (optional)",
        "- either(str) (optional)",
        "- noted(int) - a note (optional, default 7)",
        f"- counted(int) (optional, default {2**70})",
    ]


def test_a_record_without_fields_takes_an_empty_element() -> None:
    @xmlify
    class Ping:
        pass

    codec = PayloadCodec("x.ping", describe_record(Ping))
    assert codec.example() == "<x.ping/>"
    assert codec.validate(parsed("<x.ping/>"))
    assert not codec.validate(parsed("<x.ping><a/></x.ping>"))
    assert codec.decode(parsed("<x.ping/>")) == {}
    assert "Parameters: none\n" in codec.prompt("x", "Pings.")


def test_documentation_is_in_the_schema() -> None:
    @xmlify
    class Noted:
        a: Annotated[int, "less < than & more"] = 0

    schema = etree.fromstring(PayloadCodec("x.noted", describe_record(Noted)).xsd)
    assert schema.findtext(f".//{XS}documentation") == "less < than & more"


def test_what_libxml2_can_not_compile_is_refused() -> None:
    with pytest.raises(RegistrationError, match="no schema can be made"):
        PayloadCodec("a:b", RecordType("A", ()))


def test_encoding_refuses_what_the_schema_would() -> None:
    codec = add_codec()
    for plain in ({"a": "x"}, {"c": 1}, {"a": None}, {"a": 1.5}, {"a": 10**5_000}):
        with pytest.raises(PayloadError):
            codec.encode(plain)


def instances() -> Iterator[tuple[object, str]]:
    """Return instances that hold what their class does not allow, and what is said of it."""
    yield AddPayload("1", 2), "AddPayload.a takes int, not str"  # type: ignore[arg-type]
    yield AddPayload(True, 2), "AddPayload.a takes int, not bool"
    yield AddPayload(1, None), "AddPayload.b takes int, not NoneType"  # type: ignore[arg-type]
    yield AddPayload(1.0, 2), "AddPayload.a takes int, not float"  # type: ignore[arg-type]
    yield Words(b"x", "", ""), "Words.comment takes str, not bytes"  # type: ignore[arg-type]
    yield Shape("x", [1]), r"Shape.corners\[\] takes Point, not int"  # type: ignore[list-item]
    yield Shape("x", (), "red"), "Shape.corners takes list, not tuple"  # type: ignore[arg-type]
    yield Shape("x", [], "blue"), "Shape.color takes one of .*, not 'blue'"  # type: ignore[arg-type]


@pytest.mark.parametrize(("instance", "reason"), [*instances()])
def test_an_instance_that_holds_something_else_is_refused(instance: object, reason: str) -> None:
    with pytest.raises(PayloadError, match=reason):
        to_plain(instance)


def test_only_payloads_become_plain() -> None:
    with pytest.raises(RegistrationError, match="put @xmlify above it"):
        to_plain(3)
