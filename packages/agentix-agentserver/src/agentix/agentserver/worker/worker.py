"""One worker as the pump sees it: a socket that is not to be trusted, and one call under way."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from agentix.agentserver.worker.frame import AnswerReader, FrameError, Outcome
from agentix.agentserver.worker.handlers import FailureKind, HandlerFailed

__all__ = ["Worker"]

CHUNK = 256 * 1024
"""How much is read from a worker at a time, in bytes."""


class Worker:
    """A worker process, from the order to fork it to the news of its end.

    Args:
        number: Its number, by which the zygote knows it.
        channel: The pump's end of its socket, which does not block.
        limit: How many bytes the content of an answer may have.
        kill: Has it killed; its end is told by `ended`.
    """

    def __init__(
        self,
        number: int,
        channel: socket.socket,
        limit: int,
        kill: Callable[[Worker], None],
    ) -> None:
        self.number = number
        self.deadline = 0.0
        """When the call under way has to be answered, by the clock of the loop."""
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the process has ended."""
        self._loop = asyncio.get_running_loop()
        self._channel = channel
        self._descriptor = channel.fileno()
        self._answers = AnswerReader(limit)
        self._limit = limit
        self._kill = kill
        self._call = 0
        self._answer: asyncio.Future[tuple[Outcome, bytes]] | None = None
        self._unsent = b""
        self._failure: HandlerFailed | None = None
        self._loop.add_reader(self._descriptor, self._read)

    @property
    def usable(self) -> bool:
        """It takes another call."""
        return self._failure is None

    @property
    def next_call(self) -> int:
        """The id that the next call must have."""
        return self._call + 1

    def send(self, frame: bytes) -> None:
        """Sends a frame; what the socket does not take at once is sent as it does."""
        if not self._unsent:
            try:
                sent = self._channel.send(frame)
            except BlockingIOError:
                sent = 0
            except OSError:
                return  # the end of the worker is on its way to us
            if sent == len(frame):
                return
            frame = frame[sent:]
            self._loop.add_writer(self._descriptor, self._write)
        self._unsent += frame

    def call(self, frame: bytes, deadline: float) -> asyncio.Future[tuple[Outcome, bytes]]:
        """Sends the next call, and gives the future of its answer.

        Args:
            frame: The call, with `next_call` as its id.
            deadline: When the answer has to be there, by the clock of the loop.
        """
        self._call += 1
        self.deadline = deadline
        answer = self._answer = self._loop.create_future()
        if self._failure is not None:
            self._fail()
            return answer
        self.send(frame)
        return answer

    def stop(self, failure: HandlerFailed) -> None:
        """Kills the process; the call under way fails with `failure` when it has ended."""
        if self._failure is None:
            self._failure = failure
            self._loop.remove_reader(self._descriptor)
            self._kill(self)

    def ended(self, detail: str) -> None:
        """Takes the news that the process has ended, or is as good as that."""
        if self.gone.done():
            return
        if self._failure is None:
            self._failure = HandlerFailed(FailureKind.DIED, detail)
        self._loop.remove_reader(self._descriptor)
        self._loop.remove_writer(self._descriptor)
        self._channel.close()
        self.gone.set_result(None)
        self._fail()

    def _fail(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done() and self._failure is not None:
            answer.set_exception(self._failure)

    def _write(self) -> None:
        try:
            sent = self._channel.send(self._unsent)
        except BlockingIOError:
            return
        except OSError:
            sent = len(self._unsent)
        self._unsent = self._unsent[sent:]
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
        """Takes an answer, which is one to the call under way or the end of the worker."""
        answer = self._answer
        if answer is None or call != self._call or outcome not in OUTCOMES:
            self.stop(
                HandlerFailed(FailureKind.DIED, f"it answered call {call}, which is not open")
            )
            return
        self._answer = None
        if not answer.done():
            answer.set_result((OUTCOMES[outcome], content))


OUTCOMES = {int(outcome): outcome for outcome in Outcome}
