"""Two organisms that call each other over real TLS, by their keys."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyotp
import pytest
from lxml import etree
from websockets.asyncio.client import ClientConnection, connect

from agentix.agentserver import Organism, Principal
from agentix.agentserver.credentials import GatewayUser, Identity, TrustedKey, Users, new_secret
from agentix.agentserver.errors import LinkError
from agentix.agentserver.gateway.link import (
    HandshakeServer,
    KeyProof,
    Link,
    begin_handshake,
    read_welcome,
)
from agentix.agentserver.gateway.websocket import Federation, WssGateway, server_context
from tests.agentserver.certificates import Certificate, make_certificate
from tests.agentserver.conftest import Start, listener
from tests.agentserver.messages import FAILED, INVALID, add, egress, envelope, escaped
from tests.agentserver.test_gateway_wss import closed, receive, security

ADD = "<tools.calculator.add.addpayload><a>7</a><b>35</b></tools.calculator.add.addpayload>"


def do(returns: str, seconds: float = 0.0) -> str:
    fields = f"<returns>{escaped(returns)}</returns><seconds>{seconds}</seconds>"
    return f'<doer.dopayload xmlns="">{fields}</doer.dopayload>'


@dataclass
class Pair:
    """An organism that calls, and one that is called."""

    near: Organism
    far: Organism
    port: int
    keys: dict[str, Identity]
    certificate: Certificate
    serving: AsyncExitStack

    async def call(self, returns: str) -> list[bytes]:
        return await self.near.call(envelope(do(returns)), "ext", timeout=30)


Pairing = Callable[..., Awaitable[Pair]]


@pytest.fixture
async def pairing(start: Start, tmp_path: Path) -> AsyncIterator[Pairing]:
    async with AsyncExitStack() as resources:

        async def pairing(allowed: Any = "*", **near: Any) -> Pair:
            keys = {}
            for name in ("near", "far"):
                (tmp_path / name).mkdir()
                keys[name] = Identity.generate(tmp_path / name / "key")
            certificate = make_certificate(tmp_path / "near")
            caller = {
                "name": "caller",
                "trusted_identity": str(keys["near"].public),
                "description": "Calls here.",
                "allowed_root_tags": allowed,
                "timeout_seconds": 5,
            }
            far = await start(listener("doer"), directory=tmp_path / "far", gateways=[caller])
            tls = server_context(certificate.cert, certificate.key)
            der = ssl.PEM_cert_to_DER_cert(certificate.cert.read_text())
            federation = Federation(far, keys["far"], der)
            gateway = WssGateway(far, Users({}), tls, federation=federation)
            serving = await resources.enter_async_context(AsyncExitStack())
            port = await serving.enter_async_context(gateway.serve("127.0.0.1", 0))
            tools = {
                "name": "tools",
                "remote_url": f"wss://127.0.0.1:{port}/",
                "trusted_identity": str(keys["far"].public),
                "description": "The far organism.",
                "ca": "cert.pem",
                "timeout_seconds": 5,
            } | near
            doer = listener("doer", peers=["tools"])
            head = {"name": "near", "identity": "key"}
            organism = await start(
                doer, directory=tmp_path / "near", organism=head, gateways=[tools]
            )
            return Pair(organism, far, port, keys, certificate, serving)

        yield pairing


async def test_listener_of_another_organism_answers(pairing: Pairing) -> None:
    pair = await pairing()
    assert await pair.call(ADD) == [egress("tools", '<result xmlns="">42</result>')]
    (event,) = [
        event
        async for event in pair.far.history(
            next(each.id for each in pair.far.threads() if each.path == ("remote.caller",))
        )
        if event.sender == "calculator.add"
    ]
    assert event.to == "remote.caller"


async def test_many_calls_share_a_connection_and_keep_apart(pairing: Pairing) -> None:
    pair = await pairing()
    calls = [
        pair.near.call(envelope(do(ADD.replace("35", str(n))), thread=None), "ext")
        for n in range(50)
    ]
    for number, replies in enumerate(await asyncio.gather(*calls)):
        assert f'<result xmlns="">{number + 7}</result>' in replies[0].decode()
    roots = [each for each in pair.far.threads() if each.path == ("remote.caller",)]
    assert len(roots) == 50


async def test_all_that_comes_back_is_passed_on(pairing: Pairing) -> None:
    pair = await pairing()
    inner = escaped("<one>1</one><two>2</two>")
    far = f"<tools.doer.dopayload><returns>{inner}</returns></tools.doer.dopayload>"
    assert await pair.call(far) == [
        egress("tools", '<one xmlns="">1</one>'),
        egress("tools", '<two xmlns="">2</two>'),
    ]


async def test_other_organism_may_send_what_it_is_allowed_to(pairing: Pairing) -> None:
    pair = await pairing(allowed=["doer.dopayload"])
    (reply,) = await pair.call(ADD)
    assert f"<error>{INVALID}</error>".encode() in reply
    assert b"<from>tools</from>" in reply
    far = "<tools.doer.dopayload><returns>&lt;a/&gt;</returns></tools.doer.dopayload>"
    assert await pair.call(far) == [egress("tools", '<a xmlns=""></a>')]


async def test_other_organism_is_never_privileged(pairing: Pairing) -> None:
    pair = await pairing()
    meta = '<list-capabilities xmlns="https://xml-pipeline.org/ns/meta/v1"/>'
    message = envelope(meta, sender="remote.caller")
    (reply,) = await pair.far.call(message, Principal("remote.caller", remote=True))
    assert f"<error>{INVALID}</error>".encode() in reply


async def test_organism_with_another_key_is_not_spoken_to(pairing: Pairing, tmp_path: Path) -> None:
    stranger = Identity.generate(tmp_path / "stranger")
    pair = await pairing(trusted_identity=str(stranger.public))
    (reply,) = await pair.call(ADD)
    assert f"<error>{FAILED}</error>".encode() in reply
    assert [each for each in pair.far.threads() if each.path[0] == "remote.caller"] == []


async def test_certificate_that_nobody_vouches_for_is_refused(pairing: Pairing) -> None:
    pair = await pairing(ca=None)
    (reply,) = await pair.call(ADD)
    assert f"<error>{FAILED}</error>".encode() in reply


async def test_connection_is_made_again_after_it_broke(pairing: Pairing) -> None:
    pair = await pairing()
    assert await pair.call(ADD) == [egress("tools", '<result xmlns="">42</result>')]
    await pair.serving.aclose()
    (reply,) = await pair.call(ADD)
    assert f"<error>{FAILED}</error>".encode() in reply
    tls = server_context(pair.certificate.cert, pair.certificate.key)
    der = ssl.PEM_cert_to_DER_cert(pair.certificate.cert.read_text())
    federation = Federation(pair.far, pair.keys["far"], der)
    gateway = WssGateway(pair.far, Users({}), tls, federation=federation)
    async with gateway.serve("127.0.0.1", pair.port):
        assert await pair.call(ADD) == [egress("tools", '<result xmlns="">42</result>')]


async def test_answer_that_does_not_come_meets_the_deadline(pairing: Pairing) -> None:
    pair = await pairing(timeout_seconds=0.5)
    far = "<tools.doer.dopayload><returns>&lt;a/&gt;</returns><seconds>4</seconds>"
    (reply,) = await pair.call(far + "</tools.doer.dopayload>")
    assert f"<error>{FAILED}</error>".encode() in reply


async def open_socket(pair: Pair, resources: AsyncExitStack) -> tuple[ClientConnection, bytes]:
    """Connect as an organism would, by hand; return the server's certificate too."""
    connection = connect(
        f"wss://127.0.0.1:{pair.port}/", ssl=pair.certificate.client(), proxy=None, close_timeout=1
    )
    client = await resources.enter_async_context(connection)
    return client, client.transport.get_extra_info("ssl_object").getpeercert(binary_form=True)


