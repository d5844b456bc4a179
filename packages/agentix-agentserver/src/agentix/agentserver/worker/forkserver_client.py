"""The pump's end of the fork server: its start and end, live workers and spare ones."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import marshal
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable
from pathlib import Path

from agentix.agentserver.errors import WorkersError
from agentix.agentserver.worker.handlers import HandlerSource, Mitigation, WorkerSettings
from agentix.agentserver.worker.process import HandlerProcess, WorkerOutput
from agentix.agentserver.worker.protocol import (
    BORN,
    ENDED,
    FORK,
    KILL,
    ORDER,
    READY,
    STATE,
    ForkServerConfig,
    pack_frame,
)

__all__ = [
    "ForkServerClient",
    "WorkerSupply",
]

logger = logging.getLogger(__name__)


BOOT = Path(__file__).with_name("boot.py")

START = 30.0
"""How long a fork server may take to be ready, in seconds."""

STOP = 5.0
"""How long a fork server may take to end its workers and itself, in seconds."""

UNBORN = 64
"""How many workers may be ordered before the first of them is forked."""


class ForkServerClient:
    """One fork server, which forks workers when it is told to.

    Args:
        plan: What every worker is to be like.
        on_ended: Called with the number and the wait status of each worker that has ended.
        on_lost: Called when the fork server is gone, and with it every worker.
    """

    def __init__(
        self,
        plan: ForkServerConfig,
        on_ended: Callable[[int, int], None],
        on_lost: Callable[[ForkServerClient], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_ended = on_ended
        self._on_lost = on_lost
        self._ready: asyncio.Future[tuple[Mitigation, ...]] = self._loop.create_future()
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._unborn = asyncio.Semaphore(UNBORN)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        with theirs:
            self._process = _start_process(theirs)
        self._end = os.pidfd_open(self._process.pid)
        self._loop.add_reader(self._control.fileno(), self._read)
        self._loop.add_reader(self._end, self._reap)
        self._control.send(marshal.dumps(dict(plan)))

    @property
    def pid(self) -> int:
        """The process id of the fork server's guard."""
        return self._process.pid

    @property
    def lost(self) -> bool:
        """The fork server takes no more orders."""
        return self._control.fileno() < 0

    async def ready(self) -> tuple[Mitigation, ...]:
        """Wait until the fork server takes orders, and return what holds its workers.

        Raises:
            WorkersError: It ended, or was not ready in time; nothing of it is left.
        """
        try:
            async with asyncio.timeout(START):
                return await asyncio.shield(self._ready)
        except TimeoutError:
            raise WorkersError(f"the fork server was not ready within {START:g} s") from None
        finally:
            if not self._ready.done() or self._ready.exception():
                await self.aclose()

    async def fork(self, number: int) -> tuple[socket.socket, int]:
        """Order a worker, and return the socket to it and the pipe that its output comes from.

        Raises:
            WorkersError: The fork server is gone, or does not take orders.
        """
        await self._unborn.acquire()
        with contextlib.ExitStack() as ends:
            ends.callback(self._unborn.release)
            try:
                ours, theirs = socket.socketpair()
                ends.callback(ours.close)
                with theirs:
                    output, written = os.pipe2(os.O_CLOEXEC)
                    ends.callback(os.close, output)
                    try:
                        self._send(FORK, number, [theirs.fileno(), written])
                    finally:
                        os.close(written)
            except OSError as error:
                raise WorkersError(f"no worker can be had: {error.strerror}") from error
            ends.pop_all()
        ours.setblocking(False)
        os.set_blocking(output, False)
        return ours, output

    def kill(self, number: int) -> None:
        """Have a worker killed; where the fork server does not take the order, all are killed."""
        try:
            self._send(KILL, number, [])
        except WorkersError as error:
            if not self._gone.done():
                logger.error("worker %d cannot be killed alone: %s", number, error)
                self._process.kill()

    async def aclose(self) -> None:
        """End every worker, and the fork server, and wait until nothing of them is left."""
        self._lose()
        try:
            async with asyncio.timeout(STOP):
                await asyncio.shield(self._gone)
        except TimeoutError:
            logger.error("the fork server did not end within %g s and is killed", STOP)
            self._process.kill()
            await asyncio.shield(self._gone)

    def _send(self, order: int, number: int, descriptors: list[int]) -> None:
        if self.lost:
            raise WorkersError("the fork server is gone")
        try:
            socket.send_fds(self._control, [ORDER.pack(order, number)], descriptors)
        except OSError as error:
            raise WorkersError(f"the fork server takes no orders: {error.strerror}") from error

    def _read(self) -> None:
        """Read one message of the fork server."""
        try:
            message = self._control.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self._lose()
            return
        code, number, status = STATE.unpack_from(message)
        if code == BORN:
            self._unborn.release()
        elif code == ENDED:
            self._on_ended(number, status)
        elif code == READY and not self._ready.done():
            measures = json.loads(message[STATE.size :])
            self._ready.set_result(tuple(Mitigation(*measure) for measure in measures))

    def _lose(self) -> None:
        """Let go of the fork server, which then ends if it has not."""
        if self.lost:
            return
        self._loop.remove_reader(self._control.fileno())
        self._control.close()
        for _ in range(UNBORN):
            self._unborn.release()
        if not self._ready.done():
            self._ready.set_exception(WorkersError("the fork server ended before it was ready"))
            self._ready.exception()  # taken here where nobody waits for it
        self._on_lost(self)

    def _reap(self) -> None:
        self._loop.remove_reader(self._end)
        os.close(self._end)
        self._process.wait()
        self._gone.set_result(None)
        self._lose()


