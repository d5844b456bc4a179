"""The pool: the workers of an organism, one for each thread of each listener."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
import tempfile
from collections import OrderedDict, deque
from pathlib import Path
from typing import Any, Self

from agentix.agentserver.errors import RegistrationError
from agentix.agentserver.worker.frame import Outcome, pack_frame, unpack
from agentix.agentserver.worker.handlers import (
    FAILURES,
    Described,
    FailureKind,
    HandlerFailed,
    HandlerSource,
    WorkersError,
)
from agentix.agentserver.worker.nursery import Nursery
from agentix.agentserver.worker.output import Output
from agentix.agentserver.worker.plan import Plan
from agentix.agentserver.worker.report import HardeningReport, Measure
from agentix.agentserver.worker.settings import Isolation, WorkerSettings
from agentix.agentserver.worker.worker import Worker

__all__ = ["Workers"]

logger = logging.getLogger(__name__)

SWEEP = 0.1
"""How often deadlines are looked at while calls are under way, in seconds."""

DESCRIBE = 60.0
"""How long the import of a listener's code may take at registration, in seconds."""

STARTS = 16
"""How many workers may be starting at once."""

PRELOAD = (
    "agentix.agentserver",
    "agentix.agentserver.worker.child",
    "agentix.agentserver.payload.construct",
    "agentix.agentserver.payload.describe",
)
"""What every worker needs."""

Key = tuple[str, str]


