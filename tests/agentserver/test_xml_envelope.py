"""Envelopes: what is one, what it says, and the exact bytes of those that the pump writes."""

import pytest
from lxml import etree

from agentix.agentserver.errors import Malformed, MalformedKind
from agentix.agentserver.names import is_thread_id
from agentix.agentserver.xml.envelope import (
    CannedText,
    build_envelope,
    canonical,
    huh,
    open_envelope,
    read_emission,
)
from tests.agentserver.xml_samples import (
    ADD,
    ADD_ROOT,
    CORE,
    ENVELOPE,
    LIMITS,
    META,
    THREAD,
    add_codec,
    message,
)


def refused(data: bytes) -> MalformedKind:
    """Return why bytes are refused as a message."""
    with pytest.raises(Malformed) as raised:
        open_envelope(data, LIMITS)
    return raised.value.kind


def test_a01_an_answer_has_exactly_these_bytes() -> None:
    (result,) = read_emission(b"<result>42</result>", LIMITS).payloads
    assert build_envelope("calculator.add", "ext", THREAD, result) == (
        b'<message xmlns="https://xml-pipeline.org/ns/envelope/v1"><meta><from>calculator.add'
        b"</from><to>ext</to><thread>550e8400-e29b-41d4-a716-446655440000</thread></meta>"
        b'<result xmlns="">42</result></message>'
    )


def test_a_message_says_who_sends_what_to_whom() -> None:
    meta = f"<from>ext</from><to>calculator.add</to><thread>{THREAD}</thread>"
    envelope = open_envelope(message(ADD, meta), LIMITS)
    assert (envelope.sender, envelope.to, envelope.thread) == ("ext", "calculator.add", THREAD)
    assert envelope.payload.tag == ADD_ROOT
    assert envelope.canonical == message(ADD, meta)
    assert envelope.repairs == ()


def test_a_meta_may_carry_elements_of_others() -> None:
    meta = f'{META}<seen xmlns="urn:audit">1</seen>'
    assert open_envelope(message(ADD, meta), LIMITS).thread == THREAD


def test_white_space_is_no_part_of_a_name() -> None:
    meta = f"<from>\n ext\t</from><to> a  b </to><thread>\r\n{THREAD} </thread>"
    envelope = open_envelope(message(ADD, meta), LIMITS)
    assert (envelope.sender, envelope.to, envelope.thread) == ("ext", "a b", THREAD)


def test_white_space_of_other_alphabets_is_part_of_a_name() -> None:
    envelope = open_envelope(
        message(ADD, f"<from>\u00a0ext</from><thread>{THREAD}</thread>"), LIMITS
    )
    assert envelope.sender == "\u00a0ext"


def test_a38_a_message_without_a_thread_gets_a_fresh_one() -> None:
    envelope = open_envelope(message(ADD, "<from>ext</from><to>x</to>"), LIMITS)
    assert envelope.thread is None
    written = etree.fromstring(envelope.canonical).findtext(f".//{{{ENVELOPE}}}thread")
    assert written is not None
    assert is_thread_id(written)
    again = open_envelope(envelope.canonical, LIMITS)
    assert (again.sender, again.to, again.thread) == ("ext", "x", written)


@pytest.mark.parametrize("claimed", ["not-a-uuid", THREAD.upper()])
def test_a38_a_thread_is_told_as_it_is_claimed(claimed: str) -> None:
    data = message(ADD, f"<from>ext</from><thread>{claimed}</thread>")
    envelope = open_envelope(data, LIMITS)
    assert (envelope.thread, envelope.canonical) == (claimed, data)


@pytest.mark.parametrize(
    ("payload", "meta"),
    [
        (ADD + ADD, META),
        ("", META),
        ("text", META),
        (ADD + "text", META),
        (ADD, f"<from></from><thread>{THREAD}</thread>"),
        (ADD, f"<from> </from><thread>{THREAD}</thread>"),
        (ADD, "<from>ext</from><thread></thread>"),
        (ADD, "<from>ext</from><thread/>"),
        (ADD, f"<from>ext</from><to/><thread>{THREAD}</thread>"),
        (ADD, f"<from>ext</from><from>ext</from><thread>{THREAD}</thread>"),
        (ADD, f"<thread>{THREAD}</thread>"),
        (ADD, ""),
        (ADD, f"{META}<extra/>"),
        (ADD, f'{META}<extra xmlns=""/>'),
        ("<payload/>", META),
        ("<meta/>", META),
        (message(ADD).decode(), META),
        (f'<e:message xmlns:e="{ENVELOPE}"><e:meta/></e:message>', META),
    ],
)
def test_a41_what_is_no_envelope_is_refused(payload: str, meta: str) -> None:
    assert refused(message(payload, meta)) is MalformedKind.ENVELOPE


