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
import hashlib
import json
import logging
import os
import secrets
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from agentix.agentserver.catalog import Capability, Subject, may_ask
from agentix.agentserver.credentials import UserName
from agentix.agentserver.errors import (
    LocalRequestError,
    PrivilegedError,
    TokenError,
    UsersError,
)
from agentix.agentserver.gateway.service import Service, open_gateways
from agentix.agentserver.log import Event
from agentix.agentserver.names import RESERVED, Principal
from agentix.agentserver.organism import Organism, ThreadInfo, wrap
from agentix.agentserver.spec import reasons
from agentix.agentserver.xml.envelope import open_envelope
from agentix.agentserver.xml.parser import MessageLimits
from agentix.errors import AgentixError

__all__ = [
    "CallRequest",
    "CatalogRequest",
    "DescribeRequest",
    "GrantRequest",
    "HistoryRequest",
    "InfoRequest",
    "ListenRequest",
    "LocalGateway",
    "LocalRequest",
    "LocalRequestError",
    "OwnersRequest",
    "PostRequest",
    "PrivilegedRequest",
    "RevokeRequest",
    "ThreadsRequest",
    "TokenGrant",
    "Tokens",
    "main",
    "read_request",
]

logger = logging.getLogger(__name__)


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    token: str = Field(default="", repr=False)
    """Whose request it is."""


class PostRequest(_Request):
    """Posts a payload."""

    op: Literal["post"]
    message: str
    """The payload."""
    thread: str | None = None
    """The thread to go on with."""


class CallRequest(_Request):
    """Posts a payload, and waits for what comes back."""

    op: Literal["call"]
    message: str
    """The payload."""
    thread: str | None = None
    """The thread to go on with."""
    seconds: float = Field(default=60.0, allow_inf_nan=False)
    """How long to wait."""


class ListenRequest(_Request):
    """Streams events."""

    op: Literal["listen"]
    thread: str | None = None
    """The thread that they are of."""
    after_seq: int = 0
    """The number of the last event that is known."""


class HistoryRequest(_Request):
    """Streams the messages of a thread."""

    op: Literal["history"]
    thread: str
    """The thread."""


class ThreadsRequest(_Request):
    """Lists threads."""

    op: Literal["threads"]


class DescribeRequest(_Request):
    """Describes a listener."""

    op: Literal["describe"]
    capability: str
    """Its name."""


class CatalogRequest(_Request):
    """Describes all listeners that may be called."""

    op: Literal["catalog"]


class OwnersRequest(_Request):
    """What is for whoever started the organism, and for no other principal."""


class InfoRequest(OwnersRequest):
    """Tells what runs."""

    op: Literal["info"]


class GrantRequest(OwnersRequest):
    """Makes a token for a principal."""

    op: Literal["grant"]
    principal: UserName
    """Its name."""
    roots: tuple[str, ...] | None = None
    """The root tags that it may send; all where there are none given."""


class RevokeRequest(OwnersRequest):
    """Ends the token of a principal."""

    op: Literal["revoke"]
    principal: str
    """Its name."""


class PrivilegedRequest(OwnersRequest):
    """Carries a signed command out."""

    op: Literal["privileged"]
    signed: str
    """The `privileged-msg`."""


LocalRequest = Annotated[
    PostRequest
    | CallRequest
    | ListenRequest
    | HistoryRequest
    | ThreadsRequest
    | DescribeRequest
    | CatalogRequest
    | InfoRequest
    | GrantRequest
    | RevokeRequest
    | PrivilegedRequest,
    Field(discriminator="op"),
]

REQUEST: TypeAdapter[LocalRequest] = TypeAdapter(LocalRequest)


def read_request(line: bytes) -> LocalRequest:
    """Read a request.

    Raises:
        LocalRequestError: It is none; nothing that was given is shown, because tokens are.
    """
    try:
        return REQUEST.validate_json(line)
    except ValidationError as error:
        raise LocalRequestError(f"no request: {reasons(error, ())}") from None


TOKEN_BYTES = 32
"""Bytes of chance in a token."""