@pytest.fixture
async def resources() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as resources:
        yield resources


async def test_stranger_and_replay_are_refused(
    pairing: Pairing, resources: AsyncExitStack, tmp_path: Path
) -> None:
    pair = await pairing()
    server = pair.keys["far"].public
    client, certificate = await open_socket(pair, resources)
    stranger = Identity.generate(tmp_path / "stranger")
    await client.send(begin_handshake(stranger, server, certificate)[1])
    assert await closed(client) == (1008, "Unknown organism")
    _, first = begin_handshake(pair.keys["near"], server, certificate)
    client, _ = await open_socket(pair, resources)
    await client.send(first)
    assert "<welcome" in str(await receive(client))
    client, _ = await open_socket(pair, resources)
    await client.send(first)
    assert await closed(client) == (1008, "Unknown organism")
    details = [event.detail for event in await security(pair.far)]
    assert details[-1] == "an organism was refused: the message was used already"
    assert len(details) == 2


async def test_frame_that_is_repeated_or_changed_ends_the_link(
    pairing: Pairing, resources: AsyncExitStack
) -> None:
    pair = await pairing()
    near, far = pair.keys["near"], pair.keys["far"].public
    for harm in ("repeat", "change", "garbage"):
        client, certificate = await open_socket(pair, resources)
        greeting, first = begin_handshake(near, far, certificate)
        await client.send(first)
        principal = read_welcome(greeting, str(await receive(client)).encode())
        assert principal == "remote.caller"
        link = Link(near, far, greeting.nonce, "client")
        frame = link.pack(1, [envelope(add(1, 2), sender=principal, thread=None)])
        await client.send(frame)
        number, (reply,) = link.unpack(bytes(await receive(client)))  # type: ignore[arg-type]
        assert number == 1
        assert b'<result xmlns="">3</result>' in reply
        wrong = {"repeat": frame, "change": link.pack(2, [])[:-1] + b"!", "garbage": b"\xc1"}
        await client.send(wrong[harm])
        assert await closed(client) == (1008, "Invalid frame")


