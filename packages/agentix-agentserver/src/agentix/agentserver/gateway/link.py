"""Links: this organism and another one, who is at each end, and frames that nobody else can make.

The client sends `<authenticate key=".." time=".." nonce=".." signature=".."/>` first, and the
server answers `<welcome principal=".." signature=".."/>`. Both signatures cover the keys of both,
the time, the nonce and the certificate of the server: neither is of use on another connection.

An organism that this one calls is a listener of its name, behind which its listeners are: the
element `<tools.calculator.add.addpayload>` goes to the gateway `tools`, and arrives there as
`<calculator.add.addpayload>`.
"""

import asyncio
import base64
import binascii
import hashlib
import itertools
import logging
import secrets
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import aiohttp
import msgpack  # type: ignore[import-untyped]
from aiohttp import ClientWebSocketResponse, WSCloseCode, WSMessage, WSMsgType, web
from lxml import etree

from agentix.agentserver.credentials import Identity, TrustedKey
from agentix.agentserver.errors import GatewayError, LinkError, Malformed
from agentix.agentserver.registry import InProcessListener, Request
from agentix.agentserver.spec import GatewaySpec
from agentix.agentserver.xml.envelope import build_envelope, canonical, open_envelope
from agentix.agentserver.xml.parser import MessageLimits, parse_strict, precheck

__all__ = [
    "Handshake",
    "HandshakeServer",
    "KeyProof",
    "Link",
    "RemoteOrganism",
    "begin_handshake",
    "frame_bytes",
    "refuse",
]

logger = logging.getLogger(__name__)


def frame_bytes(message: WSMessage) -> bytes | None:
    """Return what a frame carries; `None` at the end of the connection."""
    match message.type:
        case WSMsgType.TEXT:
            return str(message.data).encode(errors="surrogatepass")
        case WSMsgType.BINARY:
            return bytes(message.data)
    return None


async def refuse(socket: web.WebSocketResponse | ClientWebSocketResponse, reason: str) -> None:
    """Close a connection for a breach of the rules."""
    await socket.close(code=WSCloseCode.POLICY_VIOLATION, message=reason.encode())


TOLERANCE: Final = 60.0
"""Seconds that the clocks of two organisms may differ."""

LIMITS = MessageLimits(size=4096)


@dataclass(frozen=True)
class Handshake:
    """What both ends of a link agree on."""

    client: TrustedKey
    server: TrustedKey
    time: str
    nonce: str
    certificate: bytes
    """The server's certificate, DER."""

    def statement(self, side: str, more: str = "") -> bytes:
        """Return what one side signs."""
        digest = hashlib.sha256(self.certificate).hexdigest()
        parts = [side, str(self.client), str(self.server), self.time, self.nonce, digest, more]
        return "\n".join(["agentix-agentserver link 1", *parts]).encode()


def begin_handshake(
    identity: Identity, server: TrustedKey, certificate: bytes
) -> tuple[Handshake, str]:
    """Begin a link as its client; return what to remember, and the first message."""
    now, nonce = f"{time.time():.3f}", secrets.token_hex(16)
    greeting = Handshake(identity.public, server, now, nonce, certificate)
    element = etree.Element(
        "authenticate",
        {
            "key": str(identity.public),
            "time": now,
            "nonce": nonce,
            "signature": _text(identity.sign(greeting.statement("client"))),
        },
    )
    return greeting, etree.tostring(element, encoding="unicode")


def read_welcome(greeting: Handshake, message: bytes) -> str:
    """Check the server's answer; return the principal that the client is there.

    Raises:
        LinkError: It is not signed by the server's key.
    """
    try:
        element = parse_strict(precheck(message, LIMITS.size), LIMITS)
    except Malformed as error:
        raise LinkError("the other organism answered with what is no welcome") from error
    principal = element.get("principal", "")
    signed = greeting.statement("server", principal)
    if element.tag != "welcome" or not greeting.server.verify(_bytes(element), signed):
        raise LinkError("the other organism is not who it should be: its welcome is not signed")
    return principal


@dataclass(frozen=True)
class KeyProof:
    """How an organism proves to a user who it is.

    The user sends a nonce with the code, and gets a signature over it, the user's name and the
    certificate of the connection.
    """

    user: str
    nonce: str
    certificate: bytes
    """The server's certificate, DER."""

    @property
    def _statement(self) -> bytes:
        digest = hashlib.sha256(self.certificate).hexdigest()
        parts = ["agentix-agentserver catalog 1", self.user, self.nonce, digest]
        return "\n".join(parts).encode()

    def sign(self, identity: Identity) -> str:
        """Return the signature, in base64."""
        return _text(identity.sign(self._statement))

    def verify(self, key: TrustedKey, signature: str) -> bool:
        """Return whether the organism with this key gave the signature."""
        return key.verify(_decoded(signature), self._statement)


