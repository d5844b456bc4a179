"""The WebSocket gateway, with a real client, real TLS and real users."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyotp
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidMessage
from websockets.protocol import State

from agentix.agentserver import Event, Organism
from agentix.agentserver.credentials import GatewayUser, Users, new_secret
from agentix.agentserver.errors import GatewayError
from agentix.agentserver.gateway.websocket import WssGateway, WssSettings, server_context
from tests.agentserver.certificates import Certificate, make_certificate
from tests.agentserver.conftest import Start, listener
from tests.agentserver.messages import INVALID, MALFORMED, T, add, egress, envelope, huh

SECRETS = {name: new_secret() for name in ("ext", "ext2", "boss", "few")}
DO = '<doer.dopayload xmlns=""><returns>{}</returns><seconds>{}</seconds></doer.dopayload>'


def code(name: str, steps: int = 0) -> str:
    return pyotp.TOTP(SECRETS[name]).at(int(time.time()), counter_offset=steps)


def authenticate(name: str, steps: int = 0) -> str:
    return f'<authenticate user="{name}" totp="{code(name, steps)}"/>'


@dataclass
class Gateway:
    """An organism's open gateway, and how to reach it."""

    organism: Organism
    port: int
    certificate: Certificate
    resources: AsyncExitStack

    async def connect(self) -> ClientConnection:
        context = self.certificate.client()
        url = f"wss://127.0.0.1:{self.port}/"
        client = await connect(url, ssl=context, proxy=None, close_timeout=0.5)
        self.resources.push_async_callback(close, client)
        return client

    async def log_in(self, name: str, steps: int = 0) -> ClientConnection:
        """Log in, and take the catalog."""
        client = await self.connect()
        await client.send(authenticate(name, steps))
        assert "<catalog" in str(await receive(client))
        return client


async def close(client: ClientConnection) -> None:
    """Close a connection that is not closed; Python 3.11.2 cannot abort one twice."""
    if client.state is not State.CLOSED:
        await client.close()


Open = Callable[..., Awaitable[Gateway]]


@pytest.fixture
def certificate(tmp_path: Path) -> Certificate:
    return make_certificate(tmp_path)


@pytest.fixture
async def resources() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as resources:
        yield resources


@pytest.fixture
async def opened(start: Start, certificate: Certificate, resources: AsyncExitStack) -> Open:
    async def opened(settings: WssSettings | None = None, **changes: Any) -> Gateway:
        organism = await start(listener("doer"), **changes)
        users = {
            name: GatewayUser(totp_secret=secret, allowed_root_tags="*", admin=name == "boss")
            for name, secret in SECRETS.items()
        }
        allowed = ("calculator.add.addpayload",)
        users["few"] = GatewayUser(totp_secret=SECRETS["few"], allowed_root_tags=allowed)
        tls = server_context(certificate.cert, certificate.key)
        gateway = WssGateway(organism, Users(users), tls, settings)
        port = await resources.enter_async_context(gateway.serve("127.0.0.1", 0))
        return Gateway(organism, port, certificate, resources)

    return opened


@pytest.fixture
async def gateway(opened: Open) -> Gateway:
    return await opened()


async def receive(client: ClientConnection) -> str | bytes:
    async with asyncio.timeout(20):
        return await client.recv()


async def closed(client: ClientConnection) -> tuple[int, str]:
    """Wait for the end of a connection, and return its code and reason."""
    async with asyncio.timeout(20):
        with suppress(ConnectionClosed):
            while True:
                await client.recv()
    assert client.close_code is not None
    return client.close_code, client.close_reason or ""


async def security(organism: Organism) -> list[Event]:
    """Return the security events so far."""
    seen = []
    last = organism.status()["last_seq"]
    async for event in organism.listen():
        if event.kind == "security":
            seen.append(event)
        if event.seq >= last:
            break
    return seen


async def test_message_is_answered_through_tls(gateway: Gateway) -> None:
    client = await gateway.log_in("ext")
    await client.send(envelope(add(7, 35)).decode())
    answer = egress("calculator.add", '<result xmlns="">42</result>').decode()
    assert await receive(client) == answer
    await client.send(envelope(add(1, 2)))
    assert await receive(client) == answer.replace("42", "3")


