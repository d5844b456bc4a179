"""Stream: the items of an answer that is still being written."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from aiohttp import ClientResponse

from agentix.client.connection import Connection
from agentix.errors import UsageError

__all__ = ["Batch", "Decoder", "LineBuffer", "Stream"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

END_GRACE = 1.0
"""Seconds that a finished answer may take to close its framing before the connection is dropped."""


@dataclass(frozen=True, slots=True)
class Batch(Generic[T_co]):
    """What a piece of an answer holds."""

    items: Sequence[T_co]
    """The items, in order."""
    ending: Exception | None = None
    """What the stream ends with after them: `StopAsyncIteration`, or why it failed."""


class Decoder(Protocol[T_co]):
    """Turns whole lines of an answer into items."""

    def decode(self, lines: bytes) -> Batch[T_co]:
        """Decodes one or more lines, each with its line end."""

    def cut_short(self) -> Exception:
        """Makes the error for an answer that stops without its explicit end."""


class LineBuffer:
    """Holds back the part of a line that has come so far."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def feed(self, chunk: bytes) -> bytes:
        """Takes the next bytes and gives the lines that are whole now, in one piece."""
        end = chunk.rfind(b"\n") + 1
        if not end:
            self._pieces.append(chunk)
            return b""
        lines = b"".join((*self._pieces, chunk[:end]))
        self._pieces = [chunk[end:]] if end < len(chunk) else []
        return lines

    def rest(self) -> bytes:
        """Gives the last line where the answer ended without a line end."""
        return b"".join(self._pieces) + b"\n" if self._pieces else b""


class Stream(AsyncIterator[T]):
    """The items of an answer, to be read with `async for`.

    The request is sent when the first item is asked for. Leaving the loop, `aclose()` and
    cancellation close the connection at once, which tells the sandbox to stop; to be sure that a
    stream held in a variable is closed, read it within `contextlib.aclosing`. No more than what
    one read of the socket brings is held in memory: a slow reader stalls the writer.
    """

    def __init__(
        self,
        connection: Connection,
        answer: Callable[[], Awaitable[ClientResponse]],
        decoder: Decoder[T],
    ) -> None:
        self._connection = connection
        self._answer = answer
        self._decoder = decoder
        self._lines = LineBuffer()
        self._ready: deque[T] = deque()
        self._ending: Exception | None = None
        self._response: ClientResponse | None = None

    def __aiter__(self) -> "Stream[T]":
        return self

    async def __anext__(self) -> T:
        """Gives the next item.

        Raises:
            RemoteCallError: The call failed in the sandbox, after the items that came before.
            SandboxGoneError: The sandbox can not be reached, or its answer broke off.
            SerializationError: An item is not of the declared type.
        """
        while not self._ready:
            if self._ending is not None:
                await self._release()
                if isinstance(self._ending, StopAsyncIteration):
                    raise StopAsyncIteration
                raise self._ending
            await self._receive()
        return self._ready.popleft()

    async def _receive(self) -> None:
        try:
            if self._response is None:
                self._response = await self._answer()
            chunk = await self._connection.read_some(self._response)
            batch = self._decode(chunk)
        except Exception as error:
            self._stop(error)
        except BaseException:
            self._stop(UsageError("the stream was closed when the wait for an item was cancelled"))
            raise
        else:
            self._ready.extend(batch.items)
            self._ending = self._ending or batch.ending

    def _decode(self, chunk: bytes) -> Batch[T]:
        lines = self._lines.feed(chunk) if chunk else self._lines.rest()
        batch = self._decoder.decode(lines) if lines else Batch(())
        if chunk or batch.ending is not None:
            return batch
        return Batch(batch.items, self._decoder.cut_short())

    async def aclose(self) -> None:
        """Closes the connection at once; the sandbox stops the call. Further items are dropped."""
        self._ready.clear()
        self._stop(StopAsyncIteration())

    def _stop(self, ending: Exception) -> None:
        self._ending = self._ending or ending
        if self._response is not None:
            self._response.close()

    async def _release(self) -> None:
        """Gives the connection back for the next call, once the answer's framing is complete."""
        response = self._response
        if response is None or response.closed:
            return
        try:
            async with asyncio.timeout(END_GRACE):
                await response.content.readany()
        except Exception:
            response.close()
        finally:
            response.release()

    def __del__(self) -> None:
        if self._response is not None:
            self._response.close()
