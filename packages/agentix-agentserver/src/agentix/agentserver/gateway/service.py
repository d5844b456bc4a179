"""The gateways that `organism.yaml` asks for, opened together."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from agentix.agentserver.assembly import own_identity, remote_organism
from agentix.agentserver.credentials import TrustedKey, Users, read_users
from agentix.agentserver.errors import UsersError
from agentix.agentserver.gateway.admin import OobChannel, PrivilegedGate, Shutdown
from agentix.agentserver.gateway.websocket import (
    Federation,
    WssGateway,
    WssSettings,
    server_context,
)
from agentix.agentserver.names import RESERVED
from agentix.agentserver.organism import Organism
from agentix.agentserver.spec import GatewaySpec

__all__ = ["Service", "check_gateways", "open_gateways"]


@dataclass(frozen=True)
class Service:
    """What is open."""

    addresses: tuple[str, ...]
    """Where it is reached: `wss://host:port` and `oob host:port` or `oob path`."""
    oob: OobChannel | None
    """The out-of-band channel, where there is one."""
    ended: "asyncio.Future[Shutdown]"
    """Done when a privileged message ends the organism."""
    users: Users
    """Who may log in at the WebSocket gateway."""


class _Remotes:
    """The organisms that were added while messages flow."""

    def __init__(self, organism: Organism) -> None:
        self._organism = organism
        self._open: dict[str, AsyncExitStack] = {}

    async def connect(self, spec: GatewaySpec) -> None:
        """Add one."""
        async with AsyncExitStack() as resources:
            remote = await resources.enter_async_context(remote_organism(self._organism, spec))
            self._organism.add_gateway(spec, remote.listener())
            self._open[spec.name] = resources.pop_all()

    async def disconnect(self, name: str) -> None:
        """Remove one, also one of `organism.yaml`."""
        if name not in {gateway.name for gateway in self._organism.gateways()}:
            raise KeyError(name)
        self._organism.remove_in_process(name)
        if name in self._open:
            await self._open.pop(name).aclose()

    async def aclose(self) -> None:
        """End the connections."""
        for name in [*self._open]:
            await self._open.pop(name).aclose()


@asynccontextmanager
async def open_gateways(organism: Organism) -> AsyncIterator[Service]:
    """Open the WebSocket gateway and the out-of-band channel of an organism that runs.

    Raises:
        GatewayError: An address cannot be listened at, or the certificate cannot be used.
        IdentityError: The organism's key is missing, or open to others.
        UsersError: The users cannot be read, or one has a name that is taken.
    """
    async with AsyncExitStack() as resources:
        ended: asyncio.Future[Shutdown] = asyncio.get_running_loop().create_future()
        addresses = []
        if (wss := _wss_gateway(organism)) is not None:
            section = organism.spec.organism
            port = await resources.enter_async_context(wss.serve(section.bind, section.port))
            addresses.append(f"wss://{_host(section.bind)}:{port}")
        oob = None
        if organism.spec.oob.enabled:
            oob = await _oob_channel(organism, ended, resources)
            addresses.append(await _open_oob(organism, oob, resources))
        users = Users({}) if wss is None else wss.users
        yield Service(tuple(addresses), oob, ended, users)


def check_gateways(organism: Organism) -> None:
    """Read every key, certificate and user that the gateways need, and open none.

    Raises:
        GatewayError: The certificate cannot be used.
        IdentityError: A key is missing, malformed, or open to others.
        UsersError: The users cannot be read, or one has a name that is taken.
    """
    _wss_gateway(organism)
    if organism.spec.oob.enabled:
        own_identity(organism)


def _wss_gateway(organism: Organism) -> WssGateway | None:
    """Make the WebSocket gateway, where there is a certificate for it."""
    section, directory = organism.spec.organism, organism.directory
    if section.tls is None:
        return None
    cert = directory / section.tls.cert
    tls = server_context(cert, directory / section.tls.key)
    users = Users({})
    if section.users is not None:
        users = _own_names(read_users(directory / section.users), organism)
    federation = None
    if section.identity is not None:
        federation = Federation(organism, own_identity(organism), _der(cert))
        for gateway in organism.spec.gateways:
            TrustedKey.from_setting(gateway.trusted_identity, directory)
    return WssGateway(
        organism,
        users,
        tls,
        WssSettings(authentication_seconds=section.authentication_seconds),
        federation,
    )


def _own_names(users: Users, organism: Organism) -> Users:
    """Refuse a user who has the name of somebody else, since the pump refuses all messages of it.

    Raises:
        UsersError: One has.
    """
    for name in (*RESERVED, *(each.name for each in organism.catalog())):
        if name in users:
            raise UsersError(f"user {name!r} has the name of a listener, or of the pump: rename it")
    return users


async def _oob_channel(
    organism: Organism, ended: "asyncio.Future[Shutdown]", resources: AsyncExitStack
) -> OobChannel:
    def shutdown(command: Shutdown) -> None:
        if not ended.done():
            ended.set_result(command)

    remotes = _Remotes(organism)
    resources.push_async_callback(remotes.aclose)
    gate = PrivilegedGate(own_identity(organism).public)
    return OobChannel(organism, gate, shutdown, remotes.connect, remotes.disconnect)


async def _open_oob(organism: Organism, oob: OobChannel, resources: AsyncExitStack) -> str:
    spec = organism.spec.oob
    if spec.unix_socket is not None:
        path = organism.directory / spec.unix_socket
        await resources.enter_async_context(oob.serve_unix(path))
        return f"oob {path}"
    port = await resources.enter_async_context(oob.serve(spec.bind, spec.port))
    return f"oob {_host(spec.bind)}:{port}"


def _der(cert: Path) -> bytes:
    """Return the server's own certificate, the first of its chain."""
    text = cert.read_text(encoding="ascii")
    mark = "-----END CERTIFICATE-----"
    return ssl.PEM_cert_to_DER_cert(text[text.index("-----BEGIN") : text.index(mark)] + mark)


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address
