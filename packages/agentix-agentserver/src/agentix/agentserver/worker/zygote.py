"""The zygote: one warm process of trusted code that forks every worker.

It holds no handler's code and is told no listener's name, so a worker inherits neither: what a
worker is for, it reads from its own socket after it is held.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from typing import Any, NoReturn

from agentix.agentserver.worker import child
from agentix.agentserver.worker.control import ENDED, FORK, KILL, ORDER, READY, STATE

__all__ = ["main"]

CHANNEL = 3
"""The descriptor of the socket to the pump in a worker."""


def main(control: socket.socket, plan: dict[str, Any]) -> NoReturn:
    """Warms up, and forks workers until the pump leaves."""
    gc.disable()
    for module in plan["preload"]:
        importlib.import_module(module)
    zygote = Zygote(control, plan)
    gc.collect()
    gc.freeze()
    control.send(STATE.pack(READY, 0, 0) + json.dumps([]).encode())
    zygote.run()


class Zygote:
    """Forks workers, and tells the pump of their ends.

    Args:
        control: The socket to the pump.
        plan: What the pump wants of every worker.
    """

    def __init__(self, control: socket.socket, plan: dict[str, Any]) -> None:
        self._control = control
        self._plan = plan
        self._numbers: dict[int, int] = {}
        self._pids: dict[int, int] = {}
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)

    def run(self) -> NoReturn:
        """Serves the pump until it leaves."""
        poll = select.poll()
        poll.register(self._control.fileno(), select.POLLIN)
        poll.register(self._woken.fileno(), select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._woken.fileno() in ready:
                self._reap()
            if self._control.fileno() in ready:
                self._obey()

    def _reap(self) -> None:
        self._woken.recv(4096)
        while self._pids:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            number = self._numbers.pop(pid, 0)
            if number:
                del self._pids[number]
                self._control.send(STATE.pack(ENDED, number, status))

    def _obey(self) -> None:
        message, descriptors, _, _ = socket.recv_fds(self._control, ORDER.size, 2)
        if not message:
            os._exit(0)
        match ORDER.unpack(message):
            case (code, number) if code == FORK:
                self._fork(number, *descriptors)
            case (code, number) if code == KILL and number in self._pids:
                os.kill(self._pids[number], signal.SIGKILL)

    def _fork(self, number: int, channel: int, output: int) -> None:
        pid = os.fork()
        if pid == 0:
            self._become_worker(channel, output)
        self._pids[number] = pid
        self._numbers[pid] = number
        os.close(channel)
        os.close(output)

    def _become_worker(self, channel: int, output: int) -> NoReturn:
        """Lets go of all that is the zygote's, and serves."""
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._control.detach()
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.dup2(channel, CHANNEL)
            os.closerange(CHANNEL + 1, os.sysconf("SC_OPEN_MAX"))
            sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
            gc.enable()
            child.serve(socket.socket(fileno=CHANNEL))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