async def test_organism_proves_to_a_user_who_it_is(
    pairing: Pairing, resources: AsyncExitStack, tmp_path: Path
) -> None:
    pair = await pairing()
    secret = new_secret()
    users = Users({"ext": GatewayUser(totp_secret=secret, allowed_root_tags="*")})
    tls = server_context(pair.certificate.cert, pair.certificate.key)
    der = ssl.PEM_cert_to_DER_cert(pair.certificate.cert.read_text())
    federation = Federation(pair.far, pair.keys["far"], der)
    gateway = WssGateway(pair.far, users, tls, federation=federation)
    pair.port = await resources.enter_async_context(gateway.serve("127.0.0.1", 0))
    client, certificate = await open_socket(pair, resources)
    code = pyotp.TOTP(secret).now()
    await client.send(f'<authenticate user="ext" totp="{code}" nonce="of the client"/>')
    catalog = etree.fromstring(str(await receive(client)))[-1]
    assert catalog.get("organism") == "fixture"
    key, signature = pair.keys["far"].public, catalog.get("signature", "")
    assert catalog.get("identity") == str(key)
    assert KeyProof("ext", "of the client", certificate).verify(key, signature) is True
    assert KeyProof("ext", "another", certificate).verify(key, signature) is False
    assert KeyProof("ext", "of the client", b"another").verify(key, signature) is False
    assert KeyProof("ext", "of the client", certificate).verify(key, "nonsense") is False


def test_greeting_is_of_no_use_at_another_server(tmp_path: Path) -> None:
    near, far = (Identity.generate(tmp_path / name) for name in ("near", "far"))
    _, first = begin_handshake(near, far.public, b"certificate")
    element = etree.fromstring(first)
    HandshakeServer(far, b"certificate").open(element)
    with pytest.raises(LinkError, match="bad signature"):
        HandshakeServer(far, b"another certificate").open(element)
    with pytest.raises(LinkError, match="bad signature"):
        HandshakeServer(near, b"certificate").open(element)


def test_old_greeting_is_refused(tmp_path: Path) -> None:
    near, far = (Identity.generate(tmp_path / name) for name in ("near", "far"))
    _, first = begin_handshake(near, far.public, b"certificate")
    with pytest.raises(LinkError, match="more than 60 seconds off"):
        HandshakeServer(far, b"certificate", now=lambda: 4e9).open(etree.fromstring(first))


def test_welcome_of_somebody_else_is_refused(tmp_path: Path) -> None:
    near, far, other = (Identity.generate(tmp_path / name) for name in ("near", "far", "other"))
    greeting, _ = begin_handshake(near, far.public, b"certificate")
    assert read_welcome(greeting, HandshakeServer(far, b"").welcome(greeting, "p").encode()) == "p"
    for message in (
        HandshakeServer(other, b"").welcome(greeting, "p").encode(),
        b"<welcome/>",
        b"x",
    ):
        with pytest.raises(LinkError):
            read_welcome(greeting, message)
    assert TrustedKey.from_text(str(far.public)) == far.public