class HandshakeServer:
    """Lets other organisms in, as the server of a link.

    Args:
        identity: Who this organism is.
        certificate: Its certificate, DER.
        now: Gives the seconds since 1970.
    """

    def __init__(
        self, identity: Identity, certificate: bytes, now: Callable[[], float] = time.time
    ) -> None:
        self._identity = identity
        self._certificate = certificate
        self._now = now
        self._seen: dict[str, float] = {}

    def open(self, element: etree._Element) -> Handshake:
        """Check a first message, and take its nonce.

        Raises:
            LinkError: It is not signed, too old, or was used already.
        """
        fields = [element.get(name, "") for name in ("key", "time", "nonce")]
        greeting = Handshake(
            TrustedKey.from_text(fields[0]),
            self._identity.public,
            fields[1],
            fields[2],
            self._certificate,
        )
        if not greeting.client.verify(_bytes(element), greeting.statement("client")):
            raise LinkError("bad signature")
        now = self._now()
        if not abs(_number(greeting.time) - now) <= TOLERANCE:
            raise LinkError("the time is more than 60 seconds off")
        self._seen = {nonce: until for nonce, until in self._seen.items() if until >= now}
        if greeting.nonce in self._seen:
            raise LinkError("the message was used already")
        self._seen[greeting.nonce] = now + 2 * TOLERANCE
        return greeting

    def welcome(self, greeting: Handshake, principal: str) -> str:
        """Return the answer to a client that is let in."""
        signature = self._identity.sign(greeting.statement("server", principal))
        attributes = {"principal": principal, "signature": _text(signature)}
        return etree.tostring(etree.Element("welcome", attributes), encoding="unicode")


class Link:
    """Signs what goes out, and checks that what comes in follows what came before.

    Args:
        identity: This end.
        other: The other end.
        nonce: The nonce of the greeting.
        side: `client` or `server`.
    """

    def __init__(self, identity: Identity, other: TrustedKey, nonce: str, side: str) -> None:
        self._identity = identity
        self._other = other
        self._nonce = nonce
        self._sides = (side, "server" if side == "client" else "client")
        self._sent = 0
        self._received = 0

    def pack(self, number: int, messages: Sequence[bytes]) -> bytes:
        """Make a frame: the number of a request, and messages."""
        self._sent += 1
        body = msgpack.packb([self._nonce, self._sides[0], self._sent, number, list(messages)])
        return bytes(msgpack.packb([self._identity.sign(body), body]))

    def unpack(self, frame: bytes) -> tuple[int, list[bytes]]:
        """Read a frame.

        Raises:
            LinkError: The other end did not make it, or not as the next one.
        """
        try:
            signature, body = msgpack.unpackb(frame)
            if not self._other.verify(signature, body):
                raise LinkError("a frame is not signed by the other organism")
            nonce, side, sequence, number, messages = msgpack.unpackb(body)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise LinkError("a frame is malformed") from error
        self._received += 1
        if [nonce, side, sequence] != [self._nonce, self._sides[1], self._received]:
            raise LinkError("a frame is not the next one of this link")
        if type(number) is not int or not isinstance(messages, list):
            raise LinkError("a frame is malformed")
        if not all(type(each) is bytes for each in messages):
            raise LinkError("a frame is malformed")
        return number, messages


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(element: etree._Element) -> bytes:
    return _decoded(element.get("signature", ""))


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


CONNECT_SECONDS = 10.0
HEARTBEAT_SECONDS = 30.0


