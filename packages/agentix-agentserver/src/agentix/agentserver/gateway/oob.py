"""The out-of-band channel: signed commands to the organism, over loopback or a Unix socket.

A command is the body of `POST /`, and the answer is text. The main bus knows nothing of it.
"""

import asyncio
import json
import logging
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_address
from pathlib import Path

import aiohttp
from aiohttp import web
from pydantic import ValidationError

from agentix.agentserver.errors import RegistrationError
from agentix.agentserver.gateway.socket import GatewayError
from agentix.agentserver.identity import IdentityError
from agentix.agentserver.organism import Organism
from agentix.agentserver.privileged import (
    LIMITS,
    Command,
    GetOrganismGraph,
    GetStatus,
    ListListeners,
    PrivilegedError,
    PrivilegedGate,
    RegisterListener,
    RegisterRemoteGateway,
    Shutdown,
    UnregisterListener,
    UnregisterRemoteGateway,
)
from agentix.agentserver.spec import GatewaySpec, ListenerSpec, OrganismSpec

__all__ = ["OobChannel", "send_privileged"]

logger = logging.getLogger(__name__)

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
        """Carries out a signed command.

        Returns:
            The answer, as text: nothing, a drawing, or JSON.

        Raises:
            PrivilegedError: It is refused, or can not be done.
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
        """Holds the code of a new listener to the packages that `organism.yaml` allows."""
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
        """Listens at a loopback address for the length of a `with` block.

        Returns:
            The port; a free one where 0 was asked for.

        Raises:
            GatewayError: The address is not loopback, or can not be had.
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
        """Listens at a Unix socket, for this user's own processes only.

        Raises:
            GatewayError: The socket can not be made.
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
    """Tells whether the other end of a Unix socket is this user, by what the kernel says of it."""
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
        raise GatewayError(f"{address} can not be listened at: {error}") from error


async def send_privileged(address: str | Path, message: bytes) -> str:
    """Sends a signed command to an organism.

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