class Lane:
    """The calls of one listener and thread, which follow one another, and their worker."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.turn = asyncio.Lock()
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
        self._nursery: Nursery | None = None
        self._measures: tuple[Measure, ...] = ()
        self._starting = asyncio.Lock()
        self._places = asyncio.Semaphore(STARTS)
        self._lanes: dict[Key, Lane] = {}
        self._idle: OrderedDict[Key, Lane] = OrderedDict()
        self._busy: set[Worker] = set()
        self._workers: dict[int, Worker] = {}
        self._count = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False
        self._scratch = ""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def start(self) -> None:
        """Starts the zygote.

        Raises:
            WorkersError: It does not start.
        """
        await self._ready_nursery()

    def report(self) -> HardeningReport:
        """Says what holds the workers, and what could not be applied."""
        return HardeningReport(str(self._settings.isolation), self._measures)

    async def describe(self, source: HandlerSource) -> Described:
        """Imports a listener's code in a worker of its own, and describes what it takes.

        Raises:
            RegistrationError: It can not be imported, or does not fit; the message names the path.
            WorkersError: No worker can be had.
        """
        worker = await self._fork(source, describing=True)
        try:
            async with asyncio.timeout(DESCRIBE):
                outcome, content = await worker.call(b"", DESCRIBE)
        except TimeoutError:
            reason = f"its import takes longer than {DESCRIBE:g} s"
            raise RegistrationError(f"{source.name}: {source.handler!r}: {reason}") from None
        except HandlerFailed as failed:
            reason = f"its import ended the worker: {failed.detail}"
            raise RegistrationError(f"{source.name}: {source.handler!r}: {reason}") from None
        finally:
            worker.stop(HandlerFailed(FailureKind.DIED, "described"))
        if outcome is not Outcome.VALUE:
            raise RegistrationError(f"{source.name}: {content.decode(errors='replace')}")
        return Described(_records(source, content))

    async def call(
        self,
        source: HandlerSource,
        thread_id: str,
        payload_class: int,
        payload: dict[str, Any],
        deadline: float,
    ) -> bytes:
        """Calls a handler once, in the worker of its listener and thread.

        The deadline counts from when the call is its worker's; the start of a worker counts, and
        waiting for a place among the live ones does not.

        Raises:
            HandlerFailed: It did not give bytes.
        """
        by_thread = self._settings.isolation is Isolation.THREAD
        key = (source.name, thread_id if by_thread else "")
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(key)
        async with lane.turn:
            worker = lane.worker
            if worker is None or not worker.usable:
                worker = lane.worker = await self._fork(source)
            self._idle.pop(key, None)
            self._busy.add(worker)
            frame = pack_frame((worker.next_call, payload_class, payload, thread_id))
            loop = asyncio.get_running_loop()
            self._watch(loop)
            try:
                outcome, content = await worker.call(frame, loop.time() + deadline)
            except asyncio.CancelledError:
                worker.stop(HandlerFailed(FailureKind.DIED, "its call was given up"))
                raise
            finally:
                self._busy.discard(worker)
                self._rest(lane, worker, loop.time())
        if outcome is Outcome.VALUE:
            return content
        raise HandlerFailed(FAILURES[outcome], content.decode(errors="replace"))

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
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._nursery is not None:
            self._nursery.close()
        self._wake(len(self._waiting))
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)

    async def _end(self, lane: Lane, reason: str) -> None:
        worker = lane.worker
        if worker is None:
            return
        worker.stop(HandlerFailed(FailureKind.DIED, reason))
        await asyncio.shield(worker.gone)

    async def _ready_nursery(self) -> Nursery:
        """Gives the zygote, which is started if there is none."""
        async with self._starting:
            if self._closed:
                raise WorkersError("the workers are closed")
            if not self._scratch:
                self._scratch = _make_scratch()
            if self._nursery is None:
                nursery = Nursery(self._plan(), self._ended, self._lost)
                self._measures = await nursery.start()
                self._nursery = nursery
            return self._nursery

    def _plan(self) -> Plan:
        settings = self._settings
        path = [str(Path(entry).absolute()) for entry in (*settings.path, *sys.path)]
        return Plan(
            path=[entry for entry in path if entry != "/"],
            preload=[*PRELOAD, *settings.preload],
            readable=list(settings.readable),
            hidden=list(settings.hidden),
            memory=settings.memory,
            cpu=settings.cpu,
            processes=settings.processes,
            open_files=settings.open_files,
            file_size=settings.file_size,
            scratch=self._scratch,
        )

    async def _fork(self, source: HandlerSource, describing: bool = False) -> Worker:
        """Forks a worker for a listener when there is room for one."""
        async with self._places:
            await self._make_room()
            nursery = await self._ready_nursery()
            self._count += 1
            number = self._count
            channel, output = nursery.fork(number)
            worker = Worker(number, channel, self._settings.output, self._kill)
            Output(output, source.name)
            self._workers[number] = worker
        own_name = source.name if source.agent else None
        order = (describing, source.handler, source.payload_classes, own_name)
        worker.send(pack_frame((*order, self._settings.output)))
        return worker

    async def _make_room(self) -> None:
        while len(self._workers) >= self._settings.workers:
            if self._idle:
                _, lane = self._idle.popitem(last=False)
                logger.info("the idle worker of %s makes room", lane.key[0])
                await self._end(lane, "it made room")
                continue
            place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(place)
            await place

    def _wake(self, count: int) -> None:
        """Lets callers that wait for room look again."""
        while count and self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                count -= 1

    def _rest(self, lane: Lane, worker: Worker, now: float) -> None:
        """Puts a lane's worker among the idle ones, and lets one caller wait no longer."""
        if worker.usable and lane.worker is worker:
            lane.since = now
            self._idle[lane.key] = lane
        if self._waiting:
            self._wake(1)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._sweeper is None:
            self._sweeper = loop.call_later(SWEEP, self._sweep, loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Kills workers that are past their deadline, or idle for too long."""
        now = loop.time()
        self._sweeper = None
        for worker in [worker for worker in self._busy if worker.deadline <= now]:
            worker.stop(HandlerFailed(FailureKind.TIMED_OUT, "it did not answer in time"))
        for lane in list(self._idle.values()):
            if lane.since + self._settings.idle > now:
                break
            del self._idle[lane.key]
            if lane.worker is not None:
                lane.worker.stop(HandlerFailed(FailureKind.DIED, "it was idle"))
        if self._busy or self._idle:
            self._sweeper = loop.call_later(SWEEP, self._sweep, loop)

    def _kill(self, worker: Worker) -> None:
        if self._nursery is not None:
            self._nursery.kill(worker.number)

    def _ended(self, number: int, status: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        detail = f"it ended with exit code {code}" if code >= 0 else f"signal {-code} ended it"
        worker = self._workers.pop(number, None)
        if worker is not None:
            worker.ended(detail)
            self._forget_lane(worker)
        self._wake(1)

    def _forget_lane(self, worker: Worker) -> None:
        for key, lane in list(self._lanes.items()):
            if lane.worker is worker:
                lane.worker = None
                self._idle.pop(key, None)
                if not lane.turn.locked():
                    del self._lanes[key]

    def _lost(self, nursery: Nursery) -> None:
        """Takes the news that the zygote is gone, and with it every worker."""
        if self._nursery is nursery:
            self._nursery = None
        for number in list(self._workers):
            worker = self._workers.pop(number)
            worker.ended("the zygote ended")
            self._forget_lane(worker)
        self._wake(len(self._waiting))


def _make_scratch() -> str:
    """Makes the directory of scratch directories; others may pass through it to their own."""
    directory = tempfile.mkdtemp(prefix="agentix-workers-")
    Path(directory).chmod(0o711)
    return directory


def _records(source: HandlerSource, content: bytes) -> tuple[dict[str, Any], ...]:
    try:
        records = unpack(content)
    except ValueError as error:
        raise RegistrationError(f"{source.name}: its description is broken: {error}") from error
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise RegistrationError(f"{source.name}: its description is broken")
    return tuple(records)
