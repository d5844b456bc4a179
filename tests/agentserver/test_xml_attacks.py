"""Hostile XML: refused at the door and from handlers, with no file opened and nobody called.

The documents are of the kinds that the literature collects (entity expansion, external entities,
XInclude, schema hints, sheer size); the kernel tells whether a file was opened, and a listening
socket whether anybody called.
"""

import ctypes
import gzip
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentix.agentserver.errors import Malformed, MalformedKind
from agentix.agentserver.xml import envelope as envelopes
from agentix.agentserver.xml import parser
from agentix.agentserver.xml.envelope import build_envelope, open_envelope, read_emission
from agentix.agentserver.xml.parser import MessageLimits, parse_strict
from tests.agentserver.xml_samples import ADD, ADD_ROOT, LIMITS, THREAD, add_codec, message

IN_ACCESS_OR_OPEN = 0x01 | 0x20
"""inotify(7): a file was read, or opened."""
XSI = "http://www.w3.org/2001/XMLSchema-instance"


@pytest.fixture
def secret(tmp_path: Path) -> Iterator[Path]:
    """Return a file; whoever opens it fails the test."""
    file = tmp_path / "secret.txt"
    file.write_text("the secret")
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init1(os.O_NONBLOCK)
    assert libc.inotify_add_watch(watch, os.fsencode(file), IN_ACCESS_OR_OPEN) >= 0
    yield file
    with pytest.raises(BlockingIOError):
        os.read(watch, 4_096)
    file.read_text()
    assert os.read(watch, 4_096), "the watch sees who opens the file"
    os.close(watch)


