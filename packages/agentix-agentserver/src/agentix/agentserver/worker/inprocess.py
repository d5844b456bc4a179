"""In-process handlers: for development, where isolation is traded for a debugger."""

from __future__ import annotations

import asyncio
import logging
import sys
import types
from collections.abc import Coroutine, Generator
from functools import partial
from typing import Any, Self, TypeVar

from agentix.agentserver.errors import RegistrationError
from agentix.agentserver.worker import entry as entries
from agentix.agentserver.worker.frame import Outcome
from agentix.agentserver.worker.handlers import (
    FAILURES,
    Described,
    FailureKind,
    HandlerFailed,
    HandlerSource,
)
from agentix.agentserver.worker.report import HardeningReport, Measure
from agentix.agentserver.worker.settings import Isolation, WorkerSettings

__all__ = ["InProcess"]

_T = TypeVar("_T")

logger = logging.getLogger(__name__)

WARNING = (
    "isolation: inprocess: handlers run in the process of the pump. They can read its keys, forge "
    "senders, reach every thread and stop everything. Use it for development only"
)
"""What is said at every start."""


class InProcess:
    """Runs handlers in the process of the pump, with nothing between them and it.

    Threads of a listener share its module, a handler that blocks blocks the pump, and a deadline
    ends only a handler that waits and lets itself be cancelled.

    Args:
        settings: How much a handler may return; nothing else of it has effect.
    """

    def __init__(self, settings: WorkerSettings | None = None) -> None:
        self._settings = settings or WorkerSettings(isolation=Isolation.INPROCESS)
        self._entries: dict[HandlerSource, entries.Entry] = {}
        self._turns: dict[tuple[str, str], asyncio.Lock] = {}

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def start(self) -> None:
        """Warns that nothing is isolated, and lets handlers be imported from their directories."""
        logger.warning(WARNING)
        sys.path[:0] = [path for path in self._settings.path if path not in sys.path]

    def report(self) -> HardeningReport:
        """Says that nothing holds the handlers."""
        return HardeningReport(
            str(Isolation.INPROCESS), (Measure("a process of its own", False, WARNING),)
        )

    async def describe(self, source: HandlerSource) -> Described:
        """Imports a listener's code, and describes what it takes.

        Raises:
            RegistrationError: It can not be imported, or does not fit; the message names the path.
        """
        order = self._order(source)
        try:
            return Described(tuple(entries.describe(order)))
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
        """Calls a handler once.

        Raises:
            HandlerFailed: It did not give bytes.
        """
        entry = self._entries.get(source)
        if entry is None:
            entry = self._entries[source] = self._load(source)
        key = (source.name, thread_id)
        turn = self._turns.get(key)
        if turn is None:
            turn = self._turns[key] = asyncio.Lock()
        async with turn:
            outcome, content = await _run(entry, thread_id, payload_class, payload, deadline)
        if outcome is Outcome.VALUE:
            return content
        raise HandlerFailed(FAILURES[outcome], content.decode(errors="replace"))

    async def forget(self, name: str, thread_id: str) -> None:
        """Forgets a thread; what the handler's module keeps of it stays there."""
        self._turns.pop((name, thread_id), None)

    async def unregister(self, name: str) -> None:
        """Forgets a listener; its module stays imported."""
        for source in [source for source in self._entries if source.name == name]:
            del self._entries[source]
        for key in [key for key in self._turns if key[0] == name]:
            del self._turns[key]

    async def aclose(self) -> None:
        """Forgets everything."""
        self._entries.clear()
        self._turns.clear()

    def _order(self, source: HandlerSource) -> entries.Order:
        own_name = source.name if source.agent else None
        classes = source.payload_classes
        return entries.Order(source.handler, classes, own_name, self._settings.output)

    def _load(self, source: HandlerSource) -> entries.Entry:
        try:
            return entries.load(self._order(source))
        except RegistrationError as error:
            raise HandlerFailed(FailureKind.RAISED, str(error)) from error


async def _run(
    entry: entries.Entry,
    thread_id: str,
    payload_class: int,
    payload: dict[str, Any],
    deadline: float,
) -> tuple[Outcome, bytes]:
    call = entries.attempt(entry, thread_id, payload_class, payload)
    try:
        waited = call.send(None)
    except StopIteration as ended:  # most handlers never wait, and need no timer
        outcome: tuple[Outcome, bytes] = ended.value
        return outcome
    except KeyboardInterrupt:
        raise
    except BaseException:  # a handler may raise anything
        return entries.raised()
    task = asyncio.current_task()
    assert task is not None
    cancellations = task.cancelling()
    try:
        async with asyncio.timeout(deadline) as scope:
            return await _rest(call, waited)
    except KeyboardInterrupt:
        raise
    except BaseException:  # a handler may raise anything, except for the end of our own task
        if scope.expired():
            reason = f"it did not answer within {deadline:g} s"
            raise HandlerFailed(FailureKind.TIMED_OUT, reason) from None
        if task.cancelling() > cancellations:
            raise
        return entries.raised()


@types.coroutine
def _rest(call: Coroutine[Any, Any, _T], waited: Any) -> Generator[Any, Any, _T]:
    """Goes on with a coroutine that has begun, from what it waits for."""
    while True:
        try:
            sent = yield waited
        except BaseException as error:
            resume = partial(call.throw, error)
        else:
            resume = partial(call.send, sent)
        try:
            waited = resume()
        except StopIteration as ended:
            result: _T = ended.value
            return result
