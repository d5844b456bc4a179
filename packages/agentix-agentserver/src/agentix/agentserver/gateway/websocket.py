"""The WebSocket gateway: users by one-time codes and organisms by their keys, over TLS only.

Each organism that calls is a principal by its key, and is never privileged.
"""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiohttp import WSCloseCode, web
from lxml import etree
from lxml.etree import _Element as Element

from agentix.agentserver import Capability
from agentix.agentserver.credentials import GatewayUser, Identity, TrustedKey, Users
from agentix.agentserver.errors import (
    CallTimeoutError,
    GatewayError,
    IdentityError,
    LinkError,
    Malformed,
    MalformedKind,
)
from agentix.agentserver.gateway.link import HandshakeServer, KeyProof, Link, frame_bytes, refuse
from agentix.agentserver.names import CORE_NAMESPACE, META_NAMESPACE, Principal, new_thread_id
from agentix.agentserver.organism import Organism
from agentix.agentserver.spec import GatewaySpec
from agentix.agentserver.xml.envelope import build_envelope, parse_or_repair
from agentix.agentserver.xml.parser import MessageLimits, parse_strict, precheck

__all__ = [
    "Federation",
    "WssGateway",
    "WssSettings",
    "server_context",
]

logger = logging.getLogger(__name__)


UNKNOWN = "Unknown organism"
BROKEN = "Invalid frame"
IN_FLIGHT = 256
"""Requests of one organism that are under way at once; further ones wait in its socket."""


class Federation:
    """Serves the organisms that `organism.yaml` names as gateways.

    Args:
        organism: This organism, which runs.
        identity: Who it is.
        certificate: The certificate of its gateway, DER.
    """

    def __init__(self, organism: Organism, identity: Identity, certificate: bytes) -> None:
        self._organism = organism
        self._identity = identity
        self._certificate = certificate
        self._door = HandshakeServer(identity, certificate)

    def prove(self, user: str, nonce: str) -> Mapping[str, str]:
        """Return what proves to a user who this organism is, as attributes."""
        signature = KeyProof(user, nonce, self._certificate).sign(self._identity)
        return {"identity": str(self._identity.public), "signature": signature}

    async def serve(self, socket: web.WebSocketResponse, first: Element) -> None:
        """Serve one connection, whose first message has been read."""
        try:
            greeting = self._door.open(first)
        except (LinkError, IdentityError) as error:
            self._organism.security("gateway", f"an organism was refused: {error}")
            await refuse(socket, UNKNOWN)
            return
        spec = self._known().get(greeting.client)
        if spec is None:
            self._organism.security("gateway", f"an unknown organism: {greeting.client}")
            await refuse(socket, UNKNOWN)
            return
        principal = _remote_principal(spec)
        await socket.send_str(self._door.welcome(greeting, principal.name))
        link = Link(self._identity, greeting.client, greeting.nonce, "server")
        await _OrganismSession(self._organism, socket, principal, link, spec.timeout_seconds).run()

    def _known(self) -> Mapping[TrustedKey, GatewaySpec]:
        directory = self._organism.directory
        return {
            TrustedKey.from_setting(spec.trusted_identity, directory): spec
            for spec in self._organism.gateways()
        }


def _remote_principal(spec: GatewaySpec) -> Principal:
    allowed = spec.allowed_root_tags
    roots = None if allowed == "*" else frozenset(allowed)
    return Principal(f"remote.{spec.name}", roots, remote=True)