@dataclass(frozen=True, eq=False)
class TokenGrant:
    """What a token is good for."""

    principal: Principal
    """Who asks by it."""
    revoked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is good no longer, which ends what it is being answered."""


class Tokens:
    """The tokens of one organism, one for a principal; only their digests are kept."""

    def __init__(self) -> None:
        self._grants: dict[bytes, TokenGrant] = {}

    def grant(self, principal: Principal) -> str:
        """Make a token, in place of one that the principal had."""
        self.revoke(principal.name)
        token = secrets.token_urlsafe(TOKEN_BYTES)
        self._grants[_digest(token)] = TokenGrant(principal)
        return token

    def revoke(self, name: str) -> bool:
        """End the token of a principal.

        Returns:
            Whether it had one.
        """
        for digest, grant in self._grants.items():
            if grant.principal.name == name:
                del self._grants[digest]
                grant.revoked.set()
                return True
        return False

    def find(self, token: str) -> TokenGrant:
        """Return what a token is good for.

        The digests are looked up, so the time that this takes tells nothing of any token.

        Raises:
            TokenError: It is not good.
        """
        grant = self._grants.get(_digest(token))
        if grant is None:
            raise TokenError(
                "the token is missing, wrong or revoked: whoever started the organism grants one"
            )
        return grant


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


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
        """Serve one connection: its request, to the end of the answer or of the connection."""
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
        self, request: LocalRequest, principal: Principal, writer: asyncio.StreamWriter
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

    async def _answer(
        self, request: LocalRequest, principal: Principal
    ) -> AsyncGenerator[Any, None]:
        """Return the items of an answer."""
        organism, whose = self._organism, _whose(principal)
        match request:
            case OwnersRequest() if principal is not OWNER:
                raise TokenError(f"{request.op!r} is for {OWNER.name} alone, who gave the token")
            case PostRequest(message=message, thread=thread):
                envelope = wrap(message, principal.name, thread)
                yield asdict(await organism.post(envelope, principal))
            case CallRequest(message=message, thread=thread, seconds=seconds):
                envelope = wrap(message, principal.name, thread)
                for reply in await organism.call(envelope, principal, timeout=seconds):
                    yield _message(reply)
            case ListenRequest(thread=thread, after_seq=after_seq):
                async for event in organism.listen(thread, after_seq, whose):
                    yield _event(event)
            case HistoryRequest(thread=thread):
                async for event in organism.history(thread, whose):
                    yield _message(event.xml)
            case ThreadsRequest():
                for each in self._threads(whose):
                    yield asdict(each)
            case DescribeRequest(capability=name):
                yield self._describe(name, principal)
            case CatalogRequest():
                for found in organism.catalog(principal):
                    yield self._shown(found, principal)
            case InfoRequest():
                yield self._info()
            case GrantRequest():
                yield self._grant(request)
            case RevokeRequest(principal=name):
                self._revoke(name)
                yield None
            case PrivilegedRequest(signed=signed):
                yield await self._privileged(signed)

    def _threads(self, whose: Principal | None) -> list[ThreadInfo]:
        """Return all threads; of a principal its own alone, and not those of listeners below."""
        threads = self._organism.threads()
        return [each for each in threads if whose is None or each.path == (whose.name,)]

    def _describe(self, name: str, principal: Principal) -> dict[str, str]:
        for found in self._organism.catalog(principal):
            if found.name == name:
                return self._shown(found, principal)
        raise LocalRequestError(f"there is no listener {name!r}: ask for the catalog")

    def _shown(self, capability: Capability, principal: Principal) -> dict[str, str]:
        """Return a listener, as far as the settings of meta queries allow the principal."""
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

    def _grant(self, request: GrantRequest) -> str:
        name = request.principal
        if (reason := self._taken(name)) is not None:
            raise TokenError(f"no token for {name!r}, {reason}: choose another name")
        roots = None if request.roots is None else frozenset(request.roots)
        return self._tokens.grant(Principal(name, roots))

    def _taken(self, name: str) -> str | None:
        """Return why a principal may not have a name; another's messages would look like its."""
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
    """Return whose events and threads a principal may see: its own, or everybody's."""
    return None if principal is OWNER else principal


def _message(xml: bytes) -> dict[str, Any]:
    """Take an envelope of the organism's own apart."""
    envelope = open_envelope(xml, MessageLimits(size=sys.maxsize))
    return {
        "thread": envelope.thread,
        "sender": envelope.sender,
        "to": envelope.to,
        "xml": xml.decode(),
    }


def _event(event: Event) -> dict[str, Any]:
    return asdict(event) | {"xml": event.xml.decode()}


def _error(error: Exception) -> dict[str, str]:
    # Programs know the error of a request by its name without `Local`.
    return {"type": type(error).__name__.removeprefix("Local"), "message": str(error)}


def _line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


async def serve(path: Path, socket: Path) -> None:
    """Run an organism until standard input ends, or a privileged message ends it."""
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
                await asyncio.wait_for(organism.wait_idle(), GRACE)


async def _end_of_input() -> None:
    """Wait until who started the program closes its standard input, or is gone."""
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    while await reader.read(1024):
        pass


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve; what keeps the organism from starting is the one line on standard output."""
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
