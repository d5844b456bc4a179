"""Administration: signed commands to an organism, out of band, each good once.

A command is the body of `POST /` at a loopback address or a Unix socket, and the answer is text;
the main bus knows nothing of it. The signature is over the exclusive canonical form of `<payload>`.
What is carried out is parsed again from the very bytes that were verified, so nothing that was not
signed is ever looked at.
"""

import asyncio
import base64
import binascii
import json
import logging
import math
import os
import socket
import struct
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from ipaddress import ip_address
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

import aiohttp
from aiohttp import web
from lxml import etree
from lxml.etree import _Element as Element
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from agentix.agentserver.credentials import Identity, TrustedKey
from agentix.agentserver.errors import (
    GatewayError,
    IdentityError,
    Malformed,
    PrivilegedError,
    RegistrationError,
)
from agentix.agentserver.names import PRIVILEGED_NAMESPACE
from agentix.agentserver.organism import Organism
from agentix.agentserver.spec import GatewaySpec, ListenerSpec, OrganismSpec
from agentix.agentserver.xml.envelope import canonical
from agentix.agentserver.xml.parser import MessageLimits, parse_strict, precheck

__all__ = [
    "Command",
    "GetOrganismGraph",
    "GetStatus",
    "ListListeners",
    "OobChannel",
    "PrivilegedGate",
    "RegisterListener",
    "RegisterRemoteGateway",
    "Shutdown",
    "UnregisterListener",
    "UnregisterRemoteGateway",
    "send_privileged",
    "sign_privileged",
]

logger = logging.getLogger(__name__)


VERSION = "1.0"
TOLERANCE = 60.0
"""Seconds that a timestamp may differ from now."""

LIMITS = MessageLimits(size=1 << 16)
"""What a privileged message may be made of."""

ROOT, PAYLOAD, SIGNATURE = (
    f"{{{PRIVILEGED_NAMESPACE}}}{name}" for name in ("privileged-msg", "payload", "signature")
)


