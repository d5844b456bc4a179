"""Stream: the items of an answer that is still being written."""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from aiohttp import ClientResponse

from agentix.client.bounds import Cap
from agentix.client.connection import Connection
from agentix.errors import AnswerTooLargeError, RemoteCallError, UsageError

__all__ = ["Batch", "Decoder", "LineBuffer", "Stream"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

LONG_LINE = 64 * 1024
"""Bytes from which a line is handed on by itself rather than copied together with what follows."""

FAILURE_START = 256 * 1024
"""Bytes of a line beyond its cap that are looked at for why the call failed."""


@dataclass(frozen=True, slots=True)
class Batch(Generic[T_co]):
    """What a piece of an answer holds."""

    items: Sequence[T_co]
    """The items, in order."""
    ending: Exception | None = None
    """What the stream ends with after them: `StopAsyncIteration`, or why it failed."""


class Decoder(Protocol[T_co]):
    """What turns whole lines of an answer into items."""

    def decode(self, lines: bytes | bytearray) -> Batch[T_co]:
        """Decode one or more lines, each with its line end."""

    def cut_failure(self, start: bytes) -> RemoteCallError | None:
        """Make the error of a failed call from the beginning of a line beyond the cap."""

    def cut_short(self) -> Exception:
        """Make the error for an answer that stops without its explicit end."""


class LineBuffer:
    """The part of a line that has come so far.

    Args:
        cap: The most that one line may have.
    """

    def __init__(self, cap: Cap) -> None:
        self._cap = cap
        self._held = bytearray()

    @property
    def start(self) -> bytes:
        """How the line begins that has come so far."""
        return bytes(self._held[:FAILURE_START])

    def feed(self, chunk: bytes) -> Iterator[bytes | bytearray]:
        """Take the next bytes, and iterate over the lines that are whole now, several at a time.

        Raises:
            AnswerTooLargeError: A line is beyond the cap; those ahead of it have been handed out.
        """
        # A line beyond the cap is in more than one piece, so that a part of it is held.
        for start in range(0, len(chunk), self._cap.limit):
            yield from self._take(chunk[start : start + self._cap.limit])

    def _take(self, piece: bytes) -> Iterator[bytes | bytearray]:
        end = piece.rfind(b"\n") + 1
        if end and self._held:
            first = piece.find(b"\n") + 1
            self._hold(piece[:first])
            line, self._held = self._held, bytearray()
            if len(line) <= LONG_LINE:
                yield bytes(line) + piece[first:end]
            else:
                yield line
                if first < end:
                    yield piece[first:end]
        elif end:
            yield piece[:end]
        if end < len(piece):
            self._hold(piece[end:])

    def _hold(self, piece: bytes) -> None:
        self._cap.check_read(len(self._held) + len(piece))
        self._held += piece

    def rest(self) -> Iterator[bytes | bytearray]:
        """Iterate over the last line, if the answer ended without a line end."""
        if self._held:
            self._held += b"\n"
            yield self._held


class Stream(AsyncIterator[T]):
    """The items of an answer, to be read with `async for`.

    The request is sent when the first item is asked for. Leaving the loop, `aclose()` and
    cancellation close the connection at once, which tells the sandbox to stop; to be sure that a
    stream held in a variable is closed, read it within `contextlib.aclosing`. No more than what
    one read of the socket brings is held in memory, and one item: a slow reader stalls the writer.
    """

    def __init__(
        self,
        connection: Connection,
        answer: Callable[[], Awaitable[ClientResponse]],
        decoder: Decoder[T],
        cap: Cap,
    ) -> None:
        self._connection = connection
        self._answer = answer
        self._decoder = decoder
        self._lines = LineBuffer(cap)
        self._ready: deque[T] = deque()
        self._ending: Exception | None = None
        self._response: ClientResponse | None = None

    def __aiter__(self) -> "Stream[T]":
        return self

    async def __anext__(self) -> T:
        """Return the next item.

        Raises:
            RemoteCallError: The call failed in the sandbox, after the items that came before.
            SandboxGoneError: The sandbox cannot be reached, its answer broke off, or the client
                was closed.
            SerializationError: An item is not of the declared type.
            AnswerTooLargeError: An item is larger than the client's `max_item`.
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
            self._decode(await self._connection.read_some(self._response))
        except AnswerTooLargeError as error:
            self._stop(self._decoder.cut_failure(self._lines.start) or error)
        except Exception as error:
            self._stop(error)
        except BaseException:
            self._stop(UsageError("the stream was closed when the wait for an item was cancelled"))
            raise

    def _decode(self, chunk: bytes) -> None:
        """Take the items of what has come; at the end of the answer, of what is left."""
        for lines in self._lines.feed(chunk) if chunk else self._lines.rest():
            batch = self._decoder.decode(lines)
            self._ready.extend(batch.items)
            if batch.ending is not None:
                self._end(batch.ending)
                return
        if not chunk:
            self._end(self._decoder.cut_short())

    def _end(self, ending: Exception) -> None:
        """End the stream; where the other side has said its end, its connection is used again."""
        if isinstance(ending, StopAsyncIteration | RemoteCallError):
            self._ending = self._ending or ending
        else:
            self._stop(ending)

    async def aclose(self) -> None:
        """Close the connection at once; the sandbox stops the call. Further items are dropped."""
        self._ready.clear()
        self._stop(StopAsyncIteration())

    def _stop(self, ending: Exception) -> None:
        self._ending = self._ending or ending
        if self._response is not None:
            self._response.close()

    async def _release(self) -> None:
        if self._response is not None:
            await self._connection.finish(self._response)

    def __del__(self) -> None:
        if self._response is not None:
            self._response.close()
