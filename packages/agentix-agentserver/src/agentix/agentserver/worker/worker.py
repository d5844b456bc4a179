"""One worker as the pump sees it: a socket that is not to be trusted, and one call under way."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from agentix.agentserver.worker.frame import (
    DESCRIPTION,
    AnswerReader,
    FrameError,
    Outcome,
    pack_frame,
)
from agentix.agentserver.worker.handlers import FailureKind, HandlerFailed

__all__ = ["Worker"]

CHUNK = 16 * 1024
"""How much is read from a worker at a time, in bytes; room for more would cost more to get."""

OUTCOMES = {int(outcome): outcome for outcome in Outcome}

Answer = tuple[Outcome, bytes]


class Worker:
    """A worker process, from the order to fork it to the news of its end.

    Args:
        number: Its number, by which the zygote knows it.
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
        self.on_end: Callable[[Worker], None] | None = None
        """Called once, when the process has ended."""
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        """Done when the process has ended."""
        self._channel = channel
        self._descriptor = channel.fileno()
        self._answers = AnswerReader(limit)
        self._kill = kill
        self._call = 0
        self._answer: asyncio.Future[Answer] | None = None
        self._unsent = b""
        self._failure: HandlerFailed | None = None
        self.usable = True
        """It takes another call."""
        self._loop.add_reader(self._descriptor, self._read)

    def send(self, frame: bytes) -> None:
        """Sends a frame; what the socket does not take at once is sent as it does."""
        if self._failure is not None:
            return
        sent = 0 if self._unsent else self._send(frame)
        if sent < len(frame):
            if not self._unsent:
                self._loop.add_writer(self._descriptor, self._write)
            self._unsent += frame[sent:]

    def call(
        self, payload_class: int, payload: dict[str, Any], thread_id: str, seconds: float
    ) -> asyncio.Future[Answer]:
        """Sends a call, and gives the future of its answer.

        Args:
            payload_class: Which class of the listener the payload is of.
            payload: The payload as plain values.
            thread_id: The thread, as the handler is told it.
            seconds: In what time the answer has to be there.
        """
        self._call += 1
        self.deadline = self._loop.time() + seconds
        answer = self._expect()
        self.send(pack_frame((self._call, payload_class, payload, thread_id)))
        return answer

    def describe(self) -> asyncio.Future[Answer]:
        """Gives the future of the answer of a worker whose order is to describe."""
        self._call = DESCRIPTION
        return self._expect()

    def _expect(self) -> asyncio.Future[Answer]:
        answer = self._answer = self._loop.create_future()
        if self.gone.done():
            self._fail()
        return answer

    def stop(self, failure: HandlerFailed) -> None:
        """Kills the process; the call under way fails with `failure` when it has ended."""
        if self._failure is None:
            self._failure = failure
            self.usable = False
            self._unwatch()
            self._kill(self.number)

    def ended(self, detail: str) -> None:
        """Takes the news that the process has ended, or is as good as that."""
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
        self._fail()
        if self.on_end is not None:
            self.on_end(self)

    def _fail(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done() and self._failure is not None:
            answer.set_exception(self._failure)

    def _unwatch(self) -> None:
        self._loop.remove_reader(self._descriptor)
        self._loop.remove_writer(self._descriptor)

    def _send(self, data: bytes) -> int:
        """Sends what the socket takes, and says how much that is."""
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
            answers = self._answers.feed(data)
        except FrameError as error:
            self.stop(HandlerFailed(FailureKind.OVERSIZED, str(error)))
            return
        for call, outcome, content in answers:
            self._take(call, outcome, content)

    def _take(self, call: int, outcome: int, content: bytes) -> None:
        """Takes an answer, which is one to the call under way, or the end of the worker."""
        answer = self._answer
        if self._failure is not None:
            return
        if answer is None or call != self._call or outcome not in OUTCOMES:
            reason = f"it answered call {call} with {outcome}, while {self._open_call} was open"
            self.stop(HandlerFailed(FailureKind.DIED, reason))
            return
        self._answer = None
        if not answer.done():
            answer.set_result((OUTCOMES[outcome], content))

    @property
    def _open_call(self) -> str:
        return "none" if self._answer is None else f"call {self._call}"
