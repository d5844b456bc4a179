"""Large request bodies, sent in pieces."""

import asyncio
import fcntl
import termios
from abc import abstractmethod
from array import array
from collections.abc import AsyncIterator, Iterator

from aiohttp import Payload
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import StreamWriter

__all__ = ["CHUNK", "Content", "Pieces", "slices", "unsent"]

CHUNK = 256 * 1024
"""Bytes that go to the socket at a time."""


class Pieces(Payload):
    """A body that is sent in pieces, once.

    A runtime that refuses a request may answer and hang up while the body is still on its way.
    The answer says why, so a broken connection is left to whoever waits for that answer.
    """

    _transport: asyncio.Transport | None = None
    _sent = 0

    @abstractmethod
    def pieces(self) -> AsyncIterator[bytes | memoryview]:
        """Iterate over the body from its start to its end."""

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Send the body."""
        if isinstance(writer, StreamWriter):
            self._transport = writer.transport
        try:
            async for piece in self.pieces():
                await _let_answer_in()
                await writer.write(piece)
                self._sent += 1
        except ConnectionError:
            return

    def progress(self) -> object:
        """Return how much of the body the other side has taken, as a value to compare."""
        return self._sent, 0 if self._transport is None else unsent(self._transport)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Refuse what aiohttp asks for: the body is sent, never looked at."""
        raise TypeError("a body that is sent in pieces has no text")


def unsent(transport: asyncio.Transport) -> int:
    """Return how many bytes of a connection the other side has not taken yet."""
    connected = transport.get_extra_info("socket")
    if transport.is_closing() or connected is None:
        return 0
    queued = array("i", [0])
    # What waits in the kernel: on TCP until it is acknowledged, on a Unix socket until it is read
    # (man 7 tcp, SIOCOUTQ, which is TIOCOUTQ).
    fcntl.ioctl(connected.fileno(), termios.TIOCOUTQ, queued)
    return transport.get_write_buffer_size() + queued[0]


async def _let_answer_in() -> None:
    """Let the event loop read what has come; a write to a closed connection would discard it.

    In one turn the loop finds the socket readable, but runs this task ahead of the reading.
    """
    await asyncio.sleep(0)
    await asyncio.sleep(0)


class Content(Pieces):
    """Bytes in memory as a body."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self._content = content
        self._size = len(content)

    async def pieces(self) -> AsyncIterator[memoryview]:
        """Iterate over views of the bytes."""
        for piece in slices(self._content):
            yield piece


def slices(content: bytes) -> Iterator[memoryview]:
    """Cut bytes into pieces for the socket, without a copy."""
    view = memoryview(content)
    return (view[start : start + CHUNK] for start in range(0, len(view), CHUNK))
