"""In-process handlers: for development, where isolation is traded for a debugger."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import Coroutine
from typing import Any, NamedTuple, Self

from agentix.agentserver.eager import go_on
from agentix.agentserver.errors import FailureKind, HandlerFailed, RegistrationError
from agentix.agentserver.worker import child as entries
from agentix.agentserver.worker.handlers import (
    FAILURE_KINDS,
    DescribedListener,
    Done,
    HandlerSource,
    Isolation,
    IsolationReport,
    Mitigation,
    WorkerSettings,
)
from agentix.agentserver.worker.protocol import CallOutcome

__all__ = [
    "InProcessHandlers",
]

logger = logging.getLogger(__name__)


WARNING = (
    "isolation: inprocess: handlers run in the process of the pump. They can read its keys, forge "
    "senders, reach every thread and stop everything. Use it for development only"
)
"""What is said at every start."""


class InProcessCall(NamedTuple):
    """One call of a handler."""

    source: HandlerSource
    thread_id: str
    payload_class: int
    payload: dict[str, Any]
    deadline: float
    done: Done


class InProcessHandlers:
    """Runs handlers in the process of the pump, with nothing between them and it.

    Threads of a listener share its module, a handler that blocks blocks the pump, and a deadline
    ends only a handler that waits and lets itself be cancelled.

    Args:
        settings: How much a handler may return; nothing else of it has effect.
    """

    def __init__(self, settings: WorkerSettings | None = None) -> None:
        self._settings = settings or WorkerSettings(isolation=Isolation.INPROCESS)
        self._entries: dict[HandlerSource, entries.LoadedHandler] = {}
        self._calls: deque[InProcessCall] = deque()
        self._serving = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def start(self) -> None:
        """Warn that nothing is isolated, and let handlers be imported from their directories."""
        logger.warning(WARNING)
        sys.path[:0] = [path for path in self._settings.path if path not in sys.path]

    def report(self) -> IsolationReport:
        """Say that nothing holds the handlers."""
        return IsolationReport(
            str(Isolation.INPROCESS), (Mitigation("a process of its own", False, WARNING),)
        )

    async def describe(self, source: HandlerSource) -> DescribedListener:
        """Import a listener's code, and describe what it takes.

        Raises:
            RegistrationError: It cannot be imported, or does not fit; the message names the path.
        """
        order = self._order(source)
        try:
            return DescribedListener(tuple(entries.describe(order)))
        except RegistrationError as error:
            raise RegistrationError(f"{source.name}: {error}") from error

    def begin(
        self,
        source: HandlerSource,
        thread_id: str,
        payload_class: int,
        payload: dict[str, Any],
        deadline: float,
        done: Done,
    ) -> None:
        """Begin one call of a handler, in a turn of the loop to come."""
        self._calls.append(InProcessCall(source, thread_id, payload_class, payload, deadline, done))
        if not self._serving:
            self._serve_soon()

    def _serve_soon(self) -> None:
        self._serving = True
        task = asyncio.get_running_loop().create_task(self._serve())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self) -> None:
        """Make the calls that there are, up to one that waits, which keeps this task."""
        task = asyncio.current_task()
        assert task is not None
        while self._calls:
            call = self._calls.popleft()
            attempt = self._attempt(call)
            try:
                waited = attempt.send(None)
            except StopIteration as ended:
                call.done(ended.value)
                if task.cancelling():  # by the handler, and it must not end another's
                    break
            else:
                self._serve_others()
                call.done(await self._finish(call, attempt, waited))
                return
        self._serve_others()

    def _serve_others(self) -> None:
        self._serving = False
        if self._calls:
            self._serve_soon()

    async def forget(self, name: str, thread_id: str) -> None:
        """Forget a thread; what the handler's module keeps of it stays there."""

    async def unregister(self, name: str) -> None:
        """Forget a listener; its module stays imported."""
        for source in [source for source in self._entries if source.name == name]:
            del self._entries[source]

    async def aclose(self) -> None:
        """End what waits, and forget everything."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._entries.clear()

    def _order(self, source: HandlerSource) -> entries.Order:
        own_name = source.name if source.agent else None
        classes = source.payload_classes
        return entries.Order(source.handler, classes, own_name, self._settings.output)

    async def _attempt(self, call: InProcessCall) -> bytes | HandlerFailed:
        """Make a call, and tell of its outcome whatever the handler does."""
        try:
            entry = self._entries.get(call.source)
            if entry is None:
                entry = self._entries[call.source] = entries.load(self._order(call.source))
            attempted = entries.attempt(entry, call.thread_id, call.payload_class, call.payload)
            outcome, content = await attempted
        except RegistrationError as error:
            return HandlerFailed(FailureKind.RAISED, str(error))
        except KeyboardInterrupt:
            raise
        except BaseException:  # a handler may raise anything
            outcome, content = entries.raised()
        if outcome is CallOutcome.VALUE:
            return content
        return HandlerFailed(FAILURE_KINDS[outcome], content.decode(errors="replace"))

    async def _finish(
        self, call: InProcessCall, attempt: Coroutine[Any, Any, bytes | HandlerFailed], waited: Any
    ) -> bytes | HandlerFailed:
        """Wait for a handler that waits, up to its deadline."""
        async with asyncio.timeout(call.deadline) as scope:
            outcome = await go_on(attempt, waited)
        if scope.expired():
            reason = f"it did not answer within {call.deadline:g} s"
            return HandlerFailed(FailureKind.TIMED_OUT, reason)
        return outcome
