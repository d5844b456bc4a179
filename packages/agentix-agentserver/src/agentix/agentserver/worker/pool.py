"""The pool: a worker for each thread of each listener, for as long as there is room."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Self

from agentix.agentserver.errors import FailureKind, HandlerFailed, RegistrationError, WorkersError
from agentix.agentserver.worker.forkserver_client import WorkerSupply
from agentix.agentserver.worker.handlers import (
    FAILURE_KINDS,
    DescribedListener,
    Done,
    HandlerSource,
    Isolation,
    IsolationReport,
    WorkerSettings,
)
from agentix.agentserver.worker.process import Answer, WorkerProcess, printable
from agentix.agentserver.worker.protocol import CallOutcome, unpack

__all__ = [
    "HandlerInspector",
    "WorkerPool",
]

logger = logging.getLogger(__name__)


SECONDS = 60.0
"""How long the import of a listener's code may take, in seconds."""

WORKERS = 8
"""How many workers describe listeners at once."""

Modules = frozenset[str]
"""All modules that the code of a listener is in."""


class ImportProbe:
    """Where the listeners of the same modules wait for the worker that describes them."""

    __slots__ = ("hangs", "turn", "waiters", "worker")

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.waiters = 0
        self.worker: WorkerProcess | None = None
        self.hangs = False


class HandlerInspector:
    """Has listeners described.

    Args:
        hire: Gives a worker that has no order.
        order: Gives it the order to describe a listener.
    """

    def __init__(
        self,
        hire: Callable[[], Awaitable[WorkerProcess]],
        order: Callable[[WorkerProcess, HandlerSource], None],
    ) -> None:
        self._hire = hire
        self._order = order
        self._probes: dict[Modules, ImportProbe] = {}
        self._places = asyncio.Semaphore(WORKERS)

    async def describe(self, source: HandlerSource) -> DescribedListener:
        """Describe what a listener takes.

        Raises:
            RegistrationError: Its code cannot be imported, or does not fit; the message names
                the listener and the path.
            WorkersError: No worker can be had.
        """
        modules = modules_of(source)
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
            self._order(worker, source)
            async with asyncio.timeout(SECONDS):
                answer = await worker.describe()
            if isinstance(answer, HandlerFailed):
                raise answer
            answered = True
            return answer
        finally:
            if not answered:
                self._dismiss(probe)

    async def _give_worker(self, probe: ImportProbe) -> WorkerProcess:
        await self._places.acquire()
        try:
            worker = await self._hire()
        except BaseException:
            self._places.release()
            raise
        probe.worker = worker
        return worker

    def _dismiss(self, probe: ImportProbe) -> None:
        """End the worker of a probe, if there is one."""
        worker, probe.worker = probe.worker, None
        if worker is not None:
            worker.stop(HandlerFailed(FailureKind.DIED, "its work is done"))
            self._places.release()


def modules_of(source: HandlerSource) -> Modules:
    """Return the modules that the code of a listener is in."""
    paths = (source.handler, *source.payload_classes)
    return frozenset(path.rpartition(".")[0] for path in paths)


SWEEP = 0.1
"""How often deadlines are looked at while there is something to look at, in seconds."""

FORGOTTEN = "its thread is forgotten"

Key = tuple[str, str]


class HandlerCall(NamedTuple):
    """One call of a handler, as it is to be sent to a worker."""

    source: HandlerSource
    payload_class: int
    payload: dict[str, Any]
    thread_id: str
    deadline: float
    done: Done


