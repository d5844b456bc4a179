"""The nursery: the pump's side of one zygote, from its start to its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import marshal
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from agentix.agentserver.worker.control import BORN, ENDED, FORK, KILL, ORDER, READY, STATE
from agentix.agentserver.worker.handlers import WorkersError
from agentix.agentserver.worker.plan import Plan
from agentix.agentserver.worker.report import Measure

__all__ = ["Nursery"]

logger = logging.getLogger(__name__)

BOOT = Path(__file__).with_name("boot.py")

START = 30.0
"""How long a zygote may take to be ready, in seconds."""

STOP = 5.0
"""How long a zygote may take to end its workers and itself, in seconds."""

UNBORN = 64
"""How many workers may be ordered before the first of them is forked."""


class Nursery:
    """One zygote, which forks workers when it is told to.

    Args:
        plan: What every worker is to be like.
        on_ended: Called with the number and the wait status of each worker that has ended.
        on_lost: Called when the zygote is gone, and with it every worker.
    """

    def __init__(
        self,
        plan: Plan,
        on_ended: Callable[[int, int], None],
        on_lost: Callable[[Nursery], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_ended = on_ended
        self._on_lost = on_lost
        self._ready: asyncio.Future[tuple[Measure, ...]] = self._loop.create_future()
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
        """The process id of the zygote's guard."""
        return self._process.pid

    @property
    def lost(self) -> bool:
        """The zygote takes no more orders."""
        return self._control.fileno() < 0

    async def ready(self) -> tuple[Measure, ...]:
        """Waits until the zygote takes orders, and gives what holds its workers.

        Raises:
            WorkersError: It ended, or was not ready in time; nothing of it is left.
        """
        try:
            async with asyncio.timeout(START):
                return await asyncio.shield(self._ready)
        except TimeoutError:
            raise WorkersError(f"the zygote was not ready within {START:g} s") from None
        finally:
            if not self._ready.done() or self._ready.exception():
                await self.aclose()

    async def fork(self, number: int) -> tuple[socket.socket, int]:
        """Orders a worker, and gives the socket to it and the pipe that its output comes from.

        Raises:
            WorkersError: The zygote is gone, or does not take orders.
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
        """Has a worker killed; where the zygote does not take the order, all are killed."""
        try:
            self._send(KILL, number, [])
        except WorkersError as error:
            if not self._gone.done():
                logger.error("worker %d can not be killed alone: %s", number, error)
                self._process.kill()

    async def aclose(self) -> None:
        """Ends every worker, and the zygote, and waits until nothing of them is left."""
        self._lose()
        try:
            async with asyncio.timeout(STOP):
                await asyncio.shield(self._gone)
        except TimeoutError:
            logger.error("the zygote did not end within %g s and is killed", STOP)
            self._process.kill()
            await asyncio.shield(self._gone)

    def _send(self, order: int, number: int, descriptors: list[int]) -> None:
        if self.lost:
            raise WorkersError("the zygote is gone")
        try:
            socket.send_fds(self._control, [ORDER.pack(order, number)], descriptors)
        except OSError as error:
            raise WorkersError(f"the zygote takes no orders: {error.strerror}") from error

    def _read(self) -> None:
        """Reads one message of the zygote."""
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
            self._ready.set_result(tuple(Measure(*measure) for measure in measures))

    def _lose(self) -> None:
        """Lets go of the zygote, which then ends if it has not."""
        if self.lost:
            return
        self._loop.remove_reader(self._control.fileno())
        self._control.close()
        for _ in range(UNBORN):
            self._unborn.release()
        if not self._ready.done():
            self._ready.set_exception(WorkersError("the zygote ended before it was ready"))
            self._ready.exception()  # taken here where nobody waits for it
        self._on_lost(self)

    def _reap(self) -> None:
        self._loop.remove_reader(self._end)
        os.close(self._end)
        self._process.wait()
        self._gone.set_result(None)
        self._lose()


def _start_process(control: socket.socket) -> subprocess.Popen[bytes]:
    """Starts a zygote with nothing of this process: no environment, no descriptor but its own."""
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
