"""Describing: listeners in plain data, told by workers that import their code.

Listeners whose code is in the same modules are described by one worker, one after another: it
imports what a worker for any of them would import, so a module that lies or breaks can do so for
no listener more than it could in a worker for each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from agentix.agentserver.errors import RegistrationError
from agentix.agentserver.worker.frame import Outcome, unpack
from agentix.agentserver.worker.handlers import (
    Described,
    FailureKind,
    HandlerFailed,
    HandlerSource,
)
from agentix.agentserver.worker.output import printable
from agentix.agentserver.worker.worker import Worker

__all__ = ["Describer"]

SECONDS = 60.0
"""How long the import of a listener's code may take, in seconds."""

WORKERS = 8
"""How many workers describe listeners at once."""

Modules = frozenset[str]
"""All modules that the code of a listener is in."""


class Desk:
    """Where the listeners of the same modules wait for the worker that describes them."""

    __slots__ = ("hangs", "turn", "visitors", "worker")

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.visitors = 0
        self.worker: Worker | None = None
        self.hangs = False


class Describer:
    """Has listeners described.

    Args:
        hire: Gives a worker that has no order.
        order: Gives it the order to describe a listener.
    """

    def __init__(
        self,
        hire: Callable[[], Awaitable[Worker]],
        order: Callable[[Worker, HandlerSource], None],
    ) -> None:
        self._hire = hire
        self._order = order
        self._desks: dict[Modules, Desk] = {}
        self._places = asyncio.Semaphore(WORKERS)

    async def describe(self, source: HandlerSource) -> Described:
        """Describes what a listener takes.

        Raises:
            RegistrationError: Its code can not be imported, or does not fit; the message names
                the listener and the path.
            WorkersError: No worker can be had.
        """
        modules = modules_of(source)
        desk = self._desks.setdefault(modules, Desk())
        desk.visitors += 1
        try:
            async with desk.turn:
                return Described(await self._records(desk, source))
        finally:
            desk.visitors -= 1
            if desk.visitors == 0:
                del self._desks[modules]
                self._dismiss(desk)

    async def _records(self, desk: Desk, source: HandlerSource) -> tuple[dict[str, Any], ...]:
        outcome, content = await self._ask(desk, source)
        if outcome is not Outcome.VALUE:
            reason = printable(content.decode(errors="replace"))
            raise RegistrationError(f"{source.name}: {reason}")
        try:
            records = unpack(content)
        except ValueError as error:
            raise RegistrationError(f"{source.name}: its description is broken: {error}") from error
        if not isinstance(records, list) or not all(isinstance(each, dict) for each in records):
            raise RegistrationError(f"{source.name}: its description is broken")
        return tuple(records)

    async def _ask(self, desk: Desk, source: HandlerSource) -> tuple[Outcome, bytes]:
        """Asks the worker of a desk, and where that has no answer, a new one."""
        about = f"{source.name}: {source.handler!r}: its import"
        if desk.worker is not None:
            with suppress(TimeoutError, HandlerFailed):  # it may be of one who was there before
                return await self._put(desk, source)
        if desk.hangs:
            raise RegistrationError(f"{about} takes longer than {SECONDS:g} s, as another's did")
        try:
            return await self._put(desk, source)
        except TimeoutError:
            desk.hangs = True
            raise RegistrationError(f"{about} takes longer than {SECONDS:g} s") from None
        except HandlerFailed as failed:
            raise RegistrationError(f"{about} ended the worker: {failed.detail}") from None

    async def _put(self, desk: Desk, source: HandlerSource) -> tuple[Outcome, bytes]:
        """Puts the question to the worker of a desk, which is ended where it does not answer."""
        worker = desk.worker or await self._give_worker(desk)
        answered = False
        try:
            self._order(worker, source)
            async with asyncio.timeout(SECONDS):
                answer = await worker.describe()
            if isinstance(answer, HandlerFailed):
                raise answer
            answered = True
            return answer
        finally:
            if not answered:
                self._dismiss(desk)

    async def _give_worker(self, desk: Desk) -> Worker:
        await self._places.acquire()
        try:
            worker = await self._hire()
        except BaseException:
            self._places.release()
            raise
        desk.worker = worker
        return worker

    def _dismiss(self, desk: Desk) -> None:
        """Ends the worker of a desk, if there is one."""
        worker, desk.worker = desk.worker, None
        if worker is not None:
            worker.stop(HandlerFailed(FailureKind.DIED, "its work is done"))
            self._places.release()


def modules_of(source: HandlerSource) -> Modules:
    """Gives the modules that the code of a listener is in."""
    paths = (source.handler, *source.payload_classes)
    return frozenset(path.rpartition(".")[0] for path in paths)
