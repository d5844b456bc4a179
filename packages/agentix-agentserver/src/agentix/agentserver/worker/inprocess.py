"""In-process handlers: for development, where isolation is traded for a debugger."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any, Self

from agentix.agentserver.errors import FailureKind, HandlerFailed, RegistrationError
from agentix.agentserver.worker import child
from agentix.agentserver.worker.handlers import (
    FAILURE_KINDS,
    DescribedListener,
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


class InProcessHandlers:
    """Runs handlers in the process of the pump, with nothing between them and it.

    Threads of a listener share its module, a handler that blocks blocks the pump, and a deadline
    ends only a handler that waits and lets itself be cancelled.

    Args:
        settings: How much a handler may return; nothing else of it has effect.
    """

    def __init__(self, settings: WorkerSettings | None = None) -> None:
        self._settings = settings or WorkerSettings(isolation=Isolation.INPROCESS)
        self._entries: dict[HandlerSource, child.LoadedHandler] = {}
        self._attempts: set[asyncio.Task[None]] = set()

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
            return DescribedListener(tuple(child.describe(order)))
        except RegistrationError as error:
            raise RegistrationError(f"{source.name}: {error}") from error

    async def call(
        self,
        source: HandlerSource,
        thread_id: str,
        payload_class: int,
        payload: dict[str, Any],
        deadline: float,
    ) -> bytes:
        """Return what a handler returns; see `Handlers.call`."""
        # A handler may cancel the task that it runs in, so it has its own; and such a task returns
        # nothing, so the outcome is left in a list.
        outcomes: list[tuple[CallOutcome, bytes]] = []
        attempt = asyncio.create_task(
            self._attempt(outcomes, source, thread_id, payload_class, payload)
        )
        self._attempts.add(attempt)
        attempt.add_done_callback(self._attempts.discard)
        try:
            done, _ = await asyncio.wait((attempt,), timeout=deadline)
        finally:
            attempt.cancel()
        if not done:
            await asyncio.wait((attempt,))
            reason = f"it did not answer within {deadline:g} s"
            raise HandlerFailed(FailureKind.TIMED_OUT, reason)
        outcome, content = outcomes[0]
        if outcome is CallOutcome.VALUE:
            return content
        raise HandlerFailed(FAILURE_KINDS[outcome], content.decode(errors="replace"))

    async def _attempt(
        self,
        outcomes: list[tuple[CallOutcome, bytes]],
        source: HandlerSource,
        thread_id: str,
        payload_class: int,
        payload: dict[str, Any],
    ) -> None:
        """Make a call, and leave its outcome whatever the handler does."""
        try:
            entry = self._entries.get(source)
            if entry is None:
                entry = self._entries[source] = child.load(self._order(source))
            outcomes.append(await child.attempt(entry, thread_id, payload_class, payload))
        except RegistrationError as error:
            outcomes.append((CallOutcome.REFUSED, str(error).encode()))
        except KeyboardInterrupt:
            raise
        except BaseException:  # a handler may raise anything
            outcomes.append(child.raised())

    async def forget(self, name: str, thread_id: str) -> None:
        """Forget a thread; what the handler's module keeps of it stays there."""

    async def unregister(self, name: str) -> None:
        """Forget a listener; its module stays imported."""
        for source in [source for source in self._entries if source.name == name]:
            del self._entries[source]

    async def aclose(self) -> None:
        """End what waits, and forget everything."""
        for attempt in self._attempts:
            attempt.cancel()
        await asyncio.gather(*self._attempts, return_exceptions=True)
        self._entries.clear()

    def _order(self, source: HandlerSource) -> child.Order:
        own_name = source.name if source.agent else None
        classes = source.payload_classes
        return child.Order(source.handler, classes, own_name, self._settings.output)
