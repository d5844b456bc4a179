"""Large request bodies, sent in pieces."""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator

from aiohttp import Payload
from aiohttp.abc import AbstractStreamWriter

__all__ = ["CHUNK", "Content", "Pieces", "slices"]

CHUNK = 256 * 1024
"""Bytes that go to the socket at a time."""


class Pieces(Payload):
    """A body that is sent in pieces, once.

    A runtime that refuses a request may answer and hang up while the body is still on its way.
    The answer says why, so a broken connection is left to whoever waits for that answer.
    """

    @abstractmethod
    def pieces(self) -> AsyncIterator[bytes | memoryview]:
        """Gives the body from its start to its end."""

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Sends the body."""
        try:
            async for piece in self.pieces():
                await _let_answer_in()
                await writer.write(piece)
        except ConnectionError:
            return

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Is there because aiohttp asks for it; the body is sent, never looked at."""
        raise TypeError("a body that is sent in pieces has no text")


async def _let_answer_in() -> None:
    """Lets the event loop read what has come; a write to a closed connection would discard it.

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
        """Gives views of the bytes."""
        for piece in slices(self._content):
            yield piece


def slices(content: bytes) -> Iterator[memoryview]:
    """Cuts bytes into pieces for the socket, without a copy."""
    view = memoryview(content)
    return (view[start : start + CHUNK] for start in range(0, len(view), CHUNK))
