"""The pool: a worker for each thread of each listener, for as long as there is room."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple, Self

from agentix.agentserver.worker.describing import Describer
from agentix.agentserver.worker.fleet import Fleet
from agentix.agentserver.worker.frame import Outcome
from agentix.agentserver.worker.handlers import (
    FAILURES,
    Described,
    Done,
    FailureKind,
    HandlerFailed,
    HandlerSource,
    WorkersError,
)
from agentix.agentserver.worker.output import printable
from agentix.agentserver.worker.report import HardeningReport
from agentix.agentserver.worker.settings import Isolation, WorkerSettings
from agentix.agentserver.worker.worker import Answer, Worker

__all__ = ["Workers"]

logger = logging.getLogger(__name__)

SWEEP = 0.1
"""How often deadlines are looked at while there is something to look at, in seconds."""

FORGOTTEN = "its thread is forgotten"

Key = tuple[str, str]


class Call(NamedTuple):
    """One call of a handler, as it is to be sent to a worker."""

    source: HandlerSource
    payload_class: int
    payload: dict[str, Any]
    thread_id: str
    deadline: float
    done: Done


class Lane:
    """The calls of one listener and thread, which follow one another, and their worker."""

    __slots__ = ("answered", "call", "calls", "forgotten", "key", "since", "source", "worker")

    def __init__(self, key: Key, answered: Callable[[Lane, Answer], None]) -> None:
        self.key = key
        self.answered = partial(answered, self)
        self.call: Call | None = None
        self.calls: deque[Call] | None = None
        self.source: HandlerSource | None = None
        self.worker: Worker | None = None
        self.since = 0.0
        self.forgotten = False

    @property
    def idle(self) -> bool:
        """Whether it has a worker that nothing is asked of."""
        return self.call is None and self.worker is not None and self.worker.usable


class Workers:
    """Runs handlers in workers.

    It is an async context manager; or call `start` and `aclose`.

    Args:
        settings: How handlers are isolated, and how much a worker may use.
    """

    def __init__(self, settings: WorkerSettings | None = None) -> None:
        self._settings = settings or WorkerSettings()
        self._by_thread = self._settings.isolation is Isolation.THREAD
        self._fleet = Fleet(self._settings)
        self._describer = Describer(
            self._hire_describer, partial(self._fleet.order, describing=True)
        )
        self._lanes: dict[Key, Lane] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._sweeper: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def start(self) -> None:
        """Starts the zygote, and says loudly what does not hold its workers.

        Raises:
            WorkersError: It does not start.
        """
        await self._fleet.start()
        for measure in self.report().missing:
            logger.warning("handlers are isolated less than they could be: %s", measure)

    @property
    def guard(self) -> int:
        """The process that all workers are below; 0 where there is none at the moment."""
        return self._fleet.guard

    def report(self) -> HardeningReport:
        """Says what holds the workers, and what could not be applied."""
        return HardeningReport(str(self._settings.isolation), self._fleet.measures)

    async def describe(self, source: HandlerSource) -> Described:
        """Imports a listener's code in a worker that calls none of it, and describes what it takes.

        Raises:
            RegistrationError: It can not be imported, or does not fit; the message names the path.
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
        """Begins one call of a handler, in the worker of its listener and thread.

        The deadline counts from when the worker is given the call: the import of the handler
        counts, waiting for room among the live workers does not.
        """
        key = (source.name, thread_id if self._by_thread else "")
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(key, self._answered)
        call = Call(source, payload_class, payload, thread_id, deadline, done)
        if lane.call is None:
            self._give(lane, call)
        else:
            if lane.calls is None:
                lane.calls = deque()
            lane.calls.append(call)

    async def forget(self, name: str, thread_id: str) -> None:
        """Ends the worker of a listener and thread."""
        lane = self._lanes.get((name, thread_id))
        if lane is not None:
            lane.forgotten = True  # its worker may be yet to come
            await self._end(lane, FORGOTTEN)

    async def unregister(self, name: str) -> None:
        """Ends every worker of a listener."""
        for lane in [lane for lane in self._lanes.values() if lane.key[0] == name]:
            await self._end(lane, "its listener is gone")

    async def aclose(self) -> None:
        """Ends every worker and the zygote."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._fleet.aclose()
        self._wake(len(self._waiting))

    def _give(self, lane: Lane, call: Call) -> None:
        """Gives a call to the worker of its lane, or has one employed for it."""
        lane.call = call
        worker = lane.worker
        other = lane.source is not call.source and lane.source != call.source
        if other or worker is None or not worker.usable:
            task = asyncio.get_running_loop().create_task(self._prepare(lane, call))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._send(lane, worker, call)

    async def _prepare(self, lane: Lane, call: Call) -> None:
        """Employs a worker for a lane, after the end of one that has other code."""
        try:
            if lane.worker is not None and lane.source != call.source:
                await self._end(lane, "its listener has other code")
            worker = await self._employ(lane, call.source)
        except HandlerFailed as failed:
            self._answered(lane, failed)
        except asyncio.CancelledError:
            self._answered(lane, HandlerFailed(FailureKind.DIED, "the workers are closed"))
            raise
        except Exception as error:
            logger.exception("no worker could be had for %s", call.source.name)
            self._answered(lane, HandlerFailed(FailureKind.DIED, repr(error)))
        else:
            self._send(lane, worker, call)

    def _send(self, lane: Lane, worker: Worker, call: Call) -> None:
        if self._sweeper is None:
            self._watch()
        try:
            worker.call(
                call.payload_class, call.payload, call.thread_id, call.deadline, lane.answered
            )
        except Exception as error:  # steps of a listener may make anything of its payload
            failed = HandlerFailed(FailureKind.RAISED, f"its payload can not be sent: {error!r}")
            asyncio.get_running_loop().call_soon(lane.answered, failed)

    def _answered(self, lane: Lane, answer: Answer) -> None:
        """Takes the answer to the call of a lane, and gives its worker the next."""
        call, lane.call = lane.call, None
        assert call is not None
        lane.since = asyncio.get_running_loop().time()
        if self._waiting:
            self._wake(1)
            asyncio.get_running_loop().call_soon(self._go_on, lane)  # after those who wait for room
        else:
            self._go_on(lane)
        if isinstance(answer, HandlerFailed):
            call.done(answer)
            return
        outcome, content = answer
        if outcome is Outcome.VALUE:
            call.done(content)
        else:
            detail = printable(content.decode(errors="replace"))
            call.done(HandlerFailed(FAILURES[outcome], detail))

    def _go_on(self, lane: Lane) -> None:
        """Gives the worker of a lane the next call, where it has none."""
        if lane.call is None and lane.calls:
            self._give(lane, lane.calls.popleft())
        if lane.forgotten and lane.idle and lane.worker is not None:
            lane.worker.stop(HandlerFailed(FailureKind.DIED, FORGOTTEN))
        self._drop(lane)

    async def _employ(self, lane: Lane, source: HandlerSource) -> Worker:
        try:
            worker = await self._hire(partial(self._fleet.employ, source))
        except WorkersError as error:
            raise HandlerFailed(FailureKind.DIED, str(error)) from error
        lane.source = source
        lane.worker = worker
        worker.on_end = lambda worker: self._leave(lane, worker)
        return worker

    async def _hire(self, hire: Callable[[], Awaitable[Worker]]) -> Worker:
        """Gives a worker, once there is room for it."""
        await self._make_room()
        try:
            return await hire()
        except BaseException:
            self._wake(1)  # the room is still there
            raise

    async def _hire_describer(self) -> Worker:
        worker = await self._hire(self._fleet.hire)
        worker.on_end = lambda _: self._wake(1)
        return worker

    async def _end(self, lane: Lane, reason: str) -> None:
        worker = lane.worker
        if worker is not None:
            worker.stop(HandlerFailed(FailureKind.DIED, reason))
            await asyncio.shield(worker.gone)

    async def _make_room(self) -> None:
        """Waits until one more worker may live; the one idle for longest makes room."""
        while len(self._fleet) >= self._settings.workers:
            idle = [lane for lane in self._lanes.values() if lane.idle]
            if idle:
                lane = min(idle, key=_since)
                logger.info("the idle worker of %s makes room, and its memory is lost", lane.key[0])
                await self._end(lane, "it made room")
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
        """Lets callers that wait for room look again."""
        while count and self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                count -= 1

    def _leave(self, lane: Lane, worker: Worker) -> None:
        """Takes the news that the worker of a lane has ended."""
        if lane.worker is worker:
            lane.worker = None
            self._drop(lane)
        # The one who ended it to make room hears of that first, and has the room.
        asyncio.get_running_loop().call_soon(self._wake, 1)

    def _drop(self, lane: Lane) -> None:
        """Forgets a lane that has no worker and no call."""
        if lane.worker is None and lane.call is None and not lane.calls:
            self._lanes.pop(lane.key, None)

    def _watch(self) -> None:
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP, self._sweep)

    def _sweep(self) -> None:
        """Kills workers that are past their deadline, or idle for too long."""
        now = asyncio.get_running_loop().time()
        for lane in [*self._lanes.values()]:
            worker = lane.worker
            if worker is not None and worker.overdue(now):
                worker.stop(HandlerFailed(FailureKind.TIMED_OUT, "it did not answer in time"))
            elif worker is not None and lane.idle and lane.since + self._settings.idle <= now:
                worker.stop(HandlerFailed(FailureKind.DIED, "it was idle"))
        self._sweeper = None
        if self._lanes:
            self._watch()


def _since(lane: Lane) -> float:
    return lane.since