class WorkerHolder:
    """The calls of one listener and thread, which follow one another, and their worker."""

    __slots__ = ("answered", "call", "calls", "forgotten", "key", "since", "source", "worker")

    def __init__(self, key: Key, answered: Callable[[WorkerHolder, Answer], None]) -> None:
        self.key = key
        self.answered = partial(answered, self)
        self.call: HandlerCall | None = None
        self.calls: deque[HandlerCall] | None = None
        self.source: HandlerSource | None = None
        self.worker: WorkerProcess | None = None
        self.since = 0.0
        self.forgotten = False

    @property
    def idle(self) -> bool:
        """Whether it has a worker that nothing is asked of."""
        return self.call is None and self.worker is not None and self.worker.usable


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
        self._describer = HandlerInspector(
            self._hire_describer, partial(self._supply.order, describing=True)
        )
        self._holders: dict[Key, WorkerHolder] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._sweeper: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def start(self) -> None:
        """Start the fork server, and says loudly what does not hold its workers.

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

    async def describe(self, source: HandlerSource) -> DescribedListener:
        """Import a listener's code in a worker that calls none of it, and describe what it takes.

        Raises:
            RegistrationError: It cannot be imported, or does not fit; the message names the path.
            WorkersError: No worker can be had.
        """
        return await self._describer.describe(source)

    def begin(
        self,
        source: HandlerSource,
        thread_id: str,
        payload_class: int,
        payload: dict[str, Any],
        deadline: float,
        done: Done,
    ) -> None:
        """Begin one call of a handler, in the worker of its listener and thread.

        The deadline counts from when the worker is given the call: the import of the handler
        counts, waiting for room among the live workers does not.
        """
        key = (source.name, thread_id if self._by_thread else "")
        holder = self._holders.get(key)
        if holder is None:
            holder = self._holders[key] = WorkerHolder(key, self._answered)
        call = HandlerCall(source, payload_class, payload, thread_id, deadline, done)
        if holder.call is None:
            self._give(holder, call)
        else:
            if holder.calls is None:
                holder.calls = deque()
            holder.calls.append(call)

    async def forget(self, name: str, thread_id: str) -> None:
        """End the worker of a listener and thread."""
        holder = self._holders.get((name, thread_id))
        if holder is not None:
            holder.forgotten = True  # its worker may be yet to come
            await self._end(holder, FORGOTTEN)

    async def unregister(self, name: str) -> None:
        """End every worker of a listener."""
        for holder in [holder for holder in self._holders.values() if holder.key[0] == name]:
            await self._end(holder, "its listener is gone")

    async def aclose(self) -> None:
        """End every worker and the fork server."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._supply.aclose()
        self._wake(len(self._waiting))

    def _give(self, holder: WorkerHolder, call: HandlerCall) -> None:
        """Return a call to the worker of its holder, or has one employed for it."""
        holder.call = call
        worker = holder.worker
        other = holder.source is not call.source and holder.source != call.source
        if other or worker is None or not worker.usable:
            task = asyncio.get_running_loop().create_task(self._prepare(holder, call))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._send(holder, worker, call)

    async def _prepare(self, holder: WorkerHolder, call: HandlerCall) -> None:
        """Employ a worker for a holder, after the end of one that has other code."""
        try:
            if holder.worker is not None and holder.source != call.source:
                await self._end(holder, "its listener has other code")
            worker = await self._employ(holder, call.source)
        except HandlerFailed as failed:
            self._answered(holder, failed)
        except asyncio.CancelledError:
            self._answered(holder, HandlerFailed(FailureKind.DIED, "the workers are closed"))
            raise
        except Exception as error:
            logger.exception("no worker could be had for %s", call.source.name)
            self._answered(holder, HandlerFailed(FailureKind.DIED, repr(error)))
        else:
            self._send(holder, worker, call)

    def _send(self, holder: WorkerHolder, worker: WorkerProcess, call: HandlerCall) -> None:
        if self._sweeper is None:
            self._watch()
        try:
            worker.call(
                call.payload_class, call.payload, call.thread_id, call.deadline, holder.answered
            )
        except Exception as error:  # steps of a listener may make anything of its payload
            failed = HandlerFailed(FailureKind.RAISED, f"its payload cannot be sent: {error!r}")
            asyncio.get_running_loop().call_soon(holder.answered, failed)

    def _answered(self, holder: WorkerHolder, answer: Answer) -> None:
        """Take the answer to the call of a holder, and give its worker the next."""
        call, holder.call = holder.call, None
        assert call is not None
        holder.since = asyncio.get_running_loop().time()
        if self._waiting:
            self._wake(1)
            asyncio.get_running_loop().call_soon(self._go_on, holder)  # they come first
        else:
            self._go_on(holder)
        if isinstance(answer, HandlerFailed):
            call.done(answer)
            return
        outcome, content = answer
        if outcome is CallOutcome.VALUE:
            call.done(content)
        else:
            detail = printable(content.decode(errors="replace"))
            call.done(HandlerFailed(FAILURE_KINDS[outcome], detail))

    def _go_on(self, holder: WorkerHolder) -> None:
        """Return the worker of a holder the next call, where it has none."""
        if holder.call is None and holder.calls:
            self._give(holder, holder.calls.popleft())
        if holder.forgotten and holder.idle and holder.worker is not None:
            holder.worker.stop(HandlerFailed(FailureKind.DIED, FORGOTTEN))
        self._drop(holder)

    async def _employ(self, holder: WorkerHolder, source: HandlerSource) -> WorkerProcess:
        try:
            worker = await self._hire(partial(self._supply.employ, source))
        except WorkersError as error:
            raise HandlerFailed(FailureKind.DIED, str(error)) from error
        holder.source = source
        holder.worker = worker
        worker.on_end = lambda worker: self._leave(holder, worker)
        return worker

    async def _hire(self, hire: Callable[[], Awaitable[WorkerProcess]]) -> WorkerProcess:
        """Return a worker, once there is room for it."""
        await self._make_room()
        try:
            return await hire()
        except BaseException:
            self._wake(1)  # the room is still there
            raise

    async def _hire_describer(self) -> WorkerProcess:
        worker = await self._hire(self._supply.hire)
        worker.on_end = lambda _: self._wake(1)
        return worker

    async def _end(self, holder: WorkerHolder, reason: str) -> None:
        worker = holder.worker
        if worker is not None:
            worker.stop(HandlerFailed(FailureKind.DIED, reason))
            await asyncio.shield(worker.gone)

    async def _make_room(self) -> None:
        """Wait until one more worker may live; the one idle for longest makes room."""
        while len(self._supply) >= self._settings.workers:
            idle = [holder for holder in self._holders.values() if holder.idle]
            if idle:
                holder = min(idle, key=_since)
                logger.info("the idle worker of %s makes room: its memory is lost", holder.key[0])
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

    def _leave(self, holder: WorkerHolder, worker: WorkerProcess) -> None:
        """Take the news that the worker of a holder has ended."""
        if holder.worker is worker:
            holder.worker = None
            self._drop(holder)
        # The one who ended it to make room hears of that first, and has the room.
        asyncio.get_running_loop().call_soon(self._wake, 1)

    def _drop(self, holder: WorkerHolder) -> None:
        """Forget a holder that has no worker and no call."""
        if holder.worker is None and holder.call is None and not holder.calls:
            self._holders.pop(holder.key, None)

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


def _since(holder: WorkerHolder) -> float:
    return holder.since
