"""One worker as the pump sees it: a socket that is not to be trusted, and what it prints."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from typing import Any

from agentix.agentserver.errors import FailureKind, FrameError, HandlerFailed, OversizedError
from agentix.agentserver.worker.handlers import FAILURE_KINDS
from agentix.agentserver.worker.protocol import DESCRIPTION, AnswerReader, CallOutcome, pack_frame

__all__ = [
    "HandlerProcess",
    "WorkerOutput",
    "printable",
]

logger = logging.getLogger(__name__)


OUTPUT_CHUNK = 64 * 1024
"""How much is read at a time, in bytes."""

QUOTA = 16 * 1024
"""How much of a worker's output is logged in one period, in bytes; the rest is counted."""

PERIOD = 1.0
"""The length of a period, in seconds."""

PAUSE = 0.01
"""How long a worker that prints more than its quota waits after each chunk, in seconds."""


def printable(text: str) -> str:
    """Return a handler's words so that they can move no cursor and hide no line of a log."""
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() or sign == "\n" else ascii(sign)[1:-1] for sign in text
    )


class WorkerOutput:
    """Logs what a worker prints, until it ends.

    Args:
        descriptor: The pipe, which does not block.
    """

    def __init__(self, descriptor: int) -> None:
        self.name = "a worker"
        """Whose output it is."""
        self._loop = asyncio.get_running_loop()
        self._descriptor = descriptor
        self._left = QUOTA
        self._dropped = 0
        self._period_end = 0.0
        self._loop.add_reader(descriptor, self._read)

    def close(self) -> None:
        """Log what is left in the pipe, and end."""
        if self._descriptor >= 0:
            self._read()
        self._end()

    def _read(self) -> None:
        try:
            data = os.read(self._descriptor, OUTPUT_CHUNK)
        except BlockingIOError:
            return
        if not data:
            self._end()
            return
        self._start_period()
        self._log(data[: self._left])
        self._dropped += max(0, len(data) - self._left)
        self._left = max(0, self._left - len(data))
        if self._left == 0:
            self._loop.remove_reader(self._descriptor)
            self._loop.call_later(PAUSE, self._resume)

    def _start_period(self) -> None:
        now = self._loop.time()
        if now >= self._period_end:
            self._tell_dropped()
            self._left = QUOTA
            self._period_end = now + PERIOD

    def _log(self, data: bytes) -> None:
        for line in data.decode(errors="backslashreplace").splitlines():
            logger.info("%s: %s", self.name, printable(line))

    def _tell_dropped(self) -> None:
        if self._dropped:
            logger.warning("%s: %d bytes of output are not logged", self.name, self._dropped)
            self._dropped = 0

    def _resume(self) -> None:
        if self._descriptor >= 0:
            self._loop.add_reader(self._descriptor, self._read)

    def _end(self) -> None:
        if self._descriptor < 0:
            return
        self._tell_dropped()
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = -1


CHUNK = 16 * 1024
"""How much is read from a worker at a time, in bytes; room for more would cost more to get."""

OUTCOMES = {int(outcome): outcome for outcome in CallOutcome}


