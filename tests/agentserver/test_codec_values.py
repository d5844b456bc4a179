"""Values: what goes in as a value of a type comes out as the same value, and nothing else does."""

import dataclasses
import datetime
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, Literal

import pytest
import xmlschema
from hypothesis import given, settings
from hypothesis import strategies as st

from agentix.agentserver.errors import PayloadError
from agentix.agentserver.payload import (
    PayloadCodec,
    constructor,
    describe_record,
    from_data,
    to_data,
    to_plain,
)
from agentix.agentserver.payload.types import xmlify
from agentix.agentserver.worker.protocol import pack, unpack
from agentix.agentserver.xml.envelope import build_envelope, canonical, open_envelope, read_emission
from agentix.agentserver.xml.parser import parse_strict
from tests.agentserver.everything import Color, Level
from tests.agentserver.xml_samples import ADD_ROOT, LIMITS, THREAD, add_codec

ROOT = "x.made"


def made_class(annotation: Any) -> type:
    """Make a payload class with one field `value` of a type."""
    made: type = xmlify(dataclasses.make_dataclass("Made", [("value", annotation)]))
    return made


def read(annotation: Any, text: str) -> Any:
    """Read a value of a type from the XML text of its field, by schema, codec and class."""
    made = made_class(annotation)
    codec = PayloadCodec(ROOT, describe_record(made))
    element = parse_strict(f"<{ROOT}><value>{text}</value></{ROOT}>".encode(), LIMITS)
    if not codec.validate(element):
        raise PayloadError("the schema refuses it")
    return constructor(made)(codec.decode(element)).value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (" 7 ", 7),
        ("+7", 7),
        ("-0", 0),
        ("007", 7),
        ("\n\t7\r\n", 7),
        ("9" * 4_300, int("9" * 4_300)),
    ],
    ids=range(6),
)
def test_a44_integers_are_read(text: str, value: int) -> None:
    assert read(int, text) == value


@pytest.mark.parametrize(
    "text",
    ["1_0", "\uff11\uff12", "0x1", "1.0", "", " ", "1e3", "7 7", "--7", "\u00a07", "<a/>"],
)
def test_a44_other_spellings_are_refused(text: str) -> None:
    with pytest.raises(PayloadError):
        read(int, text)


def test_a44_an_integer_of_5000_digits_is_valid_but_not_read() -> None:
    codec = add_codec()
    text = f"<{ADD_ROOT}><a>{'1' * 5_000}</a></{ADD_ROOT}>"
    (element,) = read_emission(text.encode(), LIMITS).payloads
    assert codec.validate(element)
    with pytest.raises(PayloadError, match="an integer that Python does not read"):
        codec.decode(element)


@dataclass(frozen=True)
class Spelling:
    annotation: Any
    text: str
    value: Any


SPELLINGS = [
    Spelling(float, "1e300", 1e300),
    Spelling(float, " .5 ", 0.5),
    Spelling(float, "5.", 5.0),
    Spelling(float, "INF", float("inf")),
    Spelling(float, "-INF", float("-inf")),
    Spelling(bool, "true", True),
    Spelling(bool, " 1 ", True),
    Spelling(bool, "0", False),
    Spelling(Decimal, " 1.50 ", Decimal("1.50")),
    Spelling(datetime.date, " 2026-01-31 ", datetime.date(2026, 1, 31)),
    Spelling(
        datetime.datetime,
        "2026-01-31T12:00:00.5Z",
        datetime.datetime(2026, 1, 31, 12, 0, 0, 500_000, datetime.UTC),
    ),
    Spelling(datetime.datetime, "2026-01-31T12:00:00", datetime.datetime(2026, 1, 31, 12)),
    Spelling(bytes, " aGVs\n bG8= ", b"hello"),
    Spelling(bytes, "", b""),
    Spelling(str, "", ""),
    Spelling(str, "<![CDATA[<&>]]>]]&gt;", "<&>]]>"),
    Spelling(str, " a\t", " a\t"),
    Spelling(Literal["a b", "c"], "\n a  b\n", "a b"),
    Spelling(Literal[" a", "a"], " a", " a"),
    Spelling(Literal[1, 22], " +022 ", 22),
    Spelling(Literal[True, "yes"], "true", True),
    Spelling(Color, "\n red ", Color.RED),
    Spelling(Level, "HIGH", Level.HIGH),
    Spelling(list[int], "<item>1</item>\n<item> 2</item>", [1, 2]),
    Spelling(list[str], "", []),
    Spelling(list[list[int]], "<item><item>1</item></item><item/>", [[1], []]),
    Spelling(dict[str, int], "<entry><value>1</value><key>a</key></entry>", {"a": 1}),
    Spelling(dict[str, int], "", {}),
    Spelling(int | None, "7", 7),
]


@pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda spelling: f"{spelling.text!r}")
def test_spellings_that_are_read(spelling: Spelling) -> None:
    value = read(spelling.annotation, spelling.text)
    assert value == spelling.value
    assert type(value) is type(spelling.value)


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (float, ""),
        (float, "nan"),
        (float, "Infinity"),
        (float, "1_0"),
        (float, "0x1p3"),
        (bool, "True"),
        (bool, "yes"),
        (bool, ""),
        (Decimal, "1e5"),
        (Decimal, "NaN"),
        (Decimal, ""),
        (datetime.date, "0000-01-01"),
        (datetime.date, "2026-02-30"),
        (datetime.date, "2026-01-31Z"),
        (datetime.date, "20260131"),
        (datetime.date, "2026-W01-1"),
        (datetime.date, "-2026-01-31"),
        (datetime.datetime, "2026-01-31"),
        (datetime.datetime, "2026-01-31 12:00:00"),
        (datetime.datetime, "2026-01-31T12:00"),
        (datetime.datetime, "2026-01-31T12:00:00.1234567"),
        (datetime.datetime, "2026-01-31T25:00:00"),
        (datetime.datetime, "2026-01-31T12:00:00+15:00"),
        (bytes, "a"),
        (bytes, "****"),
        (bytes, "aGVsbG8_"),
        (Literal["a"], "A"),
        (Literal[" a", "a"], "a "),
        (Literal[1], "true"),
        (Color, "RED"),
        (Level, "1"),
        (list[int], "<item>x</item>"),
        (list[int], "<other>1</other>"),
        (list[int], "1"),
        (dict[str, int], "<entry><key>a</key></entry>"),
        (dict[str, int], "<entry><key>a</key><value>1</value><value>1</value></entry>"),
        (int | None, ""),
    ],
)
def test_spellings_that_are_refused(annotation: Any, text: str) -> None:
    with pytest.raises(PayloadError, match=r"the schema refuses|Python does not have|no base64"):
        read(annotation, text)


def test_a_key_given_twice_is_refused() -> None:
    entry = "<entry><key>a</key><value>1</value></entry>"
    with pytest.raises(PayloadError, match="the key 'a' is given twice"):
        read(dict[str, int], entry + entry)


def test_an_absent_optional_is_none() -> None:
    made = made_class(int | None)
    assert constructor(made)({}).value is None
    codec = PayloadCodec(ROOT, describe_record(made))
    assert canonical(codec.encode({"value": None})) == f"<{ROOT}></{ROOT}>".encode()


def test_none_is_not_written_where_a_default_would_replace_it() -> None:
    @xmlify
    class Limited:
        limit: int | None = 10

    codec = PayloadCodec("x.limited", describe_record(Limited))
    with pytest.raises(PayloadError, match=r"Limited\.limit is None, which its default replaces"):
        codec.encode(to_plain(Limited(None)))


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (str, "\x00"),
        (str, "\x1b"),
        (str, "\ud800"),
        (str, "\ufffe"),
        (Decimal, Decimal("NaN")),
        (Decimal, Decimal("Infinity")),
        (Decimal, Decimal("1E+5000")),
        (datetime.date, datetime.datetime(2026, 1, 31)),
        (
            datetime.datetime,
            datetime.datetime(2026, 1, 31, tzinfo=datetime.timezone(datetime.timedelta(hours=15))),
        ),
        (
            datetime.datetime,
            datetime.datetime(2026, 1, 31, tzinfo=datetime.timezone(datetime.timedelta(seconds=1))),
        ),
        (float, 10**400),
        (dict[str, int], {1: 1}),
        (dict[str, int], {"\x00": 1}),
        (Color, "red"),
        (Literal[1], True),
    ],
)
def test_values_without_an_xml_form_are_refused(annotation: Any, value: Any) -> None:
    made = made_class(annotation)
    codec = PayloadCodec(ROOT, describe_record(made))
    with pytest.raises(PayloadError):
        codec.encode(to_plain(made(value)))


def test_an_integer_of_5000_digits_is_not_written() -> None:
    made: Any = made_class(int)
    codec = PayloadCodec(ROOT, describe_record(made))
    with pytest.raises(PayloadError, match="a int has no form in XML"):
        codec.encode(to_plain(made(10**5_000)))


XML_TEXT = st.text(
    st.characters(
        exclude_categories=["Cs"],
        exclude_characters=[chr(n) for n in (*range(9), 11, 12, *range(14, 32), 0xFFFE, 0xFFFF)],
    ),
    max_size=40,
)
OFFSETS = st.integers(-14 * 60, 14 * 60).map(
    lambda minutes: datetime.timezone(datetime.timedelta(minutes=minutes))
)
MOMENTS = st.datetimes(timezones=st.none() | OFFSETS).map(lambda moment: moment.replace(fold=0))
SIMPLE: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers() | st.integers(-(10**60), 10**60)),
    (str, XML_TEXT),
    (float, st.floats()),
    (bool, st.booleans()),
    (Decimal, st.decimals(-(10**40), 10**40, allow_nan=False)),
    (datetime.date, st.dates()),
    (datetime.datetime, MOMENTS),
    (bytes, st.binary(max_size=40)),
    (Literal["a", " b ", "\r\n", 3, True], st.sampled_from(["a", " b ", "\r\n", 3, True])),
    (Literal[1, -22], st.sampled_from([1, -22])),
    (Color, st.sampled_from(Color)),
    (Level, st.sampled_from(Level)),
]


