"""An organism that this one calls: a listener of its name, behind which its listeners are.

The element `<tools.calculator.add.addpayload>` goes to the gateway `tools`, and arrives there as
`<calculator.add.addpayload>`.
"""

import asyncio
import itertools
import logging
import ssl
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp

from agentix.agentserver.errors import Malformed
from agentix.agentserver.gateway.link import Link, LinkError, greet, read_welcome
from agentix.agentserver.gateway.socket import GatewayError, frame_bytes, refuse
from agentix.agentserver.identity import Identity, TrustedKey
from agentix.agentserver.spec import GatewaySpec
from agentix.agentserver.trusted import Request, TrustedListener
from agentix.agentserver.xml.canonical import canonical
from agentix.agentserver.xml.envelope import build_envelope, open_envelope
from agentix.agentserver.xml.limits import Limits
from agentix.agentserver.xml.parser import parse_strict

__all__ = ["RemoteOrganism"]

logger = logging.getLogger(__name__)

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
        GatewayError: The certificates that should vouch for it can not be read.
    """

    def __init__(
        self, spec: GatewaySpec, identity: Identity, directory: Path, limits: Limits
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

    def listener(self) -> TrustedListener:
        """Gives what the organism registers."""
        return TrustedListener(
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
        """Passes a payload on, and gives all that comes back.

        Raises:
            GatewayError: The organism can not be reached, or did not answer in time.
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
            raise GatewayError(f"{self.spec.name} can not be reached: {error}") from error

    async def _introduce(self, socket: aiohttp.ClientWebSocketResponse) -> "_Connection":
        """Shows who this organism is, and learns whether the other is who it should be."""
        certificate = socket.get_extra_info("ssl_object").getpeercert(binary_form=True)
        greeting, first = greet(self._identity, self._key, certificate)
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
        """Sends a request and waits for its replies.

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
        """Ends the connection."""
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
