"""The pool: a worker for each thread of each listener, for as long as there is room.

Listeners whose code is in the same modules are described by one worker, one after another: it
imports what a worker for any of them would import, so a module that lies or breaks can do so for no
listener more than it could in a worker for each.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from typing import Any, Self

from agentix.agentserver.errors import FailureKind, HandlerFailed, RegistrationError, WorkersError
from agentix.agentserver.worker.forkserver_client import WorkerSupply
from agentix.agentserver.worker.handlers import (
    DescribedListener,
    HandlerSource,
    Isolation,
    IsolationReport,
    WorkerSettings,
)
from agentix.agentserver.worker.process import HandlerProcess, printable
from agentix.agentserver.worker.protocol import CallOutcome, unpack

__all__ = ["WorkerPool"]

logger = logging.getLogger(__name__)

SECONDS = 60.0
"""How long the import of a listener's code may take, in seconds."""

WORKERS = 8
"""How many workers describe listeners at once."""

SWEEP = 0.1
"""How often deadlines are looked at while there is something to look at, in seconds."""

FORGOTTEN = "its thread is forgotten"

Modules = frozenset[str]
"""All modules that the code of a listener is in."""

Key = tuple[str, str]


class ImportProbe:
    """Where the listeners of the same modules wait for the worker that describes them."""

    __slots__ = ("hangs", "turn", "waiters", "worker")

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.waiters = 0
        self.worker: HandlerProcess | None = None
        self.hangs = False


class WorkerHolder:
    """The worker of one listener and thread, and the calls that take turns at it."""

    __slots__ = ("callers", "forgotten", "key", "since", "source", "turn", "worker")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.turn = asyncio.Lock()
        self.callers = 0
        self.source: HandlerSource | None = None
        self.worker: HandlerProcess | None = None
        self.since = 0.0
        self.forgotten = False

    @property
    def idle(self) -> bool:
        """Whether it has a worker that nothing is asked of."""
        return not self.turn.locked() and self.worker is not None and self.worker.usable


