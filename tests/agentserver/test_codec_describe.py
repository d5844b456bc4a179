"""Descriptions: what a class says about its fields, as plain data that no class is needed for."""

import dataclasses
import datetime
import subprocess
import sys
from dataclasses import dataclass, field
from enum import Enum, Flag
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentix.agentserver.errors import RegistrationError
from agentix.agentserver.payload import PayloadCodec, describe_record, from_data, to_data
from agentix.agentserver.payload.text import example
from agentix.agentserver.payload.types import (
    SIMPLE,
    BooleanType,
    BytesType,
    DateTimeType,
    DateType,
    DecimalType,
    EnumType,
    Field,
    FloatType,
    IntegerType,
    ListType,
    LiteralType,
    MapType,
    OptionalType,
    RecordType,
    TextType,
    xmlify,
)
from tests.agentserver.everything import Everything, Point
from tests.agentserver.future_payloads import Shape
from tests.agentserver.xml_samples import AddPayload


class Loop:
    pass


class Rights(Flag):
    READ = 1
    WRITE = 2


class Nothing(Enum):
    pass


def test_every_type_is_described() -> None:
    point = RecordType(
        "Point", (Field("x", IntegerType()), Field("y", IntegerType(), "", False, 0))
    )
    assert describe_record(Everything) == RecordType(
        "Everything",
        (
            Field("integer", IntegerType()),
            Field("text", TextType()),
            Field("number", FloatType()),
            Field("flag", BooleanType()),
            Field("amount", DecimalType()),
            Field("day", DateType()),
            Field("moment", DateTimeType()),
            Field("data", BytesType()),
            Field("word", LiteralType(("a", "b"))),
            Field("color", EnumType(("red", "green"))),
            Field("level", EnumType(("LOW", "HIGH"))),
            Field("items", ListType(IntegerType())),
            Field("table", MapType(ListType(point))),
            Field("point", point),
            Field("user", IntegerType()),
            Field("old", OptionalType(IntegerType()), required=False),
            Field("either", OptionalType(TextType()), required=False),
            Field("noted", OptionalType(IntegerType()), "a note", False, 7),
            Field("counted", IntegerType(), "", False, 2**70),
        ),
    )


def test_documentation_comes_from_where_authors_write_it() -> None:
    docs = {field.name: field.doc for field in describe_record(Shape).fields}
    assert docs == {
        "name": "what it is called",
        "corners": "in any order",
        "color": "the color of the lines",
        "width": "",
        "height": "how high it is",
    }


def test_postponed_annotations_are_resolved() -> None:
    kinds = {field.name: field.type for field in describe_record(Shape).fields}
    corner = RecordType(
        "Point", (Field("x", FloatType(), "to the right"), Field("y", FloatType(), "upwards"))
    )
    assert kinds["corners"] == ListType(corner)
    assert kinds["width"] == OptionalType(IntegerType())


def test_documentation_is_inherited() -> None:
    @xmlify
    @dataclass
    class AddMore(AddPayload):
        c: int = 0  # the third

    docs = [field.doc for field in describe_record(AddMore).fields]
    assert docs == ["the first number", "the second number", "the third"]


def test_a_class_without_source_has_no_documentation() -> None:
    made: type = xmlify(dataclasses.make_dataclass("Made", [("a", int)]))
    assert describe_record(made) == RecordType("Made", (Field("a", IntegerType()),))


def test_documentation_is_one_line_that_xml_can_hold() -> None:
    @xmlify
    class Odd:
        a: Annotated[int, "one\n\x00two\ud800 three"] = 0

    assert describe_record(Odd).fields[0].doc == "one two three"


@pytest.mark.parametrize(
    "default", ["\x00", "x" * 5_000, 2**1_025, b"bytes", Everything, Rights(3)], ids=range(6)
)
def test_a_default_that_can_not_be_shown_is_not(default: object) -> None:
    made: type = xmlify(dataclasses.make_dataclass("Made", [("a", str, field(default=default))]))
    assert describe_record(made).fields[0] == Field("a", TextType(), "", False, None)


@pytest.mark.parametrize(
    ("annotation", "reason"),
    [
        (Any, "Any has no XML form"),
        (object, "object has no XML form"),
        (complex, "complex has no XML form"),
        (int | str, r"int \| str has no XML form"),
        (int | str | None, "has no XML form"),
        (list, "list has no XML form"),
        (dict[int, str], r"dict\[int, str\] has no XML form"),
        (tuple[int, int], "has no XML form"),
        (set[int], "has no XML form"),
        (list[int | None], r"Made.a\[\]: int \| None has no XML form"),
        (dict[str, int | None], r"Made.a\[\]: int \| None has no XML form"),
        (datetime.time, "time has no XML form"),
        (Loop, "Loop has no XML form"),
        (Rights, "Rights has no XML form"),
        (Nothing, "0 values to choose from"),
        (None, "NoneType has no XML form"),
        (Literal[b"a"], "Literal takes str, int and bool, not b'a'"),
        (Literal["a", None], "Literal takes str, int and bool, not None"),
        (Literal["1", 1], "'1' cannot be told apart in XML"),
        (Literal["\x00"], "too long, or none that XML holds"),
        (Literal[2**1024], "too long, or none that XML holds"),
        ("Nowhere", "an annotation cannot be resolved: name 'Nowhere' is not defined"),
    ],
)
def test_other_types_are_refused_with_their_place(annotation: Any, reason: str) -> None:
    made: type = xmlify(dataclasses.make_dataclass("Made", [("a", annotation)]))
    with pytest.raises(RegistrationError, match=reason) as raised:
        describe_record(made)
    assert str(raised.value).startswith("Made") or annotation is Nothing


@xmlify
@dataclass
class Tree:
    children: "list[Tree]"