async def test_catalog_shows_what_the_user_may_call(gateway: Gateway) -> None:
    catalogs = {}
    for name in ("ext", "few"):
        client = await gateway.connect()
        await client.send(authenticate(name))
        catalogs[name] = str(await receive(client))
    assert catalogs["few"].count("<capability>") == 1
    assert "<root-tag>calculator.add.addpayload</root-tag>" in catalogs["few"]
    assert "<name>researcher</name>" in catalogs["ext"]
    assert catalogs["ext"].count("<capability>") == 4


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (envelope(add(1, 2)).decode(), "First message must be <authenticate/>"),
        ("hello", "First message must be <authenticate/>"),
        (b"\xff\x00", "First message must be <authenticate/>"),
        (f'<authenticate a="{"x" * 5000}"/>', "First message must be <authenticate/>"),
        ("<!DOCTYPE authenticate><authenticate/>", "First message must be <authenticate/>"),
        ('<authenticate user="ext"/>', "Missing TOTP code"),
        ('<authenticate user="ext" totp=""/>', "Missing TOTP code"),
        ('<authenticate totp="123456"/>', "Invalid TOTP"),
        ('<authenticate user="ext" totp="abcdef"/>', "Invalid TOTP"),
        ('<authenticate user="nobody" totp="123456"/>', "Invalid TOTP"),
    ],
)
async def test_a55_first_message_must_log_in(
    gateway: Gateway, first: str | bytes, reason: str
) -> None:
    client = await gateway.connect()
    await client.send(first)
    assert await closed(client) == (1008, reason)


async def test_a55_code_of_one_user_does_not_log_another_in(gateway: Gateway) -> None:
    client = await gateway.connect()
    await client.send(f'<authenticate user="ext2" totp="{code("ext")}"/>')
    assert await closed(client) == (1008, "Invalid TOTP")
    (event,) = await security(gateway.organism)
    assert (event.sender, event.detail) == ("ext2", "a login was refused")


async def test_a55_silence_is_ended(opened: Open) -> None:
    assert WssSettings().authentication_seconds == 15.0
    gateway = await opened(WssSettings(authentication_seconds=0.2))
    client = await gateway.connect()
    assert await closed(client) == (1008, "Authentication timeout")


async def test_a55_code_is_good_once(gateway: Gateway) -> None:
    first = authenticate("ext")
    for expected in (None, (1008, "Invalid TOTP")):
        client = await gateway.connect()
        await client.send(first)
        if expected is None:
            assert "<catalog" in str(await receive(client))
        else:
            assert await closed(client) == expected


async def test_a55_code_may_be_one_step_late_or_early(gateway: Gateway) -> None:
    await gateway.log_in("ext", -1)
    await gateway.log_in("ext2", 1)


@pytest.mark.parametrize(
    "garbage",
    [
        "hello",
        b"\xff\xfe",
        "",
        "<a",
        '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>',
        "<?xml version='1.1'?><a/>",
    ],
)
async def test_a55_later_message_that_is_not_xml_ends_the_connection(
    gateway: Gateway, garbage: str | bytes
) -> None:
    client = await gateway.log_in("ext")
    await client.send(garbage)
    assert await closed(client) == (1008, "Invalid/tampered XML")
    (event,) = await security(gateway.organism)
    assert event.detail == "it sent what is not XML"


async def test_a55_allowed_root_tags_hold_for_every_message(gateway: Gateway) -> None:
    client = await gateway.log_in("few")
    for payload in ('<nosuch.tool.payload xmlns=""/>', DO.format("", 0)):
        message = envelope(payload, sender="few")
        await client.send(message.decode())
        expected = egress("core", huh(INVALID, message), to="few")
        assert await receive(client) == expected.decode()
    await client.send(envelope(add(1, 1), sender="few").decode())
    assert (
        await receive(client)
        == egress("calculator.add", '<result xmlns="">2</result>', to="few").decode()
    )


