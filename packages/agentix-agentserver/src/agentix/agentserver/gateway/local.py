"""The local gateway: an organism for the programs of this machine, over a Unix socket.

    agentserver-pump ORGANISM.yaml SOCKET

A connection carries one request, a line of JSON, and its answer: lines `{"item": ...}`, then
`{"end": true}` or `{"error": {"type": ..., "message": ...}}`. A request has a token, which says
whose it is. Whoever started the program gets the first one, of the principal `agentix`, on the
program's standard output, and has others made for other principals. The program ends when its
standard input does, so that it never outlives who started it.
"""

import argparse
import asyncio
import json
import logging
import os
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentix.agentserver.capability import Capability
from agentix.agentserver.events import Event
from agentix.agentserver.gateway.requests import (
    Call,
    Catalog,
    Describe,
    Grant,
    History,
    Info,
    Listen,
    OwnersRequest,
    Post,
    Privileged,
    Request,
    RequestError,
    Revoke,
    Threads,
    read_request,
)
from agentix.agentserver.gateway.service import Service, open_gateways
from agentix.agentserver.gateway.tokens import TokenError, Tokens
from agentix.agentserver.meta import Subject, may_ask
from agentix.agentserver.names import RESERVED
from agentix.agentserver.organism import Organism, ThreadInfo, wrap
from agentix.agentserver.principal import Principal
from agentix.agentserver.privileged import PrivilegedError
from agentix.agentserver.users import UsersError
from agentix.agentserver.xml.envelope import open_envelope
from agentix.agentserver.xml.limits import Limits
from agentix.errors import AgentixError

__all__ = ["LocalGateway", "main"]

logger = logging.getLogger(__name__)

OWNER = Principal("agentix", admin=True)
"""Whoever started the program; it sees everything."""

REQUEST_BYTES = 64 << 20
"""Bytes of the longest request."""

GRACE = 10.0
"""Seconds that what is under way may take at the end."""


class LocalGateway:
    """Answers the requests of programs.

    Args:
        organism: The organism, which runs.
        service: Its other gateways.
        tokens: The tokens that are good, its owner's among them.
        socket: Where it is reached.
    """

    def __init__(self, organism: Organism, service: Service, tokens: Tokens, socket: Path) -> None:
        self._organism = organism
        self._service = service
        self._tokens = tokens
        self._socket = socket

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection: its request, to the end of the answer or of the connection."""
        answering = asyncio.create_task(self._serve(reader, writer))
        try:
            await answering
        except ConnectionError:
            pass
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        if not line:
            return
        try:
            request = read_request(line)
            grant = self._tokens.find(request.token)
        except AgentixError as error:
            writer.write(_line({"error": _error(error)}))
            return
        sending = asyncio.create_task(self._send(request, grant.principal, writer))
        leaving = asyncio.create_task(reader.read(1))
        revoked = asyncio.create_task(grant.revoked.wait())
        try:
            # A client that goes takes its request with it, and so does a token that ends.
            await asyncio.wait({sending, leaving, revoked}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving, revoked):
                task.cancel()
            await asyncio.gather(sending, leaving, revoked, return_exceptions=True)
        if sending.cancelled() and grant.revoked.is_set():
            writer.write(_line({"error": _error(TokenError("the token was revoked"))}))

    async def _send(
        self, request: Request, principal: Principal, writer: asyncio.StreamWriter
    ) -> None:
        try:
            async with aclosing(self._answer(request, principal)) as items:
                async for item in items:
                    writer.write(_line({"item": item}))
                    await writer.drain()
            writer.write(_line({"end": True}))
        except ConnectionError:
            return
        except Exception as error:
            if not isinstance(error, AgentixError):
                logger.exception("a request failed")
            writer.write(_line({"error": _error(error)}))
        await writer.drain()

    async def _answer(self, request: Request, principal: Principal) -> AsyncGenerator[Any, None]:
        """Gives the items of an answer."""
        organism, whose = self._organism, _whose(principal)
        match request:
            case OwnersRequest() if principal is not OWNER:
                raise TokenError(f"{request.op!r} is for {OWNER.name} alone, who gave the token")
            case Post(message=message, thread=thread):
                envelope = wrap(message, principal.name, thread)
                yield asdict(await organism.post(envelope, principal))
            case Call(message=message, thread=thread, seconds=seconds):
                envelope = wrap(message, principal.name, thread)
                for reply in await organism.call(envelope, principal, timeout=seconds):
                    yield _message(reply)
            case Listen(thread=thread, after_seq=after_seq):
                async for event in organism.listen(thread, after_seq, whose):
                    yield _event(event)
            case History(thread=thread):
                async for event in organism.history(thread, whose):
                    yield _message(event.xml)
            case Threads():
                for each in self._threads(whose):
                    yield asdict(each)
            case Describe(capability=name):
                yield self._describe(name, principal)
            case Catalog():
                for found in organism.catalog(principal):
                    yield self._shown(found, principal)
            case Info():
                yield self._info()
            case Grant():
                yield self._grant(request)
            case Revoke(principal=name):
                self._revoke(name)
                yield None
            case Privileged(signed=signed):
                yield await self._privileged(signed)

    def _threads(self, whose: Principal | None) -> list[ThreadInfo]:
        """Gives all threads; of a principal its own alone, and not those of listeners below."""
        threads = self._organism.threads()
        return [each for each in threads if whose is None or each.path == (whose.name,)]

    def _describe(self, name: str, principal: Principal) -> dict[str, str]:
        for found in self._organism.catalog(principal):
            if found.name == name:
                return self._shown(found, principal)
        raise RequestError(f"there is no listener {name!r}: ask for the catalog")

    def _shown(self, capability: Capability, principal: Principal) -> dict[str, str]:
        """Gives a listener, as far as the settings of meta queries allow the principal."""
        meta = self._organism.spec.meta

        def allowed(subject: Subject) -> bool:
            return principal is OWNER or may_ask(meta, principal, subject)

        return {
            "name": capability.name,
            "description": capability.description,
            "root_tag": capability.root_tag,
            "xsd": capability.xsd.decode() if allowed("schema") else "",
            "example": capability.example if allowed("example") else "",
            "prompt": capability.prompt if allowed("prompt") else "",
        }

    def _info(self) -> dict[str, Any]:
        status = self._organism.status()
        return {
            "name": status["name"],
            "listeners": [each.name for each in self._organism.catalog()],
            "addresses": list(self._service.addresses),
            "isolation": [str(line) for line in status["isolation"]],
            "socket": str(self._socket),
        }

    def _grant(self, request: Grant) -> str:
        name = request.principal
        if (reason := self._taken(name)) is not None:
            raise TokenError(f"no token for {name!r}, {reason}: choose another name")
        roots = None if request.roots is None else frozenset(request.roots)
        return self._tokens.grant(Principal(name, roots))

    def _taken(self, name: str) -> str | None:
        """Tells why a principal may not have a name; another's messages would look like its."""
        first = {each.name.partition(".")[0].lower() for each in self._organism.catalog()}
        if name == OWNER.name:
            return "who is whoever started the organism"
        if name.lower() in RESERVED:
            return "which is reserved for the pump"
        if name.lower() in first:
            return "with which the name of a listener begins"
        if name in self._service.users:
            return "who is a user of the WebSocket gateway"
        return None

    def _revoke(self, name: str) -> None:
        if name == OWNER.name or not self._tokens.revoke(name):
            raise TokenError(f"{name!r} has no token that could be revoked")

    async def _privileged(self, signed: str) -> str:
        if self._service.oob is None:
            raise PrivilegedError("the organism has no out-of-band channel: set oob.enabled")
        return await self._service.oob.privileged(signed.encode())