def test_a_class_that_contains_itself_is_refused() -> None:
    with pytest.raises(RegistrationError, match="Tree contains itself"):
        describe_record(Tree)


def test_a_class_that_its_fields_do_not_make_is_refused() -> None:
    @xmlify
    @dataclass
    class Needy:
        a: int
        seed: dataclasses.InitVar[int]

    @xmlify
    class Own:
        a: int

        def __init__(self) -> None:
            self.a = 1

    with pytest.raises(RegistrationError, match="Needy cannot be made of its fields: missing"):
        describe_record(Needy)
    with pytest.raises(RegistrationError, match="Own cannot be made of its fields: got an unexp"):
        describe_record(Own)


def test_only_marked_classes_are_payloads() -> None:
    class Unmarked(AddPayload):
        pass

    for value in (Point, Unmarked, int, AddPayload(), "AddPayload"):
        with pytest.raises(RegistrationError, match="put @xmlify above it"):
            describe_record(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("cls", [Everything, Shape, AddPayload])
def test_descriptions_travel_as_plain_data(cls: type) -> None:
    record = describe_record(cls)
    assert from_data(to_data(record)) == record


def field_data(**changes: object) -> dict[str, object]:
    """Return the data of a field, with changes."""
    kind = {"kind": "int"}
    return {"name": "a", "type": kind, "doc": "", "required": True, "default": None} | changes


def record_data(*fields: object, **changes: object) -> dict[str, object]:
    """Return the data of a record, with changes."""
    return {"kind": "record", "name": "A", "fields": [*fields]} | changes


MAYBE = {"kind": "Optional", "of": {"kind": "int"}}


def nested(depth: int) -> dict[str, object]:
    """Return the data of a list in a list, and so on."""
    return {"kind": "list", "of": nested(depth - 1)} if depth else {"kind": "int"}


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        "record",
        {"kind": "int"},
        {"kind": ["record"]},
        record_data(name="a b"),
        record_data(name="a" * 201),
        record_data(name=1),
        record_data(fields=None),
        record_data(fields={}),
        record_data(1),
        record_data(field_data(), field_data()),
        record_data(field_data(name="<a>")),
        record_data(field_data(name="")),
        record_data(field_data(name=None)),
        record_data(field_data(doc="\x00")),
        record_data(field_data(doc="\ud800")),
        record_data(field_data(doc="x" * 4_097)),
        record_data(field_data(doc=None)),
        record_data(field_data(required=1)),
        record_data(field_data(default=[])),
        record_data(field_data(default="\x01")),
        record_data(field_data(default=10**5_000)),
        record_data(field_data(type={"kind": "Literal", "values": [10**5_000]})),
        record_data(field_data(type="int")),
        record_data(field_data(type={"kind": "complex"})),
        record_data(field_data(type={"kind": "int", "of": {"kind": "int"}})),
        record_data(field_data(type={"kind": "list"})),
        record_data(field_data(type={"kind": "list", "of": None})),
        record_data(field_data(type={"kind": "list", "of": MAYBE})),
        record_data(field_data(type={"kind": "Optional", "of": MAYBE})),
        record_data(field_data(type={"kind": "Enum", "values": []})),
        record_data(field_data(type={"kind": "Enum", "values": [1]})),
        record_data(field_data(type={"kind": "Enum", "values": ["a", "a"]})),
        record_data(field_data(type={"kind": "Enum", "values": ["\x00"]})),
        record_data(field_data(type={"kind": "Literal", "values": ["1", 1]})),
        record_data(field_data(type={"kind": "Literal", "values": [None]})),
        record_data(field_data(type={"kind": "Literal", "values": "ab"})),
        record_data(field_data(type={"kind": "Literal", "values": [*range(1_001)]})),
        record_data(*(field_data(name=f"a{number}") for number in range(1_001))),
        record_data(field_data(type=nested(20))),
    ],
)
def test_data_that_describes_no_record_is_refused(data: object) -> None:
    with pytest.raises(RegistrationError):
        from_data(data)


WORDS = [
    *SIMPLE,
    "record",
    "list",
    "dict",
    "Optional",
    "Literal",
    "Enum",
    "of",
    "kind",
    "\x00",
    "<",
]
ATOMS = (
    st.sampled_from(WORDS) | st.none() | st.booleans() | st.integers() | st.floats() | st.binary()
)
DATA = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(ATOMS, inner, max_size=5)
        | st.fixed_dictionaries({"kind": st.sampled_from(WORDS), "of": inner})
        | st.fixed_dictionaries({"kind": st.sampled_from(["Literal", "Enum"]), "values": inner})
        | st.fixed_dictionaries(
            {
                "name": st.sampled_from(WORDS),
                "type": inner | st.sampled_from(WORDS).map(lambda word: {"kind": word}),
                "doc": st.just("") | inner,
                "required": st.booleans(),
                "default": st.none() | inner,
            }
        )
    ),
    max_leaves=12,
)


@given(st.lists(DATA, max_size=4), DATA)
@settings(max_examples=150, deadline=None)
def test_whatever_a_worker_sends_is_a_record_or_refused(fields: list[object], data: object) -> None:
    for sent in (data, record_data(*fields)):
        try:
            record = from_data(sent)
        except RegistrationError:
            continue
        codec = PayloadCodec("x.a", record)
        assert codec.validate(codec.encode(example(record)))
        assert codec.prompt("x", "X.")


def test_workers_need_no_lxml() -> None:
    code = (
        "import sys\n"
        "from agentix.agentserver import errors, names\n"
        "from agentix.agentserver.payload import construct, describe, types\n"
        "construct.constructor(types.Reply)\n"
        "sys.exit(any(name.partition('.')[0] == 'lxml' for name in sys.modules))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
