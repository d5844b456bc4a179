"""What stands between a producer and the socket, so that a slow reader stalls the producer."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress

from starlette.types import Receive, Send

from agentix.runtime.http import Headers, wait_for_disconnect

__all__ = ["Outbox", "send_from"]


class Outbox:
    """Bytes that wait for the socket.

    They gather while the socket is busy; what finds it idle goes out by itself.

    Args:
        high_water: Bytes from which on the producer should wait.
    """

    def __init__(self, high_water: int) -> None:
        self._high_water = high_water
        self._waiting = bytearray()
        self._ended = False
        self._abandoned = False
        self._filled = asyncio.Event()
        self._drained = asyncio.Event()
        self._on_drained: Callable[[], None] | None = None

    @property
    def full(self) -> bool:
        """Whether the producer should wait."""
        return len(self._waiting) >= self._high_water

    def put(self, data: bytes) -> None:
        """Adds bytes, also beyond the mark."""
        self._waiting += data
        if not self._filled.is_set():
            self._filled.set()

    def end(self) -> None:
        """Note that nothing more comes."""
        self._ended = True
        self._filled.set()

    def abandon(self) -> None:
        """Note that nobody takes anything any more: the producer must not go on."""
        self._abandoned = True
        self._high_water = 0

    async def drained(self) -> None:
        """Waits until all of it was taken.

        Raises:
            CancelledError: It was abandoned, and the producer went on in spite of its cancellation.
        """
        if self._abandoned:
            raise asyncio.CancelledError
        self._drained.clear()
        await self._drained.wait()

    def on_drained(self, callback: Callable[[], None]) -> None:
        """Calls back, once, when all of it was taken."""
        self._on_drained = callback

    async def take(self) -> bytes:
        """Waits for bytes and gives all there are; none means the end."""
        await self._filled.wait()
        if not self._ended:
            self._filled.clear()
        taken = bytes(self._waiting)
        self._waiting.clear()
        self._drained.set()
        callback, self._on_drained = self._on_drained, None
        if callback is not None:
            callback()
        return taken


async def send_from(
    outbox: Outbox,
    producer: Coroutine[None, None, None],
    headers: Headers,
    receive: Receive,
    send: Send,
) -> None:
    """Answers with what a producer puts into an outbox, until the producer ends.

    The producer is cancelled, and waited for, when the client leaves.

    Args:
        outbox: Where the producer puts its bytes.
        producer: Runs in a task of its own; its errors are its own to report.
        headers: The header fields of the answer.
        receive: The channel of a request whose body was read.
        send: The channel of the answer.
    """
    work = asyncio.create_task(producer)
    work.add_done_callback(lambda _: outbox.end())
    watcher = asyncio.create_task(_cancel_when_gone(work, outbox, receive))
    try:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while data := await outbox.take():
            await send({"type": "http.response.body", "body": data, "more_body": True})
        if not work.cancelled():
            await send({"type": "http.response.body", "body": b"", "more_body": False})
    finally:
        watcher.cancel()
        outbox.abandon()
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work


async def _cancel_when_gone(work: asyncio.Task[None], outbox: Outbox, receive: Receive) -> None:
    await wait_for_disconnect(receive)
    outbox.abandon()
    work.cancel()
