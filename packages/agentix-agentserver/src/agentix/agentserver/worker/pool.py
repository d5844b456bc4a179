"""The pool: a worker for each thread of each listener, for as long as there is room."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from functools import partial
from typing import Any, Self

from agentix.agentserver.worker.describing import Describer
from agentix.agentserver.worker.fleet import Fleet
from agentix.agentserver.worker.frame import Outcome
from agentix.agentserver.worker.handlers import (
    FAILURES,
    Described,
    FailureKind,
    HandlerFailed,
    HandlerSource,
    WorkersError,
)
from agentix.agentserver.worker.output import printable
from agentix.agentserver.worker.report import HardeningReport
from agentix.agentserver.worker.settings import Isolation, WorkerSettings
from agentix.agentserver.worker.worker import Worker

__all__ = ["Workers"]

logger = logging.getLogger(__name__)

SWEEP = 0.1
"""How often deadlines are looked at while there is something to look at, in seconds."""

Key = tuple[str, str]


class Lane:
    """The calls of one listener and thread, which follow one another, and their worker."""

    __slots__ = ("key", "since", "source", "turn", "users", "worker")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.turn = asyncio.Lock()
        self.users = 0
        self.source: HandlerSource | None = None
        self.worker: Worker | None = None
        self.since = 0.0


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
        self._describer = Describer(self._hire, partial(self._fleet.order, describing=True))
        self._lanes: dict[Key, Lane] = {}
        self._idle: OrderedDict[Key, Lane] = OrderedDict()
        self._busy: set[Worker] = set()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._sweeper: asyncio.TimerHandle | None = None

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

    async def call(
        self,
        source: HandlerSource,
        thread_id: str,
        payload_class: int,
        payload: dict[str, Any],
        deadline: float,
    ) -> bytes:
        """Calls a handler once, in the worker of its listener and thread.

        The deadline counts from when the worker is given the call: the import of the handler
        counts, waiting for room among the live workers does not.

        Raises:
            HandlerFailed: It did not give bytes.
        """
        key = (source.name, thread_id if self._by_thread else "")
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(key)
        lane.users += 1
        call = (payload_class, payload, thread_id)
        try:
            async with lane.turn:
                outcome, content = await self._call(lane, source, call, deadline)
        finally:
            lane.users -= 1
            self._drop(lane)
        if outcome is Outcome.VALUE:
            return content
        raise HandlerFailed(FAILURES[outcome], printable(content.decode(errors="replace")))

    async def forget(self, name: str, thread_id: str) -> None:
        """Ends the worker of a listener and thread."""
        lane = self._lanes.get((name, thread_id))
        if lane is not None:
            await self._end(lane, "its thread is forgotten")

    async def unregister(self, name: str) -> None:
        """Ends every worker of a listener."""
        for lane in [lane for lane in self._lanes.values() if lane.key[0] == name]:
            await self._end(lane, "its listener is gone")

    async def aclose(self) -> None:
        """Ends every worker and the zygote."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self._fleet.aclose()
        self._wake(len(self._waiting))

    async def _call(
        self,
        lane: Lane,
        source: HandlerSource,
        call: tuple[int, dict[str, Any], str],
        deadline: float,
    ) -> tuple[Outcome, bytes]:
        worker = lane.worker
        if lane.source is not source and lane.source != source:
            await self._end(lane, "its listener has other code")
        if worker is None or not worker.usable:
            worker = await self._employ(lane, source)
        self._idle.pop(lane.key, None)
        self._busy.add(worker)
        if self._sweeper is None:
            self._watch()
        try:
            return await worker.call(*call, deadline)
        except asyncio.CancelledError:
            worker.stop(HandlerFailed(FailureKind.DIED, "its call was given up"))
            raise
        finally:
            self._busy.discard(worker)
            self._rest(lane, worker)

    async def _employ(self, lane: Lane, source: HandlerSource) -> Worker:
        await self._make_room()
        try:
            worker = await self._fleet.employ(source)
        except WorkersError as error:
            raise HandlerFailed(FailureKind.DIED, str(error)) from error
        lane.source = source
        lane.worker = worker
        worker.on_end = lambda worker: self._leave(lane, worker)
        return worker

    async def _hire(self) -> Worker:
        """Gives a worker for descriptions."""
        await self._make_room()
        worker = await self._fleet.hire()
        worker.on_end = lambda _: self._wake(1)
        return worker

    async def _end(self, lane: Lane, reason: str) -> None:
        self._idle.pop(lane.key, None)
        worker = lane.worker
        if worker is not None:
            worker.stop(HandlerFailed(FailureKind.DIED, reason))
            await asyncio.shield(worker.gone)

    async def _make_room(self) -> None:
        """Waits until one more worker may live; the one idle for longest makes room."""
        while len(self._fleet) >= self._settings.workers:
            if self._idle:
                lane = next(iter(self._idle.values()))
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

    def _rest(self, lane: Lane, worker: Worker) -> None:
        """Puts a lane among the idle ones, whose worker may have to make room for another."""
        if worker.usable and lane.worker is worker:
            lane.since = asyncio.get_running_loop().time()
            self._idle[lane.key] = lane
        if self._waiting:
            self._wake(1)

    def _leave(self, lane: Lane, worker: Worker) -> None:
        """Takes the news that the worker of a lane has ended."""
        if lane.worker is worker:
            lane.worker = None
            self._idle.pop(lane.key, None)
            self._drop(lane)
        self._wake(1)

    def _drop(self, lane: Lane) -> None:
        """Forgets a lane that has no worker and no caller."""
        if lane.worker is None and lane.users == 0:
            self._lanes.pop(lane.key, None)

    def _watch(self) -> None:
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP, self._sweep)

    def _sweep(self) -> None:
        """Kills workers that are past their deadline, or idle for too long."""
        now = asyncio.get_running_loop().time()
        for worker in [worker for worker in self._busy if worker.deadline <= now]:
            worker.stop(HandlerFailed(FailureKind.TIMED_OUT, "it did not answer in time"))
        while self._idle:
            lane = next(iter(self._idle.values()))
            if lane.worker is not None and lane.since + self._settings.idle > now:
                break
            del self._idle[lane.key]
            if lane.worker is not None:
                lane.worker.stop(HandlerFailed(FailureKind.DIED, "it was idle"))
        self._sweeper = None
        if self._busy or self._idle:
            self._watch()