async def test_a55_plain_websocket_is_refused(gateway: Gateway) -> None:
    with pytest.raises((InvalidMessage, ConnectionError)):
        await connect(f"ws://127.0.0.1:{gateway.port}/", proxy=None)


async def test_a55_old_tls_is_refused(gateway: Gateway) -> None:
    context = gateway.certificate.client()
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    with pytest.warns(DeprecationWarning, match="TLSv1_1 is deprecated"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await connect(f"wss://127.0.0.1:{gateway.port}/", ssl=context, proxy=None)


@pytest.mark.parametrize("claimed", ["ext2", "core", "system", "calculator.add"])
async def test_a40_sender_who_is_not_the_principal_is_refused(
    gateway: Gateway, claimed: str
) -> None:
    client = await gateway.log_in("ext")
    message = envelope(add(1, 2), sender=claimed)
    await client.send(message.decode())
    answer = str(await receive(client))
    assert huh(MALFORMED, message) in answer
    assert "<from>core</from><to>ext</to>" in answer
    (event,) = await security(gateway.organism)
    assert event.detail == f"ext claims to be {claimed!r}"
    events = [event async for event in gateway.organism.history(T)]
    assert events == []


async def test_a39_thread_of_another_user_is_not_shared(gateway: Gateway) -> None:
    first, second = await gateway.log_in("ext"), await gateway.log_in("ext2")
    await first.send(envelope(add(7, 35)).decode())
    await receive(first)
    await second.send(envelope(add(1, 2), sender="ext2").decode())
    answer = str(await receive(second))
    assert '<result xmlns="">3</result>' in answer
    assert T not in answer
    await first.send(envelope(add(2, 2)).decode())
    assert '<result xmlns="">4</result>' in str(await receive(first))


META = '<{} xmlns="https://xml-pipeline.org/ns/meta/v1">{}</{}>'


def query(name: str, capability: str | None = None) -> str:
    inner = "" if capability is None else f"<capability>{capability}</capability>"
    return META.format(name, inner, name)


async def test_a52_meta_queries_depend_on_the_principal(opened: Open) -> None:
    gateway = await opened(meta={"allow_schema_requests": "admin"})
    boss, ext = await gateway.log_in("boss"), await gateway.log_in("ext")
    few = await gateway.log_in("few")
    question = query("request-schema", "calculator.add")
    await boss.send(envelope(question, sender="boss", thread=None).decode())
    answer = str(await receive(boss))
    assert "<from>core</from>" in answer
    content = answer.partition("<content>")[2].partition("</content>")[0]
    unescaped = content.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    assert unescaped.encode() == gateway.organism.describe("calculator.add").xsd
    message = envelope(question, sender="ext")
    await ext.send(message.decode())
    assert await receive(ext) == egress("core", huh(INVALID, message)).decode()
    await few.send(envelope(query("list-capabilities"), sender="few", thread=None).decode())
    listed = str(await receive(few))
    assert listed.count("<capability>") == 1
    assert "<capability>calculator.add</capability>" in listed


async def test_a53_privileged_root_on_the_main_bus_is_dropped(gateway: Gateway) -> None:
    client = await gateway.log_in("boss")
    privileged = '<privileged-msg xmlns="https://xml-pipeline.org/privileged-msg" version="1.0"/>'
    await client.send(envelope(privileged, sender="boss").decode())
    await client.send(envelope(add(1, 2), sender="boss").decode())
    assert '<result xmlns="">3</result>' in str(await receive(client))
    (event,) = await security(gateway.organism)
    assert event.sender == "boss"
    assert "on the main bus" in event.detail


async def test_wrong_message_is_answered_and_the_connection_lives_on(gateway: Gateway) -> None:
    client = await gateway.log_in("ext")
    too_large = envelope("<a>" + "x" * (1 << 20) + "</a>")
    for message in (b"<a/>", envelope("<a/><b/>"), envelope("<a>" * 100 + "</a>" * 100), too_large):
        await client.send(message.decode())
        assert huh(MALFORMED, message) in str(await receive(client))
    await client.send(envelope(add(1, 2)).decode())
    assert '<result xmlns="">3</result>' in str(await receive(client))


async def test_far_too_large_message_ends_the_connection_only(gateway: Gateway) -> None:
    client, other = await gateway.log_in("ext"), await gateway.log_in("ext2")
    await client.send("x" * (2 << 20))
    assert (await closed(client))[0] == 1009
    await other.send(envelope(add(1, 2), sender="ext2", thread=None).decode())
    assert '<result xmlns="">3</result>' in str(await receive(other))


async def test_client_that_goes_in_the_middle_of_a_message_leaves_nothing(
    gateway: Gateway,
) -> None:
    client = await gateway.log_in("ext")
    # The head of a masked text frame of 1,000 bytes, and 10 of them.
    client.transport.write(b"\x81\xfe\x03\xe8" + b"0000" + b"x" * 10)
    client.transport.close()
    await client.wait_closed()
    other = await gateway.log_in("ext2")
    await other.send(envelope(add(1, 2), sender="ext2").decode())
    assert '<result xmlns="">3</result>' in str(await receive(other))


async def test_client_that_goes_while_its_call_runs_leaves_nothing(gateway: Gateway) -> None:
    client = await gateway.log_in("ext")
    await client.send(envelope(DO.format("&lt;done/&gt;", 0.3)).decode())
    async with asyncio.timeout(20):
        async for event in gateway.organism.listen(thread=T):
            if event.kind == "message":
                break
    await client.close()
    async with asyncio.timeout(20):
        async for event in gateway.organism.listen(thread=T):
            if event.sender == "doer":
                break
    assert gateway.organism.pump.running == 0


async def test_flood_waits_in_the_socket(opened: Open) -> None:
    gateway = await opened(WssSettings(in_flight=3))
    client = await gateway.log_in("ext")
    flood = [envelope(DO.format("&lt;a/&gt;", 0.05), thread=None).decode() for _ in range(20)]
    most = 0
    sending = asyncio.gather(*map(client.send, flood))
    for _ in flood:
        assert "<a " in str(await receive(client))
        most = max(most, gateway.organism.pump.running)
    await sending
    assert most <= 3


async def test_slow_reader_is_told_of_a_gap_and_holds_nobody_up(opened: Open) -> None:
    gateway = await opened(limits={"subscriber_events": 5})
    big = "x" * 200_000
    slow, quick = await gateway.log_in("ext"), await gateway.log_in("ext2")
    for _ in range(60):
        await slow.send(envelope(DO.format(f"&lt;a&gt;{big}&lt;/a&gt;", 0), thread=None).decode())
    await quick.send(envelope(add(1, 2), sender="ext2", thread=None).decode())
    assert '<result xmlns="">3</result>' in str(await receive(quick))
    answers = 0
    while "<gap " not in (text := str(await receive(slow))):
        answers += big in text
    assert answers < 60


async def test_reader_that_never_reads_is_cut_off(opened: Open) -> None:
    gateway = await opened(WssSettings(write_seconds=0.3))
    client = await gateway.log_in("ext")
    big = "x" * 500_000
    client.transport.pause_reading()
    for _ in range(40):
        payload = DO.format(f"&lt;a&gt;{big}&lt;/a&gt;", 0)
        await gateway.organism.call(envelope(payload, thread=None), "ext")
    async with asyncio.timeout(20):
        while True:
            try:
                await client.send("<a/>")
            except ConnectionClosed:
                break
            await asyncio.sleep(0.05)


async def test_end_of_the_gateway_ends_connections(start: Start, certificate: Certificate) -> None:
    users = Users({"ext": GatewayUser(totp_secret=SECRETS["ext"], allowed_root_tags="*")})
    tls = server_context(certificate.cert, certificate.key)
    async with AsyncExitStack() as clients:
        organism = await start()
        async with WssGateway(organism, users, tls).serve("127.0.0.1", 0) as port:
            client = await Gateway(organism, port, certificate, clients).log_in("ext")
        assert (await closed(client))[0] == 1001


async def test_missing_certificate_is_told(tmp_path: Path) -> None:
    with pytest.raises(GatewayError, match="no certificate and key"):
        server_context(tmp_path / "cert.pem", tmp_path / "key.pem")