class WorkerPool:
    """Runs handlers in workers.

    It is an async context manager; or call `start` and `aclose`.

    Args:
        settings: How handlers are isolated, and how much a worker may use.
    """

    def __init__(self, settings: WorkerSettings | None = None) -> None:
        self._settings = settings or WorkerSettings()
        self._by_thread = self._settings.isolation is Isolation.THREAD
        self._supply = WorkerSupply(self._settings)
        self._holders: dict[Key, WorkerHolder] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._sweeper: asyncio.TimerHandle | None = None
        self._probes: dict[Modules, ImportProbe] = {}
        self._places = asyncio.Semaphore(WORKERS)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def start(self) -> None:
        """Start the fork server, and say loudly what does not hold its workers.

        Raises:
            WorkersError: It does not start.
        """
        await self._supply.start()
        for measure in self.report().missing:
            logger.warning("handlers are isolated less than they could be: %s", measure)

    @property
    def guard(self) -> int:
        """The process that all workers are below; 0 where there is none at the moment."""
        return self._supply.guard

    def report(self) -> IsolationReport:
        """Say what holds the workers, and what could not be applied."""
        return IsolationReport(str(self._settings.isolation), self._supply.measures)

    # Calls.

    async def call(
        self,
        source: HandlerSource,
        thread_id: str,
        payload_class: int,
        payload: dict[str, Any],
        deadline: float,
    ) -> bytes:
        """Return what a handler returns, in the worker of its listener and thread.

        The deadline counts from when the worker is given the call: the import of the handler
        counts, waiting for room among the live workers does not.

        Raises:
            HandlerFailed: It returned no bytes, or not in time, or no worker can be had.
        """
        key = (source.name, thread_id if self._by_thread else "")
        holder = self._holders.get(key)
        if holder is None:
            holder = self._holders[key] = WorkerHolder(key)
        holder.callers += 1
        try:
            await holder.turn.acquire()
            try:
                worker = holder.worker
                if worker is None or not worker.usable or holder.source != source:
                    worker = await self._employ(holder, source)
                return await worker.call(payload_class, payload, thread_id, deadline)
            finally:
                holder.since = asyncio.get_running_loop().time()
                self._wake(1)  # those who wait for room come before the next call
                holder.turn.release()
        finally:
            holder.callers -= 1
            if holder.forgotten and not holder.callers and holder.worker is not None:
                holder.worker.stop(HandlerFailed(FailureKind.DIED, FORGOTTEN))
            self._drop(holder)

    async def _employ(self, holder: WorkerHolder, source: HandlerSource) -> HandlerProcess:
        """Return a new worker for a holder, after the end of one that has other code."""
        if self._sweeper is None:
            self._watch()
        if holder.worker is not None and holder.source != source:
            await self._end(holder, "its listener has other code")
        try:
            await self._make_room()
            worker = await self._supply.employ(source)
        except BaseException as error:
            self._wake(1)  # the room is still there
            if isinstance(error, WorkersError):
                raise HandlerFailed(FailureKind.DIED, str(error)) from error
            raise
        holder.source, holder.worker = source, worker
        worker.gone.add_done_callback(lambda _: self._leave(holder, worker))
        return worker

    async def forget(self, name: str, thread_id: str) -> None:
        """End the worker of a listener and thread."""
        holder = self._holders.get((name, thread_id))
        if holder is not None:
            holder.forgotten = True  # its worker may be yet to come
            await self._end(holder, FORGOTTEN)

    async def unregister(self, name: str) -> None:
        """End every worker of a listener."""
        for holder in [each for each in self._holders.values() if each.key[0] == name]:
            await self._end(holder, "its listener is gone")

    async def aclose(self) -> None:
        """End every worker and the fork server."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self._supply.aclose()
        self._wake(len(self._waiting))

    # Room: so many workers live at once.

    async def _make_room(self) -> None:
        """Wait until one more worker may live; the one idle for longest makes room."""
        while len(self._supply) >= self._settings.workers:
            idle = [holder for holder in self._holders.values() if holder.idle]
            if idle:
                holder = min(idle, key=_since)
                name = holder.key[0]
                logger.info("the idle worker of %s makes room, and its memory is lost", name)
                await self._end(holder, "it made room")
                continue
            place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(place)
            try:
                await place
            except asyncio.CancelledError:
                if place.done() and not place.cancelled():
                    self._wake(1)
                raise

    def _wake(self, count: int) -> None:
        """Let callers that wait for room look again."""
        while count and self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                count -= 1

    async def _end(self, holder: WorkerHolder, reason: str) -> None:
        worker = holder.worker
        if worker is not None:
            worker.stop(HandlerFailed(FailureKind.DIED, reason))
            await asyncio.shield(worker.gone)

    def _leave(self, holder: WorkerHolder, worker: HandlerProcess) -> None:
        """Take the news that the worker of a holder has ended."""
        if holder.worker is worker:
            holder.worker = None
            self._drop(holder)
        # The one who ended it to make room hears of that first, and has the room.
        asyncio.get_running_loop().call_soon(self._wake, 1)

    def _drop(self, holder: WorkerHolder) -> None:
        """Forget a holder that has no worker and no call."""
        known = self._holders.get(holder.key) is holder
        if known and holder.worker is None and not holder.callers:
            del self._holders[holder.key]

    def _watch(self) -> None:
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP, self._sweep)

    def _sweep(self) -> None:
        """Kill workers that are past their deadline, or idle for too long."""
        now = asyncio.get_running_loop().time()
        for holder in [*self._holders.values()]:
            worker = holder.worker
            if worker is not None and worker.overdue(now):
                worker.stop(HandlerFailed(FailureKind.TIMED_OUT, "it did not answer in time"))
            elif worker is not None and holder.idle and holder.since + self._settings.idle <= now:
                worker.stop(HandlerFailed(FailureKind.DIED, "it was idle"))
        self._sweeper = None
        if self._holders:
            self._watch()

    # Descriptions.

    async def describe(self, source: HandlerSource) -> DescribedListener:
        """Import a listener's code in a worker that calls none of it, and describe what it takes.

        Raises:
            RegistrationError: It cannot be imported, or does not fit; the message names the
                listener and the path.
            WorkersError: No worker can be had.
        """
        modules = _modules_of(source)
        probe = self._probes.setdefault(modules, ImportProbe())
        probe.waiters += 1
        try:
            async with probe.turn:
                return DescribedListener(await self._records(probe, source))
        finally:
            probe.waiters -= 1
            if probe.waiters == 0:
                del self._probes[modules]
                self._dismiss(probe)

    async def _records(
        self, probe: ImportProbe, source: HandlerSource
    ) -> tuple[dict[str, Any], ...]:
        outcome, content = await self._ask(probe, source)
        if outcome is not CallOutcome.VALUE:
            reason = printable(content.decode(errors="replace"))
            raise RegistrationError(f"{source.name}: {reason}")
        try:
            records = unpack(content)
        except ValueError as error:
            raise RegistrationError(f"{source.name}: its description is broken: {error}") from error
        if not isinstance(records, list) or not all(isinstance(each, dict) for each in records):
            raise RegistrationError(f"{source.name}: its description is broken")
        return tuple(records)

    async def _ask(self, probe: ImportProbe, source: HandlerSource) -> tuple[CallOutcome, bytes]:
        """Ask the worker of a probe, and where that has no answer, a new one."""
        about = f"{source.name}: {source.handler!r}: its import"
        if probe.worker is not None:
            with suppress(TimeoutError, HandlerFailed):  # it may be of one who was there before
                return await self._put(probe, source)
        if probe.hangs:
            raise RegistrationError(f"{about} takes longer than {SECONDS:g} s, as another's did")
        try:
            return await self._put(probe, source)
        except TimeoutError:
            probe.hangs = True
            raise RegistrationError(f"{about} takes longer than {SECONDS:g} s") from None
        except HandlerFailed as failed:
            raise RegistrationError(f"{about} ended the worker: {failed.detail}") from None

    async def _put(self, probe: ImportProbe, source: HandlerSource) -> tuple[CallOutcome, bytes]:
        """Put the question to the worker of a probe, which is ended where it does not answer."""
        worker = probe.worker or await self._give_worker(probe)
        answered = False
        try:
            async with asyncio.timeout(SECONDS):
                answer = await worker.describe(self._supply.order(worker, source, describing=True))
            answered = True
            return answer
        finally:
            if not answered:
                self._dismiss(probe)

    async def _give_worker(self, probe: ImportProbe) -> HandlerProcess:
        await self._places.acquire()
        try:
            await self._make_room()
            worker = await self._supply.hire()
        except BaseException:
            self._places.release()
            self._wake(1)  # the room is still there
            raise
        worker.gone.add_done_callback(lambda _: self._wake(1))
        probe.worker = worker
        return worker

    def _dismiss(self, probe: ImportProbe) -> None:
        """End the worker of a probe, if there is one."""
        worker, probe.worker = probe.worker, None
        if worker is not None:
            worker.stop(HandlerFailed(FailureKind.DIED, "its work is done"))
            self._places.release()


def _modules_of(source: HandlerSource) -> Modules:
    """Return the modules that the code of a listener is in."""
    paths = (source.handler, *source.payload_classes)
    return frozenset(path.rpartition(".")[0] for path in paths)


def _since(holder: WorkerHolder) -> float:
    return holder.since