@xmlify
@dataclass
class Inner:
    name: str
    amount: Decimal | None
    levels: list[Level]


@xmlify
@dataclass
class Outer:
    matrix: list[list[float]]
    table: dict[str, list[Inner]]
    inner: Inner
    tables: list[dict[str, bytes]]
    moment: datetime.datetime | None
    choice: Literal["a", " b "] | None
    words: list[str] | None = None


INNER = st.builds(
    Inner, XML_TEXT, st.none() | st.decimals(-1000, 1000), st.lists(st.sampled_from(Level))
)
OUTER = st.builds(
    Outer,
    st.lists(st.lists(st.floats(), max_size=3), max_size=3),
    st.dictionaries(XML_TEXT, st.lists(INNER, max_size=2), max_size=3),
    INNER,
    st.lists(st.dictionaries(XML_TEXT, st.binary(max_size=9), max_size=2), max_size=2),
    st.none() | MOMENTS,
    st.sampled_from(["a", " b ", None]),
    st.none() | st.lists(XML_TEXT, max_size=2),
)


OUTER_CODEC = PayloadCodec(ROOT, describe_record(Outer))
OUTER_SCHEMA = xmlschema.XMLSchema(OUTER_CODEC.xsd.decode())


def same(value: Any) -> str:
    """Write a value so that NaN is itself, and so are the two zeros."""
    return repr(value)


def normal(value: Any) -> Any:
    """Write each decimal in a value without an exponent, as XML has none."""
    match value:
        case Decimal():
            return Decimal(format(value, "f"))
        case list():
            return [*map(normal, value)]
        case dict():
            return {key: normal(part) for key, part in value.items()}
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            parts = {f.name: normal(getattr(value, f.name)) for f in dataclasses.fields(value)}
            return type(value)(**parts)
        case _:
            return value


def travelled(data: Any) -> Any:
    """Send plain data through MessagePack, as between pump and worker."""
    return unpack(pack(data))


@lru_cache
def codec_of(cls: type) -> PayloadCodec:
    """Make a codec of what a worker would send about a class."""
    return PayloadCodec(ROOT, from_data(travelled(to_data(describe_record(cls)))))


def through_xml(cls: type, instance: Any) -> Any:
    """Send an instance through description, encoder, envelope, C14N, parser, schema, decoder."""
    codec = codec_of(cls)
    element = codec.encode(to_plain(instance))
    data = build_envelope("a", "b", THREAD, element)
    envelope = open_envelope(data, LIMITS)
    assert envelope.canonical == data
    assert codec.validate(envelope.payload)
    return constructor(cls)(travelled(codec.decode(envelope.payload)))


@pytest.mark.parametrize(("annotation", "values"), SIMPLE, ids=lambda value: str(value)[:30])
def test_every_type_survives_xml_c14n_and_schema(
    annotation: Any, values: st.SearchStrategy[Any]
) -> None:
    made: Any = made_class(annotation)

    @settings(max_examples=40, deadline=None)
    @given(values)
    def check(value: Any) -> None:
        sent = made(value)
        assert same(through_xml(made, sent)) == same(normal(sent))

    check()


@settings(max_examples=60, deadline=None)
@given(OUTER)
def test_records_of_records_survive_xml_c14n_and_schema(instance: Outer) -> None:
    assert same(through_xml(Outer, instance)) == same(normal(instance))


@settings(max_examples=30, deadline=None)
@given(OUTER)
def test_two_validators_accept_what_is_encoded(instance: Outer) -> None:
    document = canonical(OUTER_CODEC.encode(to_plain(instance))).decode()
    assert OUTER_SCHEMA.is_valid(document)


def test_the_example_of_records_in_records_is_valid() -> None:
    element = parse_strict(OUTER_CODEC.example().encode(), LIMITS)
    assert OUTER_CODEC.validate(element)
    assert OUTER_SCHEMA.is_valid(OUTER_CODEC.example())
    constructor(Outer)(OUTER_CODEC.decode(element))


KEPT = [
    "007",
    "1.50",
    "true",
    " a ",
    "\r\n",
    "]]>",
    '<&>"',
    "",
    "\U0001f600",
    "\t",
    "\u00a0",
    "\r",
    "\n\r",
]


@pytest.mark.parametrize("text", KEPT)
def test_a45_texts_are_kept_exactly(text: str) -> None:
    made: Any = made_class(str)
    assert through_xml(made, made(text)).value == text


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), -0.0, 5e-324])
def test_a45_floats_are_kept_exactly(value: float) -> None:
    made: Any = made_class(float)
    assert same(through_xml(made, made(value)).value) == same(value)
