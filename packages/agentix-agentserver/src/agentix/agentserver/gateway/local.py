"""The local gateway: an organism for one program of this machine, over a Unix socket.

    agentserver-pump ORGANISM.yaml SOCKET

A connection carries one request, a line of JSON, and its answer: lines `{"item": ...}`, then
`{"end": true}` or `{"error": {"type": ..., "message": ...}}`. The program ends when its standard
input does, so that it never outlives who started it.
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

from agentix.agentserver.errors import AgentServerError
from agentix.agentserver.events import Event
from agentix.agentserver.gateway.service import Service, open_gateways
from agentix.agentserver.organism import Organism, wrap
from agentix.agentserver.principal import Principal
from agentix.agentserver.privileged import PrivilegedError
from agentix.agentserver.xml.envelope import open_envelope
from agentix.agentserver.xml.limits import Limits
from agentix.errors import AgentixError

__all__ = ["LocalGateway", "main"]

logger = logging.getLogger(__name__)

PRINCIPAL = Principal("agentix", admin=True)
"""Who the program is to the organism; it never says so itself."""

REQUEST_BYTES = 64 << 20
"""Bytes of the longest request."""

GRACE = 10.0
"""Seconds that what is under way may take at the end."""


class RequestError(AgentServerError, ValueError):
    """A request is not one that this gateway knows."""


class LocalGateway:
    """Answers the requests of one program.

    Args:
        organism: The organism, which runs.
        service: Its other gateways.
    """

    def __init__(self, organism: Organism, service: Service) -> None:
        self._organism = organism
        self._service = service

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
        sending = asyncio.create_task(self._send(line, writer))
        leaving = asyncio.create_task(reader.read(1))
        try:
            # A client that goes takes its request with it.
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)

    async def _send(self, line: bytes, writer: asyncio.StreamWriter) -> None:
        try:
            async with aclosing(self._answer(json.loads(line))) as items:
                async for item in items:
                    writer.write(_line({"item": item}))
                    await writer.drain()
            writer.write(_line({"end": True}))
        except ConnectionError:
            return
        except Exception as error:
            if not isinstance(error, AgentixError | ValueError):
                logger.exception("a request failed")
            writer.write(_line({"error": _error(error)}))
        await writer.drain()

    async def _answer(self, request: dict[str, Any]) -> AsyncGenerator[Any, None]:
        """Gives the items of an answer."""
        organism = self._organism
        match request:
            case {"op": "info"}:
                yield self._info()
            case {"op": "post", "message": str(message), "thread": thread}:
                yield asdict(await organism.post(_wrapped(message, thread), PRINCIPAL))
            case {"op": "call", "message": str(message), "thread": thread, "seconds": seconds}:
                envelope = _wrapped(message, thread)
                for reply in await organism.call(envelope, PRINCIPAL, timeout=float(seconds)):
                    yield _message(reply)
            case {"op": "listen", "thread": thread, "after_seq": int(after_seq)}:
                async for event in organism.listen(thread, after_seq):
                    yield _event(event)
            case {"op": "history", "thread": str(thread)}:
                async for event in organism.history(thread):
                    yield _message(event.xml)
            case {"op": "threads"}:
                for thread in organism.threads():
                    yield asdict(thread)
            case {"op": "describe", "capability": str(name)}:
                yield self._describe(name)
            case {"op": "privileged", "signed": str(signed)}:
                yield await self._privileged(signed)
            case _:
                raise RequestError(f"no such request: {str(request)[:200]}")

    def _info(self) -> dict[str, Any]:
        status = self._organism.status()
        return {
            "name": status["name"],
            "listeners": [each.name for each in self._organism.catalog()],
            "addresses": list(self._service.addresses),
            "isolation": [str(line) for line in status["isolation"]],
        }

    def _describe(self, name: str) -> dict[str, str]:
        try:
            found = self._organism.describe(name)
        except KeyError as error:
            raise RequestError(f"there is no listener {name!r}") from error
        return {
            "name": found.name,
            "description": found.description,
            "root_tag": found.root_tag,
            "xsd": found.xsd.decode(),
            "example": found.example,
            "prompt": found.prompt,
        }

    async def _privileged(self, signed: str) -> str:
        if self._service.oob is None:
            raise PrivilegedError("the organism has no out-of-band channel: set oob.enabled")
        return await self._service.oob.privileged(signed.encode())


def _wrapped(payload: str, thread: str | None) -> bytes:
    return wrap(payload, PRINCIPAL.name, thread)


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
            gateway = LocalGateway(organism, service)
            before = os.umask(0o177)
            try:
                server = await asyncio.start_unix_server(
                    gateway.connected, socket, limit=REQUEST_BYTES
                )
            finally:
                os.umask(before)
            async with server:
                print(json.dumps({"ready": True}), flush=True)
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
