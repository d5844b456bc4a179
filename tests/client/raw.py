"""A server that answers with given bytes, for the answers that a good server never gives."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

NDJSON = "application/x-ndjson"
SSE = "text/event-stream"


def answer(body: bytes | str, status: int = 200, media_type: str = "application/json") -> bytes:
    """Gives a complete answer."""
    content = body.encode() if isinstance(body, str) else body
    return head(status, media_type, f"Content-Length: {len(content)}") + content


def head(status: int, media_type: str, *fields: str) -> bytes:
    lines = (f"HTTP/1.1 {status} Status", f"Content-Type: {media_type}", *fields, "", "")
    return "\r\n".join(lines).encode()


def chunked(*chunks: bytes | str, media_type: str = NDJSON, end: bool = True) -> bytes:
    """Gives an answer in chunks, without its last one where `end` is false."""
    pieces = [chunk.encode() if isinstance(chunk, str) else chunk for chunk in chunks]
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece)
    return head(200, media_type, "Transfer-Encoding: chunked") + body + (b"0\r\n\r\n" * end)


def chunk(piece: str) -> bytes:
    """Gives one chunk of an answer under way."""
    content = piece.encode()
    return b"%x\r\n%b\r\n" % (len(content), content)


@dataclass
class Request:
    line: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Exchange:
    """One connection, as the test's handler holds it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def request(self) -> Request:
        text = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        line, *fields = text.strip().split("\r\n")
        pairs = (field.split(": ", 1) for field in fields)
        headers = {name.lower(): value for name, value in pairs}
        body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return Request(line, headers, body)

    async def send(self, content: bytes) -> None:
        self.writer.write(content)
        await self.writer.drain()

    async def left(self) -> None:
        """Returns when the client has closed the connection."""
        with suppress(ConnectionError):
            await self.reader.read()


Handler = Callable[[Exchange], Awaitable[None]]


@dataclass
class RawServer:
    url: str
    requests: list[Request] = field(default_factory=list)
    connections: int = 0


@dataclass
class Place:
    """Where servers of a test listen: on TCP, or on a Unix socket."""

    socket: Path | None

    @asynccontextmanager
    async def serve(self, handler: Handler) -> AsyncIterator[RawServer]:
        """Runs a handler for each connection, which is closed when the handler returns."""
        running: set[asyncio.Task[None]] = set()
        state = RawServer("")

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            running.add(task)
            state.connections += 1
            try:
                await handler(Exchange(reader, writer))
            except (asyncio.CancelledError, asyncio.IncompleteReadError, ConnectionError):
                pass
            finally:
                writer.close()
                running.discard(task)

        if self.socket is None:
            server = await asyncio.start_server(connected, "127.0.0.1", 0)
            state.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        else:
            server = await asyncio.start_unix_server(connected, self.socket)
            state.url = f"unix:{self.socket}"
        try:
            yield state
        finally:
            server.close()
            for task in list(running):
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    @asynccontextmanager
    async def answering(self, *answers: bytes, close: bool = False) -> AsyncIterator[RawServer]:
        """Gives the answers in turn, on one connection or several, the last one for ever."""
        left = list(answers)

        async def handle(exchange: Exchange) -> None:
            while True:
                state.requests.append(await exchange.request())
                await exchange.send(left.pop(0) if len(left) > 1 else left[0])
                if close:
                    return

        async with self.serve(handle) as state:
            yield state