@pytest.fixture
def port() -> Iterator[int]:
    """Return a port on this machine; whoever connects to it fails the test."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server.getsockname()[1]
        with pytest.raises(BlockingIOError):
            server.accept()


def never(*arguments: object, **keywords: object) -> None:
    """Stand for a step that hostile bytes must not reach."""
    raise AssertionError("a step was reached that costs too much")


def refusals(prolog: str, payload: str) -> set[MalformedKind]:
    """Return why a document is refused, at the door and from a handler."""
    kinds = set()
    with pytest.raises(Malformed) as raised:
        open_envelope(prolog.encode() + message(payload), LIMITS)
    kinds.add(raised.value.kind)
    with pytest.raises(Malformed) as raised:
        read_emission(f"{prolog}{payload}".encode(), LIMITS)
    kinds.add(raised.value.kind)
    with pytest.raises(Malformed) as raised:
        read_emission(b"<a/>" + message(f"{prolog}{payload}"), LIMITS)
    kinds.add(raised.value.kind)
    assert open_envelope(message(ADD), LIMITS).canonical == message(ADD)
    return kinds


LAUGHS = "".join(f'<!ENTITY l{level} "{f"&l{level - 1};" * 10}">' for level in range(1, 10))
DOCUMENT_TYPES = {
    "billion laughs": (f'[<!ENTITY l0 "ha">{LAUGHS}]', "<a>&l9;</a>"),
    "billion laughs in an attribute": (f'[<!ENTITY l0 "ha">{LAUGHS}]', '<a b="&l9;"/>'),
    "quadratic blowup": (f'[<!ENTITY x "{"x" * 50_000}">]', f"<a>{'&x;' * 1_000}</a>"),
    "cyclic entities": ('[<!ENTITY a "&b;"><!ENTITY b "&a;">]', "<a>&a;</a>"),
    "small entities": (f'[<!ENTITY x "{"x" * 700}">]', f'<a b="{"&x;" * 600}"/>'),
    "external entity": ('[<!ENTITY x SYSTEM "SECRET">]', "<a>&x;</a>"),
    "external entity by HTTP": ('[<!ENTITY x SYSTEM "SERVER">]', "<a>&x;</a>"),
    "public entity": ('[<!ENTITY x PUBLIC "-//X//X" "SECRET">]', "<a>&x;</a>"),
    "parameter entity": ('[<!ENTITY % x SYSTEM "SECRET"> %x;]', "<a/>"),
    "parameter entity by HTTP": ('[<!ENTITY % x SYSTEM "SERVER"> %x;]', "<a/>"),
    "external subset": ('SYSTEM "SECRET"', "<a/>"),
    "external subset by HTTP": ('PUBLIC "-//X//X" "SERVER"', "<a/>"),
    "attribute default": ('[<!ATTLIST a b CDATA "c">]', "<a/>"),
    "nothing in it": ("", "<a/>"),
}


@pytest.mark.parametrize("name", DOCUMENT_TYPES)
def test_a48_a_document_type_is_refused_before_it_is_parsed(
    name: str, secret: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared, payload = DOCUMENT_TYPES[name]
    declared = declared.replace("SECRET", secret.as_uri())
    declared = declared.replace("SERVER", f"http://127.0.0.1:{port}/evil.dtd")
    assert refusals(f"<!DOCTYPE a {declared}>", payload) == {MalformedKind.DOCTYPE}
    monkeypatch.setattr(envelopes, "parse_strict", never)
    with pytest.raises(Malformed, match="document type"):
        open_envelope(f"<!DOCTYPE a {declared}>".encode() + message(payload), LIMITS)


def test_a48_an_entity_that_nobody_declared_is_text(secret: Path) -> None:
    envelope = open_envelope(message('<a xmlns="">&xxe;</a>'), LIMITS)
    assert envelope.payload.text == "&xxe;"
    assert read_emission(b"<a>&xxe;</a>", LIMITS).payloads[0].text == "&xxe;"


def test_a48_an_inclusion_is_never_followed(secret: Path, port: int) -> None:
    for target in (secret.as_uri(), str(secret), f"http://127.0.0.1:{port}/x"):
        inclusion = (
            f'<x:include xmlns:x="http://www.w3.org/2001/XInclude" parse="text" href="{target}"/>'
        )
        payload = f'<{ADD_ROOT} xmlns=""><a>{inclusion}</a></{ADD_ROOT}>'
        envelope = open_envelope(message(payload), LIMITS)
        assert not add_codec().validate(envelope.payload)
        (element,) = read_emission(payload.encode(), LIMITS).payloads
        assert b"the secret" not in build_envelope("a", "b", THREAD, element)
        assert not add_codec().validate(element)


@pytest.mark.parametrize(
    "hint",
    [
        'xsi:noNamespaceSchemaLocation="SECRET"',
        'xsi:noNamespaceSchemaLocation="SERVER"',
        'xsi:schemaLocation="urn:x SECRET urn:y SERVER"',
    ],
)
def test_a48_a_schema_location_is_never_followed(hint: str, secret: Path, port: int) -> None:
    hint = hint.replace("SECRET", secret.as_uri())
    hint = hint.replace("SERVER", f"http://127.0.0.1:{port}/x.xsd")
    payload = f'<{ADD_ROOT} xmlns="" xmlns:xsi="{XSI}" {hint}><a>7</a></{ADD_ROOT}>'
    envelope = open_envelope(message(payload), LIMITS)
    codec = add_codec()
    assert codec.validate(envelope.payload)
    assert codec.decode(envelope.payload) == {"a": 7}
    assert envelope.canonical == message(f'<{ADD_ROOT} xmlns=""><a>7</a></{ADD_ROOT}>')


@pytest.mark.parametrize(
    ("field", "valid"),
    [
        ('<a xsi:type="xs:string">x</a>', False),
        ('<a xsi:type="xs:string">7</a>', True),
        ('<a xsi:nil="true"/>', False),
        ('<a y:nil="true" xmlns:y="http://www.w3.org/2001/XMLSchema&#45;instance">7</a>', True),
    ],
)
def test_a48_a_message_does_not_steer_its_schema(field: str, valid: bool) -> None:
    payload = (
        f'<{ADD_ROOT} xmlns="" xmlns:xsi="{XSI}" xmlns:xs="http://www.w3.org/2001/XMLSchema">'
        f"{field}</{ADD_ROOT}>"
    )
    envelope = open_envelope(message(payload), LIMITS)
    assert add_codec().validate(envelope.payload) is valid
    assert b"instance" not in envelope.canonical


SIZES: dict[str, Callable[[], str]] = {
    "65 levels": lambda: "<a>" * 65 + "</a>" * 65,
    "300 levels": lambda: "<a>" * 300 + "</a>" * 300,
    "5,000 levels": lambda: "<a>" * 5_000 + "</a>" * 5_000,
    "100,000 levels": lambda: "<a>" * 100_000 + "</a>" * 100_000,
    "300 levels, unfinished": lambda: "<a>" * 300,
    "300,000 levels, unfinished": lambda: "<a>" * 300_000,
    "17 attributes": lambda: f"<a {attributes(17)}/>",
    "60,000 attributes": lambda: f"<a {attributes(60_000)}/>",
    "17 namespaces": lambda: f"<a {attributes(17, 'xmlns:')}/>",
    "30,000 namespaces": lambda: f"<a {attributes(30_000, 'xmlns:')}/>",
    "17 namespaces by level": lambda: (
        "".join(f'<a xmlns:b{i}="urn:x">' for i in range(17)) + "</a>" * 17
    ),
    "10,001 elements": lambda: f"<a>{'<b/>' * 10_000}</a>",
    "200,000 elements": lambda: f"<a>{'<b/>' * 200_000}</a>",
    "200,000 stray signs": lambda: f"<a>{'&' * 200_000}</a>",
    "200,000 comments, unfinished": lambda: f"<a>{'<!--' * 200_000}</a>",
    "11 MB of text": lambda: f"<a>{'x' * 11_000_000}</a>",
}  # fmt: skip


def attributes(count: int, prefix: str = "") -> str:
    """Write so many attributes."""
    return " ".join(f'{prefix}b{number}="urn:u"' for number in range(count))


@pytest.mark.parametrize("name", SIZES)
def test_a48_sizes_are_counted_before_c14n(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    document = SIZES[name]().encode()
    accepted = message(ADD)
    with monkeypatch.context() as patch:
        patch.setattr(envelopes, "canonical", never)
        for data in (document, message(document.decode())):
            with pytest.raises(Malformed) as raised:
                open_envelope(data, LIMITS)
            assert raised.value.kind is not MalformedKind.ENVELOPE
        with pytest.raises(Malformed):
            read_emission(document, LIMITS)
    assert open_envelope(accepted, LIMITS).canonical == accepted


def test_a48_what_is_just_within_the_limits_is_read() -> None:
    for document in (
        "<a>" * 63 + "</a>" * 63,
        f"<a {attributes(16)}/>",
        f"<a {attributes(15, 'xmlns:')}/>",
        f"<a>{'<b/>' * 9_990}</a>",
    ):
        payload = document.replace("<a", '<a xmlns=""', 1)
        assert open_envelope(message(payload), LIMITS).payload.tag == "a"
        assert len(read_emission(document.encode(), LIMITS).payloads) == 1


def test_a48_signs_in_sections_are_no_elements() -> None:
    document = f"<a><![CDATA[{'<=' * 100_000}]]></a>"
    assert len(read_emission(document.encode(), LIMITS).payloads) == 1


SECTIONS = b"<!-- <b/><b/> <![CDATA[ --><![CDATA[<b/><b/><!-- ]]><?pi <b/> <!-- ?>"


@pytest.mark.parametrize("text", [SECTIONS * 9, b"&lt;" * 99], ids=["sections", "references"])
def test_a48_what_is_within_the_limits_is_parsed_whatever_its_bytes(text: bytes) -> None:
    limits = MessageLimits(elements=100)
    assert len(parse_strict(b"<a>" + text + b"<b/>" * 99 + b"</a>", limits)) == 99
    with pytest.raises(Malformed) as raised:
        parse_strict(b"<a>" + text + b"<b/>" * 100 + b"</a>", limits)
    assert raised.value.kind is MalformedKind.LIMIT


@pytest.mark.parametrize(
    "inner", [b"<b/>", b"<b></b>", b"<b>", b"<!---->", b"<?p?>", b"<![CDATA[]]>"]
)
def test_a48_too_many_tags_are_refused_before_they_are_parsed(
    inner: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parser, "parse_unlimited", never)
    with pytest.raises(Malformed) as raised:
        parse_strict(b"<a>" + inner * 15_000 + b"</a>", LIMITS)
    assert raised.value.kind is MalformedKind.LIMIT


def test_a48_text_with_many_signs_is_repaired() -> None:
    text = "1 < 2 <= 3 << 4\n" * 4_000
    (payload,) = read_emission(f"<a>{text}</a>".encode(), LIMITS).payloads
    assert payload.text == text


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"<a>\x00</a>", MalformedKind.SYNTAX),
        (b"<a>&#0;</a>", MalformedKind.SYNTAX),
        (b"<a>\xc3</a>", MalformedKind.ENCODING),
        (b"<a>\xed\xb0\x80</a>", MalformedKind.ENCODING),
        (gzip.compress(b"<a/>"), MalformedKind.ENCODING),
        ("<a/>".encode("utf-16"), MalformedKind.ENCODING),
    ],
)
def test_a48_bytes_that_are_no_text_are_refused(data: bytes, kind: MalformedKind) -> None:
    for read in (open_envelope, read_emission):
        with pytest.raises(Malformed) as raised:
            read(data, LIMITS)
        assert raised.value.kind is kind


def test_a48_utf_7_is_not_decoded() -> None:
    hidden = "<a/>".encode("utf-7")
    with pytest.raises(Malformed):
        open_envelope(b"<?xml version='1.0' encoding='UTF-7'?>" + hidden, LIMITS)
    with pytest.raises(Malformed):
        read_emission(b"<?xml version='1.0' encoding='UTF-7'?>" + hidden, LIMITS)
