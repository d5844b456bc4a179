"""The fleet: the live workers of an organism, the zygote that forks them, and spare ones."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import shutil
import sys
import tempfile
from collections import deque
from pathlib import Path

from agentix.agentserver.worker.frame import pack_frame
from agentix.agentserver.worker.handlers import HandlerSource, WorkersError
from agentix.agentserver.worker.nursery import Nursery
from agentix.agentserver.worker.output import Output
from agentix.agentserver.worker.plan import Plan
from agentix.agentserver.worker.report import Measure
from agentix.agentserver.worker.settings import WorkerSettings
from agentix.agentserver.worker.worker import Worker

__all__ = ["Fleet"]

logger = logging.getLogger(__name__)

PRELOAD = (
    "agentix.agentserver",
    "agentix.agentserver.worker.child",
    "agentix.agentserver.payload.construct",
    "agentix.agentserver.payload.describe",
)
"""What every worker needs."""

OTHER_DESCRIPTORS = 128
"""How many open files a pump needs for other things, more or less."""


class Fleet:
    """Has workers forked, and knows of their ends. A zygote that is gone is replaced.

    A worker does not know what it is for until it is told, so a few wait ahead of need, held
    already.

    Args:
        settings: What workers are to be like.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self.measures: tuple[Measure, ...] = ()
        """What holds the workers."""
        self._settings = settings
        self._nursery: Nursery | None = None
        self._starting = asyncio.Lock()
        self._workers: dict[int, Worker] = {}
        self._outputs: dict[int, Output] = {}
        self._spares: deque[Worker] = deque()
        self._refill: asyncio.Task[None] | None = None
        self._count = 0
        self._scratch = ""
        self._closed = False

    def __len__(self) -> int:
        return len(self._workers) - len(self._spares)

    @property
    def guard(self) -> int:
        """The process id of the zygote's guard; 0 where there is none."""
        return self._nursery.pid if self._nursery is not None else 0

    async def start(self) -> Nursery:
        """Gives the zygote, which is started where there is none.

        Raises:
            WorkersError: It does not start, or the fleet is closed.
        """
        async with self._starting:
            if self._closed:
                raise WorkersError("the workers are closed")
            if self._nursery is None:
                self._check_descriptors()
                nursery = Nursery(self._plan(), self._ended, self._lost)
                self.measures = await nursery.ready()
                self._nursery = nursery
            return self._nursery

    async def employ(self, source: HandlerSource) -> Worker:
        """Gives a worker for a listener.

        Raises:
            WorkersError: None can be had.
        """
        worker = self._spare() or await self._fork()
        self._keep_spares()
        self.order(worker, source)
        return worker

    async def hire(self) -> Worker:
        """Gives a new worker that does not know yet what it is for; spare ones wait for calls.

        Raises:
            WorkersError: None can be had.
        """
        worker = await self._fork()
        self._keep_spares()
        return worker

    def order(self, worker: Worker, source: HandlerSource, describing: bool = False) -> None:
        """Tells a worker what it is for; one that describes listeners may be told again.

        Args:
            worker: The worker.
            source: The listener.
            describing: Its code is to be described, and not called.
        """
        if worker.number in self._outputs:
            self._outputs[worker.number].name = source.name
        own_name = source.name if source.agent and not describing else None
        order = (describing, source.handler, source.payload_classes, own_name)
        worker.send(pack_frame((*order, self._settings.output)))

    async def aclose(self) -> None:
        """Ends every worker and the zygote, and waits until nothing of them is left."""
        self._closed = True
        if self._refill is not None:
            self._refill.cancel()
        async with self._starting:
            if self._nursery is not None:
                await self._nursery.aclose()
        for output in self._outputs.values():
            output.close()
        self._remove_scratch()

    async def _fork(self) -> Worker:
        nursery = await self.start()
        self._count += 1
        number = self._count
        channel, output = await nursery.fork(number)
        worker = Worker(number, channel, self._settings.output, nursery.kill)
        self._workers[number] = worker
        self._outputs[number] = Output(output)
        if nursery.lost:
            self._forget(number, "the zygote is gone")
            raise WorkersError("the zygote is gone")
        return worker

    def _check_descriptors(self) -> None:
        """Says so where this process may not open what all workers need."""
        needed = 2 * (self._settings.workers + self._settings.spares) + OTHER_DESCRIPTORS
        allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if needed > allowed:
            logger.warning(
                "%d workers need %d open files, and %d are allowed: raise `ulimit -n`",
                *(self._settings.workers, needed, allowed),
            )

    def _spare(self) -> Worker | None:
        while self._spares:
            worker = self._spares.popleft()
            if worker.usable:
                return worker
        return None

    def _keep_spares(self) -> None:
        """Has spare workers forked after the one that is needed now."""
        if self._refill is None and len(self._spares) < self._settings.spares:
            self._refill = asyncio.create_task(self._add_spares())

    async def _add_spares(self) -> None:
        try:
            while len(self._spares) < self._settings.spares:
                self._spares.append(await self._fork())
        except WorkersError as error:
            logger.warning("no spare worker: %s", error)
        finally:
            self._refill = None

    def _plan(self) -> Plan:
        settings = self._settings
        self._remove_scratch()
        self._scratch = _make_scratch()
        path = [str(Path(entry).absolute()) for entry in (*settings.path, *sys.path)]
        return Plan(
            path=[entry for entry in dict.fromkeys(path) if entry != "/"],
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

    def _remove_scratch(self) -> None:
        """Removes what a zygote's guard removes, too, where that was not killed."""
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _ended(self, number: int, status: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        detail = f"it ended with exit code {code}" if code >= 0 else f"signal {-code} ended it"
        self._forget(number, detail)

    def _forget(self, number: int, detail: str) -> None:
        worker = self._workers.pop(number, None)
        if worker is None:
            return
        if worker in self._spares:
            self._spares.remove(worker)
        self._outputs.pop(number).close()
        worker.ended(detail)

    def _lost(self, nursery: Nursery) -> None:
        """Takes the news that the zygote is gone, and with it every worker."""
        if self._nursery is nursery:
            self._nursery = None
        if not self._closed:
            logger.error("the zygote is gone, and with it %d workers", len(self._workers))
        for number in list(self._workers):
            self._forget(number, "the zygote is gone")


def _make_scratch() -> str:
    """Makes the directory of scratch directories; others may pass through it to their own."""
    directory = tempfile.mkdtemp(prefix="agentix-workers-")
    Path(directory).chmod(0o711)
    return directory
