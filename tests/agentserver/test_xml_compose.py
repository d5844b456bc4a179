"""Composed messages: the same as if the pump had written them and read them again."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml.etree import _Element as Element

from agentix.agentserver.errors import Malformed, MalformedKind
from agentix.agentserver.payload import PayloadCodec, describe_record
from agentix.agentserver.payload.types import xmlify
from agentix.agentserver.xml.envelope import build_envelope, canonical, compose, open_envelope
from agentix.agentserver.xml.parser import MessageLimits, parse_strict
from tests.agentserver.xml_samples import ADD, CORE, ENVELOPE, LIMITS, THREAD, add_codec
from tests.agentserver.xml_strategies import elements, limits, outcome

agents = st.sampled_from(
    ["calculator.add", "ext", "", "a b", " a", "<&>", "\u00e4", "a\r", "x\x00"]
)
threads = st.sampled_from([THREAD, "", "t t", "]]>", "\n", THREAD.upper()])


def parsed(payload: str, limits: MessageLimits = LIMITS) -> Element:
    """Parse a payload as the element of an emission, with text after it."""
    return parse_strict(f"<w>{payload} tail</w>".encode(), limits)[0]


def assert_same(
    sender: str,
    to: str | None,
    thread: str,
    payload: str,
    limits: MessageLimits,
    repairs: list[str],
) -> None:
    """Assert that composing gives what writing and reading gives."""
    try:
        parsed(payload, limits)
    except Malformed:  # beyond the limits
        return
    composed = outcome(
        lambda: compose(sender, to, thread, parsed(payload, limits), limits, repairs)
    )
    read = outcome(
        lambda: open_envelope(
            build_envelope(sender, to, thread, parsed(payload, limits), repairs), limits
        )
    )
    assert composed == read


@settings(max_examples=600, deadline=None)
@given(elements, st.one_of(st.just(LIMITS), limits))
def test_any_payload_is_composed_as_it_would_be_read(payload: str, limits: MessageLimits) -> None:
    assert_same("a", "b", THREAD, payload, limits, [])


@settings(max_examples=400, deadline=None)
@given(
    st.integers(1, 12), st.integers(0, 40), st.integers(0, 9), st.tuples(*[st.integers(0, 9)] * 4)
)
def test_limits_are_the_same_for_composed_messages(
    depth: int, wide: int, attributes: int, room: tuple[int, int, int, int]
) -> None:
    named = "".join(f' a{number}="{number}"' for number in range(attributes))
    innermost = f"<d{named}>{'<i/>' * wide}</d>"
    payload = "<d>" * (depth - 1) + innermost + "</d>" * (depth - 1)
    limits = MessageLimits(
        depth=depth + room[0],
        elements=depth + wide + room[1],
        attributes=attributes + room[2],
        namespaces=room[3],
    )
    assert_same("a", None, THREAD, payload, limits, [])


@settings(max_examples=200, deadline=None)
@given(agents, st.one_of(st.none(), agents), threads, st.sampled_from([[], ["closed <a>"]]))
def test_any_names_are_composed_as_they_would_be_read(
    sender: str, to: str | None, thread: str, repairs: list[str]
) -> None:
    assert_same(sender, to, thread, "<result>42</result>", LIMITS, repairs)


@xmlify
@dataclass
class Note:
    title: str
    lines: list[str]


@settings(max_examples=100, deadline=None)
@given(st.text(), st.lists(st.text(), max_size=40))
def test_a_composed_payload_decodes_to_the_same_values(title: str, lines: list[str]) -> None:
    codec = PayloadCodec("notes.add.note", describe_record(Note))
    try:
        written = canonical(codec.encode({"title": title, "lines": lines})).decode()
    except ValueError:  # a character that XML does not have
        return
    payload = parsed(written)
    envelope = compose("a", "notes.add", THREAD, payload, LIMITS)
    again = open_envelope(envelope.canonical, LIMITS)
    assert codec.validate(envelope.payload)
    assert codec.validate(again.payload)
    assert codec.decode(envelope.payload) == codec.decode(again.payload)
    assert codec.decode(again.payload) == {"title": title, "lines": lines}


def test_an_ordinary_payload_is_not_parsed_again() -> None:
    payload = parsed(ADD)
    envelope = compose("ext", "calculator.add", THREAD, payload, LIMITS)
    assert envelope.payload is payload
    assert envelope == open_envelope(envelope.canonical, LIMITS)._replace(payload=payload)
    assert add_codec().validate(payload)


@pytest.mark.parametrize(
    "payload",
    [f'<huh xmlns="{CORE}"/>', '<p:r xmlns:p="urn:p"/>', '<r xmlns:p="urn:p" p:a="1"/>'],
)
def test_a_payload_with_namespaces_is_parsed_again(payload: str) -> None:
    given = parsed(payload)
    envelope = compose("core", "ext", THREAD, given, LIMITS)
    assert envelope.payload is not given
    assert canonical(envelope.payload) == canonical(given)


def test_a_payload_of_the_envelopes_own_namespace_is_refused() -> None:
    with pytest.raises(Malformed) as raised:
        compose("a", "b", THREAD, parsed(f'<meta xmlns="{ENVELOPE}"/>'), LIMITS)
    assert raised.value.kind is MalformedKind.ENVELOPE


def test_a_message_that_is_over_the_size_only_with_its_envelope_is_refused() -> None:
    payload = parsed(f"<result>{'x' * 100}</result>")
    size = len(build_envelope("a", "b", THREAD, payload))
    assert compose("a", "b", THREAD, payload, MessageLimits(size=size)).payload is payload
    with pytest.raises(Malformed) as raised:
        compose("a", "b", THREAD, payload, MessageLimits(size=size - 1))
    assert raised.value.kind is MalformedKind.TOO_LARGE