class _OrganismSession:
    """The connection of one organism: requests go in, and the replies to each go out together."""

    def __init__(
        self,
        organism: Organism,
        socket: web.WebSocketResponse,
        principal: Principal,
        link: Link,
        seconds: float,
    ) -> None:
        self._organism = organism
        self._socket = socket
        self._principal = principal
        self._link = link
        self._seconds = seconds
        self._places = asyncio.Semaphore(IN_FLIGHT)
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve the connection to its end."""
        try:
            while (frame := frame_bytes(await self._socket.receive())) is not None:
                number, messages = self._link.unpack(frame)
                for message in messages[:1]:
                    await self._places.acquire()
                    task = asyncio.create_task(self._answer(number, message))
                    self._tasks.add(task)
                    task.add_done_callback(self._answered)
        except LinkError as error:
            self._organism.security(self._principal.name, str(error))
            await refuse(self._socket, BROKEN)
        finally:
            tasks = [*self._tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, number: int, message: bytes) -> None:
        try:
            replies = await self._organism.call(message, self._principal, timeout=self._seconds)
        except CallTimeoutError as error:
            replies = [*error.replies]
        with suppress(ConnectionError):
            await self._socket.send_bytes(self._link.pack(number, replies))

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._places.release()
        if not task.cancelled() and task.exception() is not None:
            logger.error("a request of %s failed", self._principal.name, exc_info=task.exception())


FIRST_MESSAGE: Final = "First message must be <authenticate/>"
MISSING_CODE: Final = "Missing TOTP code"
INVALID_CODE: Final = "Invalid TOTP"
TOO_LATE: Final = "Authentication timeout"
NO_XML: Final = "Invalid/tampered XML"
TOO_SLOW: Final = "Too slow a reader"

LOGIN_LIMITS = MessageLimits(size=4096)
"""What the first message may be made of."""

NO_XML_KINDS = frozenset(
    {
        MalformedKind.ENCODING,
        MalformedKind.PROLOG,
        MalformedKind.DOCTYPE,
        MalformedKind.SYNTAX,
    }
)
"""Why bytes are not XML at all, or were made by nobody who means well."""

SLACK = 65_536
"""Bytes beyond the limit of a message that still reach the pump, which answers with `<huh>`."""


@dataclass(frozen=True)
class WssSettings:
    """What the gateway bounds."""

    authentication_seconds: float = 15.0
    """Seconds until the first message must be there."""
    in_flight: int = 64
    """Messages of one connection that are under way at once; further ones wait in its socket."""
    call_seconds: float = 300.0
    """Seconds after which a message no longer counts as under way."""
    write_seconds: float = 60.0
    """Seconds that a reader may take for one message before it is cut off."""
    connections: int = 1024
    """Connections at once."""
    heartbeat_seconds: float = 30.0
    """Seconds between the pings that tell a dead connection from a silent one."""


def server_context(cert: Path, key: Path) -> ssl.SSLContext:
    """Make a server's TLS settings, version 1.2 or later.

    Raises:
        GatewayError: The files are not a certificate and its key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise GatewayError(f"no certificate and key at {cert} and {key}: {error}") from error
    return context


class WssGateway:
    """Serves users of an organism.

    Args:
        organism: The organism, which runs.
        users: Who may log in.
        tls: The server's certificate; there is no way to serve without one.
        settings: What is bounded.
        federation: What serves other organisms, and proves to users who this one is; without it
            organisms are strangers.
    """

    def __init__(
        self,
        organism: Organism,
        users: Users,
        tls: ssl.SSLContext,
        settings: WssSettings | None = None,
        federation: Federation | None = None,
    ) -> None:
        self._federation = federation
        self._organism = organism
        self.users = users
        """Who may log in."""
        self._tls = tls
        self._settings = settings or WssSettings()
        self._open: set[web.WebSocketResponse] = set()

    @asynccontextmanager
    async def serve(self, host: str, port: int) -> AsyncIterator[int]:
        """Listen for the length of a `with` block.

        Args:
            host: The address.
            port: The port; 0 takes a free one.

        Returns:
            The port that is listened at.

        Raises:
            GatewayError: The port cannot be had.
        """
        app = web.Application()
        app.router.add_get("/", self._connect)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0)
        await runner.setup()
        try:
            site = web.TCPSite(runner, host, port, ssl_context=self._tls)
            try:
                await site.start()
            except OSError as error:
                raise GatewayError(f"{host}:{port} cannot be listened at: {error}") from error
            yield int(runner.addresses[0][1])
        finally:
            await asyncio.gather(*(self._hang_up(each) for each in [*self._open]))
            await runner.cleanup()

    async def _hang_up(self, socket: web.WebSocketResponse) -> None:
        with suppress(ConnectionError):
            await socket.close(code=WSCloseCode.GOING_AWAY, message=b"The organism ends")

    async def _connect(self, request: web.Request) -> web.StreamResponse:
        """Serve one connection from its first message to its last."""
        if len(self._open) >= self._settings.connections:
            raise web.HTTPServiceUnavailable
        socket = web.WebSocketResponse(
            timeout=2.0,
            max_msg_size=self._organism.spec.limits.message_bytes + SLACK,
            heartbeat=self._settings.heartbeat_seconds,
            compress=False,
        )
        await socket.prepare(request)
        self._open.add(socket)
        try:
            first = await self._first(socket)
            if first is not None and self._federation is not None and first.get("key"):
                await self._federation.serve(socket, first)
            elif first is not None:
                await self._serve_user(socket, first)
        except ConnectionError:
            logger.debug("a connection from %s broke", request.remote)
        finally:
            self._open.discard(socket)
        return socket

    async def _first(self, socket: web.WebSocketResponse) -> Element | None:
        """Read the first message; close the connection where it is not `<authenticate/>`."""
        try:
            async with asyncio.timeout(self._settings.authentication_seconds):
                data = frame_bytes(await socket.receive())
        except TimeoutError:
            await refuse(socket, TOO_LATE)
            return None
        if data is None:
            return None
        element = _authenticate(data)
        if element is None:
            await refuse(socket, FIRST_MESSAGE)
        return element

    async def _serve_user(self, socket: web.WebSocketResponse, first: Element) -> None:
        """Serve a user whose code is right."""
        name, code = first.get("user", ""), first.get("totp", "")
        if not code:
            await refuse(socket, MISSING_CODE)
            return
        user = self.users.authenticate(name, code)
        if user is None:
            self._organism.security(name, "a login was refused")
            await refuse(socket, INVALID_CODE)
            return
        nonce = first.get("nonce")
        proof = self._federation.prove(name, nonce) if nonce and self._federation else {}
        principal = _user_principal(name, user)
        await socket.send_str(self._catalog(principal, proof).decode())
        await _UserSession(self._organism, socket, principal, self._settings).run()

    def _catalog(self, principal: Principal, proof: Mapping[str, str]) -> bytes:
        """Write what a user may call, from which organism."""
        about = {"organism": self._organism.spec.organism.name, **proof}
        return catalog_message(principal.name, about, self._organism.catalog(principal))