def _start_process(control: socket.socket) -> subprocess.Popen[bytes]:
    """Start a fork server without the environment and descriptors of this process."""
    number = control.fileno()
    flags = ["-I", "-S", "-B", "-X", "utf8"]
    return subprocess.Popen(
        [sys.executable, *flags, str(BOOT), str(number), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        env={},
        cwd="/",
        pass_fds=[number],
        start_new_session=True,
    )


PRELOAD = (
    "agentix.agentserver",
    "agentix.agentserver.worker.child",
    "agentix.agentserver.payload.construct",
    "agentix.agentserver.payload.describe",
)
"""What every worker needs."""

OTHER_DESCRIPTORS = 128
"""How many open files a pump needs for other things, more or less."""


class WorkerSupply:
    """Has workers forked, and knows of their ends. A fork server that is gone is replaced.

    A worker does not know what it is for until it is told, so a few wait ahead of need, held
    already.

    Args:
        settings: What workers are to be like.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self.measures: tuple[Mitigation, ...] = ()
        """What holds the workers."""
        self._settings = settings
        self._client: ForkServerClient | None = None
        self._starting = asyncio.Lock()
        self._workers: dict[int, HandlerProcess] = {}
        self._outputs: dict[int, WorkerOutput] = {}
        self._spares: deque[HandlerProcess] = deque()
        self._refill: asyncio.Task[None] | None = None
        self._count = 0
        self._scratch = ""
        self._closed = False

    def __len__(self) -> int:
        return len(self._workers) - len(self._spares)

    @property
    def guard(self) -> int:
        """The process id of the fork server's guard; 0 where there is none."""
        return self._client.pid if self._client is not None else 0

    async def start(self) -> ForkServerClient:
        """Return the fork server, which is started where there is none.

        Raises:
            WorkersError: It does not start, or the supply is closed.
        """
        async with self._starting:
            if self._closed:
                raise WorkersError("the workers are closed")
            if self._client is None:
                self._check_descriptors()
                client = ForkServerClient(self._plan(), self._ended, self._lost)
                self.measures = await client.ready()
                self._client = client
            return self._client

    async def employ(self, source: HandlerSource) -> HandlerProcess:
        """Return a worker for a listener.

        Raises:
            WorkersError: None can be had.
        """
        worker = self._spare() or await self._fork()
        self._keep_spares()
        worker.send(self.order(worker, source))
        return worker

    async def hire(self) -> HandlerProcess:
        """Return a new worker that does not know yet what it is for; spare ones wait for calls.

        Raises:
            WorkersError: None can be had.
        """
        worker = await self._fork()
        self._keep_spares()
        return worker

    def order(
        self, worker: HandlerProcess, source: HandlerSource, describing: bool = False
    ) -> bytes:
        """Return what tells a worker what it is for; one that describes may be told again.

        Args:
            worker: The worker.
            source: The listener.
            describing: Its code is to be described, and not called.
        """
        if worker.number in self._outputs:
            self._outputs[worker.number].name = source.name
        own_name = source.name if source.agent and not describing else None
        order = (describing, source.handler, source.payload_classes, own_name)
        return pack_frame((*order, self._settings.output))

    async def aclose(self) -> None:
        """End every worker and the fork server, and wait until nothing of them is left."""
        self._closed = True
        if self._refill is not None:
            self._refill.cancel()
        async with self._starting:
            if self._client is not None:
                await self._client.aclose()
        for output in self._outputs.values():
            output.close()
        self._remove_scratch()

    async def _fork(self) -> HandlerProcess:
        client = await self.start()
        self._count += 1
        number = self._count
        channel, output = await client.fork(number)
        worker = HandlerProcess(number, channel, self._settings.output, client.kill)
        self._workers[number] = worker
        self._outputs[number] = WorkerOutput(output)
        if client.lost:
            self._forget(number, "the fork server is gone")
            raise WorkersError("the fork server is gone")
        return worker

    def _check_descriptors(self) -> None:
        """Say so where this process may not open what all workers need."""
        needed = 2 * (self._settings.workers + self._settings.spares) + OTHER_DESCRIPTORS
        allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if needed > allowed:
            logger.warning(
                "%d workers need %d open files, and %d are allowed: raise `ulimit -n`",
                *(self._settings.workers, needed, allowed),
            )

    def _spare(self) -> HandlerProcess | None:
        while self._spares:
            worker = self._spares.popleft()
            if worker.usable:
                return worker
        return None

    def _keep_spares(self) -> None:
        """Have spare workers forked after the one that is needed now."""
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

    def _plan(self) -> ForkServerConfig:
        settings = self._settings
        self._remove_scratch()
        self._scratch = _make_scratch()
        path = [str(Path(entry).absolute()) for entry in (*settings.path, *sys.path)]
        return ForkServerConfig(
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
        """Remove what a fork server's guard removes, too, where that was not killed."""
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

    def _lost(self, client: ForkServerClient) -> None:
        """Take the news that the fork server is gone, and with it every worker."""
        if self._client is client:
            self._client = None
        if not self._closed:
            logger.error("the fork server is gone, and with it %d workers", len(self._workers))
        for number in list(self._workers):
            self._forget(number, "the fork server is gone")


def _make_scratch() -> str:
    """Make the directory of scratch directories; others may pass through it to their own."""
    directory = tempfile.mkdtemp(prefix="agentix-workers-")
    Path(directory).chmod(0o711)
    return directory