class RemoteOrganism:
    """A connection to another organism, which is made when it is first needed, and again.

    Args:
        spec: Where it is and whose key it has.
        identity: Who this organism is.
        directory: What relative paths in `spec` are relative to.
        limits: What its messages may be made of.

    Raises:
        IdentityError: The trusted identity is no key.
        GatewayError: The certificates that should vouch for it cannot be read.
    """

    def __init__(
        self, spec: GatewaySpec, identity: Identity, directory: Path, limits: MessageLimits
    ) -> None:
        self.spec = spec
        self._identity = identity
        self._key = TrustedKey.from_setting(spec.trusted_identity, directory)
        self._tls = _client_context(directory / spec.ca if spec.ca else None)
        self._limits = limits
        self._numbers = itertools.count(1)
        self._turn = asyncio.Lock()
        self._session: aiohttp.ClientSession | None = None
        self._connection: _Connection | None = None

    def listener(self) -> InProcessListener:
        """Return what the organism registers."""
        return InProcessListener(
            name=self.spec.name,
            description=self.spec.description,
            handle=self.handle,
            handler_seconds=self.spec.timeout_seconds + CONNECT_SECONDS,
        )

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(trust_env=False)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._connection is not None:
            await self._connection.aclose()
        if self._session is not None:
            await self._session.close()

    async def handle(self, request: Request) -> bytes:
        """Pass a payload on, and return all that comes back.

        Raises:
            GatewayError: The organism cannot be reached, or did not answer in time.
            LinkError: It is not who it should be.
        """
        element = parse_strict(request.xml, self._limits)
        element.tag = str(element.tag)[len(self.spec.name) + 1 :]
        connection = await self._connected()
        message = build_envelope(connection.principal, None, request.thread_id, element)
        try:
            async with asyncio.timeout(self.spec.timeout_seconds):
                replies = await connection.ask(next(self._numbers), message)
        except TimeoutError as error:
            raise GatewayError(f"{self.spec.name} did not answer in time") from error
        if not replies:
            raise GatewayError(f"{self.spec.name} gave no answer")
        return b"".join(self._payload(reply) for reply in replies)

    def _payload(self, reply: bytes) -> bytes:
        try:
            return canonical(open_envelope(reply, self._limits).payload)
        except Malformed as error:
            raise LinkError(f"{self.spec.name} answered with what is no message") from error

    async def _connected(self) -> "_Connection":
        async with self._turn:
            if self._connection is None or self._connection.ended:
                self._connection = await self._connect()
            return self._connection

    async def _connect(self) -> "_Connection":
        assert self._session is not None, "the gateway is not open"
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                socket = await self._session.ws_connect(
                    str(self.spec.remote_url),
                    ssl=self._tls,
                    heartbeat=HEARTBEAT_SECONDS,
                    max_msg_size=2 * self._limits.size,
                )
                return await self._introduce(socket)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise GatewayError(f"{self.spec.name} cannot be reached: {error}") from error

    async def _introduce(self, socket: aiohttp.ClientWebSocketResponse) -> "_Connection":
        """Show who this organism is, and learns whether the other is who it should be."""
        certificate = socket.get_extra_info("ssl_object").getpeercert(binary_form=True)
        greeting, first = begin_handshake(self._identity, self._key, certificate)
        await socket.send_str(first)
        answer = frame_bytes(await socket.receive())
        if answer is None:
            raise GatewayError(f"{self.spec.name} does not let this organism in")
        try:
            principal = read_welcome(greeting, answer)
        except LinkError:
            await refuse(socket, "Unknown organism")
            raise
        link = Link(self._identity, self._key, greeting.nonce, "client")
        return _Connection(socket, link, principal)


class _Connection:
    """One connection: requests by their numbers, and who waits for each."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, link: Link, principal: str) -> None:
        self.principal = principal
        self._socket = socket
        self._link = link
        self._waiting: dict[int, asyncio.Future[list[bytes]]] = {}
        self._reading = asyncio.create_task(self._read())

    @property
    def ended(self) -> bool:
        """Whether nothing can be asked any more."""
        return self._reading.done()

    async def ask(self, number: int, message: bytes) -> list[bytes]:
        """Send a request and wait for its replies.

        Raises:
            GatewayError: The connection ended before they came.
        """
        waiter: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiter
        try:
            await self._socket.send_bytes(self._link.pack(number, [message]))
            return await waiter
        except ConnectionError as error:
            raise GatewayError("the connection to the other organism broke") from error
        finally:
            self._waiting.pop(number, None)

    async def _read(self) -> None:
        try:
            while (frame := frame_bytes(await self._socket.receive())) is not None:
                number, messages = self._link.unpack(frame)
                waiter = self._waiting.get(number)
                if waiter is not None and not waiter.done():
                    waiter.set_result(messages)
        except LinkError as error:
            logger.warning("%s", error)
            await refuse(self._socket, "Invalid frame")
        finally:
            for waiter in self._waiting.values():
                if not waiter.done():
                    waiter.set_exception(GatewayError("the connection ended before the answer"))

    async def aclose(self) -> None:
        """End the connection."""
        self._reading.cancel()
        with suppress(asyncio.CancelledError):
            await self._reading
        await self._socket.close()


def _client_context(ca: Path | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=None if ca is None else str(ca))
    except (OSError, ssl.SSLError) as error:
        raise GatewayError(f"no certificates can be read from {ca}: {error}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
