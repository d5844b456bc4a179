"""The nursery: the pump's side of the zygote, which it starts, orders and restarts."""

from __future__ import annotations

import asyncio
import json
import logging
import marshal
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from agentix.agentserver.worker.control import ENDED, FORK, KILL, ORDER, READY, STATE
from agentix.agentserver.worker.handlers import WorkersError
from agentix.agentserver.worker.plan import Plan
from agentix.agentserver.worker.report import Measure

__all__ = ["Nursery"]

logger = logging.getLogger(__name__)

BOOT = Path(__file__).with_name("boot.py")
START = 30.0
"""How long a zygote may take to be ready, in seconds."""

STOP = 5.0
"""How long a killed zygote may take to be gone, in seconds."""


class Nursery:
    """One zygote, from its start to its end.

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
        self._plan = plan
        self._on_ended = on_ended
        self._on_lost = on_lost
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._ready: asyncio.Future[tuple[Measure, ...]] | None = None

    @property
    def pid(self) -> int:
        """The process id of the zygote's boot process."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> tuple[Measure, ...]:
        """Starts the zygote, and gives what holds its workers.

        Raises:
            WorkersError: It ended, or was not ready in time.
        """
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs:
            self._process = _start_process(theirs)
        self._control = ours
        self._ready = loop.create_future()
        loop.add_reader(ours.fileno(), self._read)
        ours.send(marshal.dumps(dict(self._plan)))
        try:
            async with asyncio.timeout(START):
                return await self._ready
        except TimeoutError:
            self.close()
            raise WorkersError(f"the zygote was not ready within {START} s") from None

    def fork(self, number: int) -> tuple[socket.socket, int]:
        """Has a worker forked, and gives the socket to it and the pipe that its output comes from.

        Raises:
            WorkersError: The zygote is gone, or does not take orders.
        """
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        output, written = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(written, True)
        try:
            self._send(FORK, number, [theirs.fileno(), written])
        except WorkersError:
            ours.close()
            os.close(output)
            raise
        finally:
            theirs.close()
            os.close(written)
        return ours, output

    def kill(self, number: int) -> None:
        """Has a worker killed."""
        try:
            self._send(KILL, number, [])
        except WorkersError as error:
            logger.error("worker %d can not be killed alone: %s", number, error)
            self.close()

    def close(self) -> None:
        """Kills the zygote and with it every worker."""
        if self._control is None or self._process is None:
            return
        control, self._control = self._control, None
        asyncio.get_running_loop().remove_reader(control.fileno())
        control.close()
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(STOP)
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(WorkersError("the zygote ended before it was ready"))
        self._on_lost(self)

    def _send(self, order: int, number: int, descriptors: list[int]) -> None:
        if self._control is None:
            raise WorkersError("the zygote is gone")
        try:
            socket.send_fds(self._control, [ORDER.pack(order, number)], descriptors)
        except OSError as error:
            raise WorkersError(f"the zygote takes no orders: {error.strerror}") from error

    def _read(self) -> None:
        """Reads one message of the zygote."""
        assert self._control is not None
        try:
            message = self._control.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            logger.error("the zygote is gone; its workers are, too")
            self.close()
            return
        code, number, status = STATE.unpack_from(message)
        match code:
            case _ if code == ENDED:
                self._on_ended(number, status)
            case _ if code == READY and self._ready is not None and not self._ready.done():
                measures = json.loads(message[STATE.size :])
                self._ready.set_result(tuple(Measure(*measure) for measure in measures))


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