def _authenticate(data: bytes) -> Element | None:
    """Read `<authenticate .../>`; `None` where it is something else."""
    try:
        element = parse_strict(precheck(data, LOGIN_LIMITS.size), LOGIN_LIMITS)
    except Malformed:
        return None
    return element if str(element.tag).rpartition("}")[2] == "authenticate" else None


def _user_principal(name: str, user: GatewayUser) -> Principal:
    allowed = user.allowed_root_tags
    return Principal(name, None if allowed == "*" else frozenset(allowed), admin=user.admin)


class _UserSession:
    """One user's connection: messages go in one by one, and events come out."""

    def __init__(
        self,
        organism: Organism,
        socket: web.WebSocketResponse,
        principal: Principal,
        settings: WssSettings,
    ) -> None:
        self._organism = organism
        self._socket = socket
        self._principal = principal
        self._settings = settings
        self._places = asyncio.Semaphore(settings.in_flight)
        self._calls: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve the connection to its end."""
        writing = asyncio.create_task(self._write())
        reading = asyncio.create_task(self._read())
        try:
            await asyncio.wait({writing, reading}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ending = [writing, reading, *self._calls]
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)

    async def _read(self) -> None:
        limits = MessageLimits(size=self._organism.spec.limits.message_bytes)
        while (data := frame_bytes(await self._socket.receive())) is not None:
            if _no_xml(data, limits):
                self._organism.security(self._principal.name, "it sent what is not XML")
                await refuse(self._socket, NO_XML)
                return
            await self._places.acquire()
            task = asyncio.create_task(self._post(data))
            self._calls.add(task)
            task.add_done_callback(self._posted)

    async def _post(self, data: bytes) -> None:
        """Post a message and wait until nothing that follows from it is under way."""
        with suppress(TimeoutError):
            await self._organism.call(data, self._principal, timeout=self._settings.call_seconds)

    def _posted(self, task: asyncio.Task[None]) -> None:
        self._calls.discard(task)
        self._places.release()
        if not task.cancelled() and task.exception() is not None:
            logger.error("a message of %s failed", self._principal.name, exc_info=task.exception())

    async def _write(self) -> None:
        """Send what is for the user, as it happens."""
        name = self._principal.name
        events = self._organism.listen(after_seq=None, principal=self._principal)
        async with aclosing(events):
            async for event in events:
                if event.kind == "gap":
                    await self._send(_gap(name, event.seq))
                elif event.to == name and event.xml:
                    await self._send(event.xml)

    async def _send(self, message: bytes) -> None:
        """Send one message, and cuts a reader off that does not read it."""
        try:
            async with asyncio.timeout(self._settings.write_seconds):
                await self._socket.send_str(message.decode())
        except TimeoutError:
            logger.warning("%s reads too slowly and is cut off", self._principal.name)
            await refuse(self._socket, TOO_SLOW)
            raise ConnectionResetError(TOO_SLOW) from None


def _no_xml(data: bytes, limits: MessageLimits) -> bool:
    """Tell bytes that are not XML from messages that are wrong, which the pump answers."""
    try:
        parse_or_repair(precheck(data, limits.size), limits)
    except Malformed as error:
        return error.kind in NO_XML_KINDS
    return False


def catalog_message(
    name: str, about: Mapping[str, str], capabilities: Sequence[Capability]
) -> bytes:
    """Write what a principal may call, as a message from core."""
    tag = f"{{{META_NAMESPACE}}}catalog"
    catalog = etree.Element(tag, dict(about), nsmap={None: META_NAMESPACE})
    for capability in capabilities:
        entry = etree.SubElement(catalog, f"{{{META_NAMESPACE}}}capability")
        for field in ("name", "root_tag", "description", "example"):
            child = etree.SubElement(entry, f"{{{META_NAMESPACE}}}{field.replace('_', '-')}")
            child.text = getattr(capability, field)
    return build_envelope("core", name, new_thread_id(), catalog)


def _gap(name: str, seq: int) -> bytes:
    """Write that a slow reader has missed messages, as a message from core."""
    gap: Element = etree.Element(f"{{{CORE_NAMESPACE}}}gap", nsmap={None: CORE_NAMESPACE})
    gap.set("seq", str(seq))
    return build_envelope("core", name, new_thread_id(), gap)
