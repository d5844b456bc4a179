"""Other organisms that call this one: each is a principal by its key, and is never privileged."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress

from aiohttp import web
from lxml.etree import _Element as Element

from agentix.agentserver.gateway.link import Door, Link, LinkError, Proof
from agentix.agentserver.gateway.socket import frame_bytes, refuse
from agentix.agentserver.identity import Identity, IdentityError, TrustedKey
from agentix.agentserver.organism import CallTimeoutError, Organism
from agentix.agentserver.principal import Principal
from agentix.agentserver.spec import GatewaySpec

__all__ = ["Federation"]

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
        self._door = Door(identity, certificate)

    def prove(self, user: str, nonce: str) -> Mapping[str, str]:
        """Gives what proves to a user who this organism is, as attributes."""
        signature = Proof(user, nonce, self._certificate).sign(self._identity)
        return {"identity": str(self._identity.public), "signature": signature}

    async def serve(self, socket: web.WebSocketResponse, first: Element) -> None:
        """Serves one connection, whose first message has been read."""
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
        principal = _principal(spec)
        await socket.send_str(self._door.welcome(greeting, principal.name))
        link = Link(self._identity, greeting.client, greeting.nonce, "server")
        await _Session(self._organism, socket, principal, link, spec.timeout_seconds).run()

    def _known(self) -> Mapping[TrustedKey, GatewaySpec]:
        directory = self._organism.directory
        return {
            TrustedKey.from_setting(spec.trusted_identity, directory): spec
            for spec in self._organism.gateways()
        }


def _principal(spec: GatewaySpec) -> Principal:
    allowed = spec.allowed_root_tags
    roots = None if allowed == "*" else frozenset(allowed)
    return Principal(f"remote.{spec.name}", roots, remote=True)


class _Session:
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
        """Serves the connection to its end."""
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