def _whose(principal: Principal) -> Principal | None:
    """Gives whose events and threads a principal may see: its own, or everybody's."""
    return None if principal is OWNER else principal


def _message(xml: bytes) -> dict[str, Any]:
    """Takes an envelope of the organism's own apart."""
    envelope = open_envelope(xml, Limits(size=sys.maxsize))
    return {
        "thread": envelope.thread,
        "sender": envelope.sender,
        "to": envelope.to,
        "xml": xml.decode(),
    }


def _event(event: Event) -> dict[str, Any]:
    return asdict(event) | {"xml": event.xml.decode()}


def _error(error: Exception) -> dict[str, str]:
    return {"type": type(error).__name__, "message": str(error)}


def _line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


async def serve(path: Path, socket: Path) -> None:
    """Runs an organism until standard input ends, or a privileged message ends it."""
    async with Organism.from_yaml(path) as organism:
        async with open_gateways(organism) as service:
            if OWNER.name in service.users:
                raise UsersError(f"user {OWNER.name!r} has the name of the owner: rename it")
            tokens = Tokens()
            gateway = LocalGateway(organism, service, tokens, socket)
            before = os.umask(0o177)
            try:
                server = await asyncio.start_unix_server(
                    gateway.connected, socket, limit=REQUEST_BYTES
                )
            finally:
                os.umask(before)
            async with server:
                print(json.dumps({"ready": True, "token": tokens.grant(OWNER)}), flush=True)
                leaving = asyncio.create_task(_end_of_input())
                both: set[asyncio.Future[Any]] = {leaving, service.ended}
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                leaving.cancel()
        if not service.ended.done() or service.ended.result().mode == "graceful":
            with suppress(TimeoutError):
                await asyncio.wait_for(organism.settled(), GRACE)


async def _end_of_input() -> None:
    """Waits until who started the program closes its standard input, or is gone."""
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    while await reader.read(1024):
        pass


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves; what keeps the organism from starting is the one line on standard output."""
    parser = argparse.ArgumentParser(prog="agentserver-pump", description=__doc__)
    parser.add_argument("organism", type=Path, metavar="ORGANISM.yaml")
    parser.add_argument("socket", type=Path, metavar="SOCKET")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        asyncio.run(serve(options.organism, options.socket))
    except (AgentixError, OSError) as error:
        print(json.dumps({"error": _error(error)}), flush=True)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