@pytest.mark.parametrize(
    "data",
    [
        f'<message xmlns="{ENVELOPE}">{ADD}</message>',
        f'<message xmlns="{ENVELOPE}"/>',
        f"<message><meta>{META}</meta>{ADD}</message>",
        f'<message xmlns="{ENVELOPE}" a="1"><meta>{META}</meta>{ADD}</message>',
        f'<message xmlns="{ENVELOPE}">{ADD}<meta>{META}</meta></message>',
        ADD,
    ],
)
def test_a41_what_has_no_meta_of_its_own_is_refused(data: str) -> None:
    assert refused(data.encode()) is MalformedKind.ENVELOPE


SPELLINGS = [
    '<p b="2" a="1"><x></x><y>1 &lt; 2</y></p>',
    "<p a='1' b = '2' ><x/><y><![CDATA[1 < 2]]></y></p >",
    '<p a="&#49;" b="&#x32;"><x/><y>&#49; &#60; 2</y></p>',
    '<p xmlns:unused="urn:u" a="1" b="2"><x/><y>1 <!-- no -->&lt; 2</y><?no no?></p>',
]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a42_spellings_of_one_message_have_the_same_canonical_bytes(spelling: str) -> None:
    payload = spelling.replace("<p ", '<p xmlns="" ', 1)
    written = open_envelope(b"<?xml version='1.0'?>\n" + message(payload), LIMITS).canonical
    assert written == message('<p xmlns="" a="1" b="2"><x></x><y>1 &lt; 2</y></p>')


def test_a42_the_choice_of_a_prefix_is_kept() -> None:
    one = open_envelope(message('<a:p xmlns:a="urn:p"/>'), LIMITS).canonical
    other = open_envelope(message('<p xmlns="urn:p"/>'), LIMITS).canonical
    assert one == message('<a:p xmlns:a="urn:p"></a:p>')
    assert other == message('<p xmlns="urn:p"></p>')


def test_a43_a_comment_makes_no_gap_in_a_number() -> None:
    payload = f'<{ADD_ROOT} xmlns=""><a>1<!--x-->2</a><b>3<?x?>4</b></{ADD_ROOT}>'
    envelope = open_envelope(message(payload), LIMITS)
    codec = add_codec()
    assert codec.validate(envelope.payload)
    assert codec.decode(envelope.payload) == {"a": 12, "b": 34}
    assert b"<a>12</a><b>34</b>" in envelope.canonical


def test_a_broken_message_is_repaired_and_says_so() -> None:
    envelope = open_envelope(message('<note xmlns="">AT&T 1 < 2</note>'), LIMITS)
    assert envelope.payload.text == "AT&T 1 < 2"
    assert envelope.repairs == (
        "escaped a stray ampersand (1)",
        "escaped a stray less-than sign (1)",
    )


def test_repairs_are_listed_in_the_meta_of_what_is_sent() -> None:
    (payload,) = read_emission(b"<result>1</result>", LIMITS).payloads
    data = build_envelope("a", "b", THREAD, payload, ["closed <x> & went (1)"])
    assert data == message(
        '<result xmlns="">1</result>',
        f"<from>a</from><to>b</to><thread>{THREAD}</thread>"
        f'<huh xmlns="{CORE}"><repair>closed &lt;x&gt; &amp; went (1)</repair></huh>',
    )
    assert open_envelope(data, LIMITS).canonical == data


@pytest.mark.parametrize(
    "payload",
    [
        "<result>1</result>",
        '<größe b="1" a="2">&#13; &lt;&amp;</größe>',
        '<r xmlns:p="urn:p" p:a="1"><p:x/><y xmlns="urn:y"><z xmlns=""/></y></r>',
        '<p:r xmlns:p="urn:p"><x><p:y/></x></p:r>',
        '<r xmlns="urn:p"><x/><y xmlns=""/></r>',
        '<r xmlns:xml="http://www.w3.org/XML/1998/namespace" xml:lang="en"/>',
    ],
)
def test_what_is_sent_is_canonical_already(payload: str) -> None:
    (element,) = read_emission(f"{payload} tail".encode(), LIMITS).payloads
    data = build_envelope("a<&>.b", "<&>\r", "<&>", element)
    envelope = open_envelope(data, LIMITS)
    assert envelope.canonical == data
    assert (envelope.sender, envelope.to, envelope.thread) == ("a<&>.b", "<&>", "<&>")
    assert envelope.payload.tag == element.tag
    assert [child.tag for child in envelope.payload.iter()] == [e.tag for e in element.iter()]
    assert canonical(envelope.payload) == canonical(element)


def test_no_receiver_is_written_where_there_is_none() -> None:
    data = build_envelope("core", None, THREAD, huh(CannedText.MALFORMED, b"x"))
    assert open_envelope(data, LIMITS).to is None


def test_a_payload_with_a_relative_namespace_is_refused() -> None:
    assert refused(message('<p xmlns="a/b"/>')) is MalformedKind.CANONICAL
    (payload,) = read_emission(b'<p xmlns="a/b"/>', LIMITS).payloads
    with pytest.raises(Malformed, match="no canonical form"):
        build_envelope("a", "b", THREAD, payload)
