"""Hostile XML, from outside and from a handler: one canned answer, and the next message works."""

import gzip
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentix.agentserver import InProcessListener, Organism, Request
from tests.agentserver.conftest import Start, listener
from tests.agentserver.messages import (
    INVALID,
    MALFORMED,
    T,
    add,
    egress,
    envelope,
    huh,
)

RESULT = egress("calculator.add", '<result xmlns="">42</result>')
LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
ATTACKS: dict[str, str] = {
    "external entity": '<!DOCTYPE a [<!ENTITY x SYSTEM "FILE">]><a>&x;</a>',
    "external entity by HTTP": '<!DOCTYPE a [<!ENTITY x SYSTEM "HTTP">]><a>&x;</a>',
    "parameter entity": '<!DOCTYPE a [<!ENTITY % x SYSTEM "FILE"> %x;]><a/>',
    "external subset": '<!DOCTYPE a SYSTEM "HTTP"><a/>',
    "billion laughs": f'<!DOCTYPE a [<!ENTITY l0 "ha">{LAUGHS}]><a>&l9;</a>',
    "quadratic blowup": f'<!DOCTYPE a [<!ENTITY x "{"x" * 9999}">]><a>{"&x;" * 9999}</a>',
    "attribute entities": f'<!DOCTYPE a [<!ENTITY x "{"x" * 99}">]><a b="{"&x;" * 999}"/>',
    "attribute default": '<!DOCTYPE a [<!ATTLIST a b CDATA "c">]><a/>',
    "depth": "<a>" * 5_000 + "</a>" * 5_000,
    "elements": f"<a>{'<b/>' * 20_000}</a>",
    "attributes": "<a" + "".join(f' a{n}="{n}"' for n in range(50_000)) + "/>",
    "namespaces": "<a" + "".join(f' xmlns:a{n}="u:{n}"' for n in range(20_000)) + "/>",
    "text": f"<a>{'x' * 11_000_000}</a>",
    "control character": "<a>\x00</a>",
    "relative namespace": '<a xmlns="relative/uri"/>',
}


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file that nobody may read."""
    path = tmp_path / "secret"
    path.write_text("the secret")
    return path


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """A server that nobody may connect to."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


@pytest.fixture
async def hostile(start: Start) -> Organism:
    """An organism with a listener that returns what its payload holds, whatever that is."""
    organism = await start(listener("tool"))
    organism.add_in_process(InProcessListener("hostile", "Attacks.", returned))
    return organism


OUTPUT: list[bytes] = []


async def returned(request: Request) -> bytes:
    return OUTPUT[0]


def attack(name: str, secret: Path, server: socket.socket) -> str:
    """Return an attack, aimed at a file and at a server."""
    url = f"http://127.0.0.1:{server.getsockname()[1]}/x"
    return ATTACKS[name].replace("FILE", secret.as_uri()).replace("HTTP", url)


async def check_attack(organism: Organism, message: bytes, server: socket.socket) -> bytes:
    """Assert one answer of canned words, that nothing was fetched, and that #1 works after it."""
    (reply,) = await organism.call(message, "ext")
    assert f"<error>{MALFORMED}</error>".encode() in reply
    assert b"the secret" not in reply
    assert len(reply) < 2_500
    with pytest.raises(BlockingIOError):
        server.accept()
    assert await organism.call(envelope(add(7, 35)), "ext") == [RESULT]
    return reply


@pytest.mark.parametrize("name", ATTACKS)
async def test_a48_an_attack_at_the_door_is_answered_in_canned_words(
    hostile: Organism, secret: Path, server: socket.socket, name: str
) -> None:
    text = attack(name, secret, server)
    for message in (text.encode(), envelope(text)):
        reply = await check_attack(hostile, message, server)
        assert huh(MALFORMED, message).encode() in reply


@pytest.mark.parametrize("name", ATTACKS)
async def test_a48_an_attack_of_a_handler_is_answered_in_canned_words(
    hostile: Organism, secret: Path, server: socket.socket, name: str
) -> None:
    OUTPUT[:] = [attack(name, secret, server).encode()]
    reply = await check_attack(hostile, envelope('<hostile.x xmlns=""/>'), server)
    assert reply == egress("core", huh(MALFORMED, OUTPUT[0]))


@pytest.mark.parametrize(
    "data",
    [
        b"<a>\xff</a>",
        "<a/>".encode("utf-16"),
        b'<?xml version="1.0" encoding="utf-7"?><a/>',
        gzip.compress(b"<a/>"),
        b"\xed\xa0\x80",
    ],
)
async def test_a48_bytes_of_another_encoding_are_refused(
    hostile: Organism, server: socket.socket, data: bytes
) -> None:
    reply = await check_attack(hostile, data, server)
    assert huh(MALFORMED, data).encode() in reply


async def test_a48_what_would_steer_a_schema_is_taken_away(hostile: Organism) -> None:
    instance = "http://www.w3.org/2001/XMLSchema-instance"
    steered = add(7, 35).replace(
        'xmlns=""', f'xmlns="" xmlns:xsi="{instance}" xsi:noNamespaceSchemaLocation="x.xsd"'
    )
    assert await hostile.call(envelope(steered), "ext") == [RESULT]
    included = envelope(
        add('<x:include xmlns:x="http://www.w3.org/2001/XInclude" href="/etc/passwd"/>', 1)
    )
    assert await hostile.call(included, "ext") == [egress("core", huh(INVALID, included))]


@pytest.mark.parametrize(
    "written",
    [
        add(7, 35),
        "<calculator.add.addpayload xmlns=''><a>7</a><b>35</b></calculator.add.addpayload>",
        add("<![CDATA[7]]>", "&#51;5"),
        add("7<!-- seven -->", 35),
        add(7, 35).replace("<a>", '<a  xmlns:unused="urn:x" >'),
    ],
)
async def test_a42_equal_messages_are_equal_on_the_audit_log(
    hostile: Organism, written: str
) -> None:
    assert await hostile.call(envelope(written), "ext") == [RESULT]
    logged = [event async for event in hostile.history(T)]
    assert [event.xml for event in logged] == [envelope(add(7, 35)), RESULT]


async def test_a43_a_comment_within_a_number_is_no_gap(hostile: Organism) -> None:
    (reply,) = await hostile.call(envelope(add("1<!--x-->2", 0)), "ext")
    assert reply == egress("calculator.add", '<result xmlns="">12</result>')


@pytest.mark.parametrize("number", ["1" * 5_000, "1_0", "\uff11\uff12", "0x1", "1.0", ""])
async def test_a44_what_is_no_number_is_answered(hostile: Organism, number: str) -> None:
    message = envelope(add(number, 0))
    assert await hostile.call(message, "ext") == [egress("core", huh(INVALID, message))]