class HandlerProcess:
    """A worker process, from the order to fork it to the news of its end.

    Args:
        number: Its number, by which the fork server knows it.
        channel: The pump's end of its socket, which does not block.
        limit: How many bytes the content of an answer may have.
        kill: Has the worker of a number killed; its end is told by `ended`.
    """

    def __init__(
        self, number: int, channel: socket.socket, limit: int, kill: Callable[[int], None]
    ) -> None:
        self.number = number
        self.deadline = 0.0
        """When the call under way has to be answered, by the clock of the loop."""
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        """Done when the process has ended."""
        self._channel = channel
        self._descriptor = channel.fileno()
        self._answers = AnswerReader(limit)
        self._kill = kill
        self._call = 0
        self._answer: asyncio.Future[tuple[CallOutcome, bytes]] | None = None
        self._unsent = b""
        self._failure: HandlerFailed | None = None
        self.usable = True
        """It takes another call."""
        self._loop.add_reader(self._descriptor, self._read)

    def send(self, frame: bytes) -> None:
        """Send a frame; what the socket does not take at once is sent as it does."""
        if self._failure is not None:
            return
        sent = 0 if self._unsent else self._send(frame)
        if sent < len(frame):
            if not self._unsent:
                self._loop.add_writer(self._descriptor, self._write)
            self._unsent += frame[sent:]

    async def call(
        self, payload_class: int, payload: dict[str, Any], thread_id: str, seconds: float
    ) -> bytes:
        """Return what the handler returns.

        Args:
            payload_class: Which class of the listener the payload is of.
            payload: The payload as plain values.
            thread_id: The thread, as the handler is told it.
            seconds: In what time the answer has to be there; `overdue` then says so.

        Raises:
            HandlerFailed: It returned no bytes, or the worker ended.
        """
        try:
            frame = pack_frame((self._call + 1, payload_class, payload, thread_id))
        except Exception as error:  # steps of a listener may make anything of its payload
            reason = f"its payload cannot be sent: {error!r}"
            raise HandlerFailed(FailureKind.RAISED, reason) from error
        self._call += 1
        self.deadline = self._loop.time() + seconds
        outcome, content = await self._ask(frame)
        if outcome is CallOutcome.VALUE:
            return content
        detail = printable(content.decode(errors="replace"))
        raise HandlerFailed(FAILURE_KINDS[outcome], detail)

    async def describe(self, order: bytes) -> tuple[CallOutcome, bytes]:
        """Return the answer to an order to describe a listener.

        Raises:
            HandlerFailed: The worker ended.
        """
        self._call = DESCRIPTION
        return await self._ask(order)

    async def _ask(self, frame: bytes) -> tuple[CallOutcome, bytes]:
        if self.gone.done() and self._failure is not None:
            raise self._failure
        answer: asyncio.Future[tuple[CallOutcome, bytes]] = self._loop.create_future()
        self._answer = answer
        self.send(frame)
        try:
            return await answer
        except asyncio.CancelledError:
            self.stop(HandlerFailed(FailureKind.DIED, "nobody waits for its answer"))
            raise
        finally:
            if self._answer is answer:
                self._answer = None

    def overdue(self, now: float) -> bool:
        """Return whether the call under way should have been answered by now."""
        return self._answer is not None and self.deadline <= now

    def stop(self, failure: HandlerFailed) -> None:
        """Kill the process; the call under way fails with `failure` when it has ended."""
        if self._failure is None:
            self._failure = failure
            self.usable = False
            self._unwatch()
            self._kill(self.number)

    def ended(self, detail: str) -> None:
        """Take the news that the process has ended, or is as good as that."""
        if self.gone.done():
            return
        if self._failure is None:
            self._failure = HandlerFailed(FailureKind.DIED, detail)
        elif self._failure.kind is FailureKind.DIED:
            self._failure.detail += f"; {detail}"
        self.usable = False
        self._unwatch()
        self._channel.close()
        self.gone.set_result(None)
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_exception(self._failure)

    def _unwatch(self) -> None:
        self._loop.remove_reader(self._descriptor)
        self._loop.remove_writer(self._descriptor)

    def _send(self, data: bytes) -> int:
        """Send what the socket takes, and says how much that is."""
        try:
            return self._channel.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)  # the worker is gone, and the news of it on the way

    def _write(self) -> None:
        self._unsent = self._unsent[self._send(self._unsent) :]
        if not self._unsent:
            self._loop.remove_writer(self._descriptor)

    def _read(self) -> None:
        try:
            data = self._channel.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.stop(HandlerFailed(FailureKind.DIED, "it closed its socket"))
            return
        try:
            answer = self._answers.feed(data)
        except OversizedError as error:
            self.stop(HandlerFailed(FailureKind.OVERSIZED, str(error)))
        except FrameError as error:
            self.stop(HandlerFailed(FailureKind.DIED, str(error)))
        else:
            if answer is not None:
                self._take(*answer)

    def _take(self, call: int, outcome: int, content: bytes) -> None:
        """Take an answer, which is one to the call under way, or the end of the worker."""
        if self._failure is not None:
            return
        answer = self._answer
        if answer is None or call != self._call or outcome not in OUTCOMES:
            is_open = "none" if answer is None else f"call {self._call}"
            reason = f"it answered call {call} with {outcome}, while {is_open} was open"
            self.stop(HandlerFailed(FailureKind.DIED, reason))
            return
        self._answer = None
        if not answer.done():
            answer.set_result((OUTCOMES[outcome], content))