class _Command(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _split(value: object) -> object:
    """Read a list of words, as `xs:list` has them."""
    return tuple(value.split()) if isinstance(value, str) else value


Words = Annotated[tuple[str, ...], BeforeValidator(_split)]


class RegisterListener(_Command):
    """Adds a listener, as an entry of `listeners` in `organism.yaml` does."""

    name: str
    payload_class: str
    handler: str
    description: str
    agent: bool = False
    broadcast: bool = False
    peers: Words = ()
    reply_class: Words = ()


class UnregisterListener(_Command):
    """Removes a listener."""

    name: str


class ListListeners(_Command):
    """Asks for the names of all listeners, or for all that is known of them."""

    detailed: bool = False


class GetOrganismGraph(_Command):
    """Asks for the organism, or one team of it, as a drawing."""

    team: str | None = None
    format: Literal["mermaid", "graphviz", "json"] = "mermaid"


class GetStatus(_Command):
    """Asks how the organism is."""


class Shutdown(_Command):
    """Ends the organism: after what is under way, or at once."""

    mode: Literal["graceful", "immediate"] = "graceful"
    reason: str = ""


class RegisterRemoteGateway(_Command):
    """Adds another organism, as an entry of `gateways` in `organism.yaml` does."""

    name: str
    remote_url: str
    trusted_identity: str
    description: str


class UnregisterRemoteGateway(_Command):
    """Removes another organism."""

    name: str


Command = (
    RegisterListener
    | UnregisterListener
    | ListListeners
    | GetOrganismGraph
    | GetStatus
    | Shutdown
    | RegisterRemoteGateway
    | UnregisterRemoteGateway
)


def sign_privileged(
    command: str,
    identity: Identity,
    *,
    message_id: str | None = None,
    timestamp: datetime | None = None,
) -> bytes:
    """Wrap a command into a signed message.

    Args:
        command: The command's element, such as `<get-status/>`.
        identity: Who signs.
        message_id: Its id, by which a replay is known; a new one where it is left out.
        timestamp: When it was written, with a time zone; now where it is left out.

    Raises:
        PrivilegedError: The command is not one element.
    """
    root = etree.Element(ROOT, {"version": VERSION}, nsmap={None: PRIVILEGED_NAMESPACE})
    payload = etree.SubElement(root, PAYLOAD)
    payload.set("id", message_id or str(uuid.uuid4()))
    payload.set("timestamp", (timestamp or datetime.now(UTC)).isoformat())
    payload.append(_with_namespace(_parse(command.encode())))
    signature = etree.SubElement(root, SIGNATURE, {"algorithm": "ed25519"})
    signature.text = base64.b64encode(identity.sign(canonical(payload))).decode()
    return etree.tostring(root, encoding="utf-8")


class PrivilegedGate:
    """Lets a command through when its signature, its time and its id are good.

    Args:
        key: Whose signatures are good.
        now: Gives the seconds since 1970.
    """

    def __init__(self, key: TrustedKey, now: Callable[[], float] = time.time) -> None:
        self._key = key
        self._now = now
        self._seen: dict[str, float] = {}

    def open(self, message: bytes) -> Command:
        """Check a message, and take its id.

        Raises:
            PrivilegedError: The message is refused.
        """
        payload = self._verified(message)
        self._check_time(payload)
        command = _read_command(payload)
        self._take_id(payload.get("id", ""))
        return command

    @property
    def remembered(self) -> int:
        """How many ids are kept against replays."""
        return len(self._seen)

    def _verified(self, message: bytes) -> Element:
        root = _parse(message)
        if root.tag != ROOT or root.get("version") != VERSION:
            raise PrivilegedError("not a privileged message of version 1.0")
        match list(root):
            case [payload, signature] if (payload.tag, signature.tag) == (PAYLOAD, SIGNATURE):
                pass
            case _:
                raise PrivilegedError("a privileged message has one payload and one signature")
        signed = canonical(payload)
        if signature.get("algorithm") != "ed25519" or not self._key.verify(
            _signature(signature), signed
        ):
            raise PrivilegedError("bad signature")
        return _parse(signed)

    def _check_time(self, payload: Element) -> None:
        try:
            written = datetime.fromisoformat(payload.get("timestamp", ""))
        except ValueError as error:
            raise PrivilegedError("the timestamp is missing or malformed") from error
        if written.tzinfo is None:
            raise PrivilegedError("the timestamp has no time zone")
        if not math.fabs(written.timestamp() - self._now()) <= TOLERANCE:
            raise PrivilegedError("the timestamp is more than 60 seconds off")

    def _take_id(self, message_id: str) -> None:
        """Remember ids for as long as their timestamps can be good."""
        now = self._now()
        self._seen = {known: until for known, until in self._seen.items() if until >= now}
        if not message_id:
            raise PrivilegedError("the payload has no id")
        if message_id in self._seen:
            raise PrivilegedError("the message was used already")
        self._seen[message_id] = now + 2 * TOLERANCE


def _parse(data: bytes) -> Element:
    """Parse as strictly as a message of the main bus is parsed."""
    try:
        return parse_strict(precheck(data, LIMITS.size), LIMITS)
    except Malformed as error:
        raise PrivilegedError(f"not XML that is taken here: {error.kind.value}") from error


def _signature(element: Element) -> bytes:
    try:
        return base64.b64decode("".join((element.text or "").split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise PrivilegedError("the signature is not base64") from error


def _with_namespace(element: Element) -> Element:
    """Put an unqualified command into the namespace of privileged messages."""
    for each in element.iter():
        if not str(each.tag).startswith("{"):
            each.tag = f"{{{PRIVILEGED_NAMESPACE}}}{each.tag!s}"
    return element


def _read_command(payload: Element) -> Command:
    """Read a command, whose fields are attributes or elements, with `-` where names have `_`.

    Raises:
        PrivilegedError: There is no such command, or its fields do not fit.
    """
    if len(payload) != 1:
        raise PrivilegedError("the payload is not one command")
    element = payload[0]
    name = _local(element)
    kind = KINDS.get(name)
    if kind is None:
        raise PrivilegedError(f"there is no command {name!r}")
    try:
        return kind.model_validate(dict(_fields(element)))
    except ValidationError as error:
        details = error.errors(include_input=False, include_url=False)
        reasons = "; ".join(f"{'.'.join(map(str, d['loc']))}: {d['msg']}" for d in details)
        raise PrivilegedError(f"{name}: {reasons}") from error


def _fields(element: Element) -> Iterator[tuple[str, str]]:
    seen = set()
    children = ((_local(child), child.text or "") for child in element)
    for name, text in chain(element.attrib.items(), children):
        if name in seen:
            raise PrivilegedError(f"{_local(element)}: {name!r} is given twice")
        seen.add(name)
        yield str(name).replace("-", "_"), str(text).strip()
    if any(len(child) for child in element):
        raise PrivilegedError(f"{_local(element)}: a field holds elements")


def _local(element: Element) -> str:
    return str(element.tag).removeprefix(f"{{{PRIVILEGED_NAMESPACE}}}")


KINDS: Mapping[str, type[Command]] = {
    "register-listener": RegisterListener,
    "unregister-listener": UnregisterListener,
    "list-listeners": ListListeners,
    "get-organism-graph": GetOrganismGraph,
    "get-status": GetStatus,
    "shutdown": Shutdown,
    "register-remote-gateway": RegisterRemoteGateway,
    "unregister-remote-gateway": UnregisterRemoteGateway,
}


CREDENTIALS = struct.Struct("3i")
"""`struct ucred` of unix(7): the process, its user and its group."""

SENDER = "oob"


class OobChannel:
    """Carries out signed commands.

    Args:
        organism: The organism, which runs.
        gate: What lets a command through.
        shutdown: Ends the organism; it is told the mode and the reason, and returns at once.
        connect: Adds another organism while messages flow.
        disconnect: Removes another organism; `KeyError` where there is none.
    """

    def __init__(
        self,
        organism: Organism,
        gate: PrivilegedGate,
        shutdown: Callable[[Shutdown], None],
        connect: Callable[[GatewaySpec], Awaitable[None]],
        disconnect: Callable[[str], Awaitable[None]],
    ) -> None:
        self._organism = organism
        self._gate = gate
        self._shutdown = shutdown
        self._connect = connect
        self._disconnect = disconnect
        self._turn = asyncio.Lock()

    async def privileged(self, message: bytes) -> str:
        """Carry out a signed command.

        Returns:
            The answer, as text: nothing, a drawing, or JSON.

        Raises:
            PrivilegedError: It is refused, or cannot be done.
        """
        try:
            command = self._gate.open(message)
        except PrivilegedError as error:
            self._organism.security(SENDER, f"a privileged message was refused: {error}")
            raise
        logger.info("carrying out %r", command)
        async with self._turn:
            try:
                return await self._carry_out(command)
            except KeyError as error:
                raise PrivilegedError(f"there is no {error.args[0]!r}") from error
            except (RegistrationError, IdentityError, GatewayError) as error:
                raise PrivilegedError(str(error)) from error
            except ValidationError as error:
                reason = "; ".join(
                    each["msg"].removeprefix("Value error, ") for each in error.errors()
                )
                raise PrivilegedError(reason) from error

    async def _carry_out(self, command: Command) -> str:
        match command:
            case RegisterListener():
                spec = self._checked(ListenerSpec.model_validate(command.model_dump()))
                return (await self._organism.register(spec)).root_tag
            case UnregisterListener(name=name):
                await self._organism.unregister(name)
                return ""
            case ListListeners(detailed=detailed):
                return self._list(detailed)
            case GetOrganismGraph(team=team, format=form):
                return self._organism.graph(form, team)
            case GetStatus():
                return json.dumps(self._organism.status(), indent=2)
            case Shutdown():
                self._shutdown(command)
                return ""
            case RegisterRemoteGateway():
                await self._connect(GatewaySpec.model_validate(command.model_dump()))
                return ""
            case UnregisterRemoteGateway(name=name):
                await self._disconnect(name)
                return ""

    def _checked(self, listener: ListenerSpec) -> ListenerSpec:
        """Hold the code of a new listener to the packages that `organism.yaml` allows."""
        spec = self._organism.spec
        alone = listener.model_copy(update={"peers": ()})
        OrganismSpec(organism=spec.organism, packages=spec.packages, listeners=(alone,))
        return listener

    def _list(self, detailed: bool) -> str:
        catalog = self._organism.catalog()
        if not detailed:
            return json.dumps([each.name for each in catalog])
        return json.dumps(
            [
                {"name": each.name, "root_tag": each.root_tag, "description": each.description}
                for each in catalog
            ],
            indent=2,
        )

    @asynccontextmanager
    async def serve(self, host: str, port: int) -> AsyncIterator[int]:
        """Listen at a loopback address for the length of a `with` block.

        Returns:
            The port; a free one where 0 was asked for.

        Raises:
            GatewayError: The address is not loopback, or cannot be had.
        """
        if not ip_address(host).is_loopback:
            raise GatewayError(
                f"{host} is not a loopback address: the channel stays on its machine"
            )
        async with self._running() as runner:
            await _start(web.TCPSite(runner, host, port), f"{host}:{port}")
            yield int(runner.addresses[0][1])

    @asynccontextmanager
    async def serve_unix(self, path: Path) -> AsyncIterator[None]:
        """Listen at a Unix socket, for this user's own processes only.

        Raises:
            GatewayError: The socket cannot be made.
        """
        async with self._running() as runner:
            before = os.umask(0o177)
            try:
                await _start(web.UnixSite(runner, str(path)), str(path))
            finally:
                os.umask(before)
            try:
                yield
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(path)  # noqa: PTH108 - a socket is removed in no time

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[web.AppRunner]:
        app = web.Application(client_max_size=LIMITS.size)
        app.router.add_post("/", self._answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0)
        await runner.setup()
        try:
            yield runner
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        if not _is_own_user(request):
            self._organism.security(SENDER, "a process of another user was refused")
            return web.Response(status=403, text="only the organism's own user may connect")
        try:
            return web.Response(text=await self.privileged(await request.read()))
        except PrivilegedError as error:
            return web.Response(status=403, text=str(error))


def _is_own_user(request: web.Request) -> bool:
    """Return whether the other end of a Unix socket is this user, by what the kernel says of it."""
    transport = request.transport
    end = None if transport is None else transport.get_extra_info("socket")
    if end is None:
        return False
    if end.family != socket.AF_UNIX:
        return True
    packed = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    _, user, _ = CREDENTIALS.unpack(packed)
    return bool(user == os.geteuid())


async def _start(site: web.BaseSite, address: str) -> None:
    try:
        await site.start()
    except OSError as error:
        raise GatewayError(f"{address} cannot be listened at: {error}") from error


async def send_privileged(address: str | Path, message: bytes) -> str:
    """Send a signed command to an organism.

    Args:
        address: `host:port`, or the path of a Unix socket.
        message: What `sign_privileged` gives.

    Raises:
        PrivilegedError: It is refused, or could not be done.
        GatewayError: Nobody answers there.
    """
    unix = isinstance(address, Path)
    connector = aiohttp.UnixConnector(str(address)) if unix else aiohttp.TCPConnector()
    url = "http://localhost/" if unix else f"http://{address}/"
    try:
        async with (
            aiohttp.ClientSession(connector=connector, trust_env=False) as session,
            session.post(url, data=message, timeout=aiohttp.ClientTimeout(60)) as response,
        ):
            text = await response.text()
    except (aiohttp.ClientError, TimeoutError) as error:
        raise GatewayError(f"no organism answers at {address}: {error}") from error
    if response.status != 200:
        raise PrivilegedError(text)
    return text
