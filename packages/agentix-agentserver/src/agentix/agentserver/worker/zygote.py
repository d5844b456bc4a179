"""The zygote: one warm process of trusted code that forks every worker.

It holds no handler's code and is told no listener's name, so a worker inherits neither: what a
worker is for, it reads from its own socket after it is held.

    pump ── control ──► zygote ──► worker, worker, ...
      └──► guard ────────┘

The guard is the process that the pump started. It made the process namespace of which the zygote
is the first process: when either ends, the kernel kills every worker and all that they made.
"""

# Paths are strings here: the kernel's calls take them, and pathlib would be imported for nothing.
# ruff: noqa: PTH123

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import traceback
from typing import NoReturn

from agentix.agentserver.worker import (
    child,
    hardening,
    jail,
    kernel,
    seccomp,
)
from agentix.agentserver.worker.control import BORN, ENDED, FORK, KILL, ORDER, READY, STATE
from agentix.agentserver.worker.hardening import CHANNEL, Birth
from agentix.agentserver.worker.jail import Jail
from agentix.agentserver.worker.plan import Plan
from agentix.agentserver.worker.report import Measure

__all__ = ["main"]

NOBODY = -1
"""In place of a process id where the kernel gives no process."""

FAILED = 1 << 8
"""The wait status of a process that exits with 1."""


def main(control: socket.socket, plan: Plan, pump: int) -> NoReturn:
    """Warms up, and becomes the guard of a zygote.

    Args:
        control: The socket to the pump.
        plan: What every worker is to be like.
        pump: The process id of the pump.
    """
    gc.disable()
    for module in plan["preload"]:
        importlib.import_module(module)
    held = Jail()
    measures = jail.enter_process_namespace(held)
    kernel.call("prctl", kernel.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    zygote = os.fork()
    if zygote == 0:
        _serve(control, plan, held, measures)
    control.close()
    _guard(zygote, plan, pump)


def _guard(zygote: int, plan: Plan, pump: int) -> NoReturn:
    """Waits for the end of the zygote, makes it when the pump ends, and leaves nothing behind."""
    signal.signal(signal.SIGTERM, lambda *_: os.kill(zygote, signal.SIGKILL))
    kernel.die_with_parent(signal.SIGTERM)
    if os.getppid() != pump:
        os.kill(zygote, signal.SIGKILL)
    os.waitpid(zygote, 0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _kill_children()
    shutil.rmtree(plan["scratch"], ignore_errors=True)
    os._exit(0)


def _serve(control: socket.socket, plan: Plan, held: Jail, measures: list[Measure]) -> NoReturn:
    """Builds the jail, tries it, and forks workers in it until the pump leaves."""
    try:
        kernel.die_with_parent()
        kernel.call("prctl", kernel.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        measures += jail.build(plan, held)
        zygote = Zygote(control, plan, held)
        _warm_up(held)
        measures += zygote.rehearse()
        gc.collect()
        gc.freeze()
        report = [(measure.name, measure.applied, measure.detail) for measure in measures]
        control.send(STATE.pack(READY, 0, 0) + json.dumps(report).encode())
        zygote.run()
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def _warm_up(held: Jail) -> None:
    """Does once what every worker would otherwise do in memory of its own."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    with contextlib.suppress(kernel.KernelError):
        seccomp.worker_filter(held.process_namespaces)


def _kill_children() -> None:
    """Kills what workers made and left, which is handed to this process where nothing else is."""
    try:
        while True:
            with open(f"/proc/self/task/{os.getpid()}/children") as children:
                for found in children.read().split():
                    os.kill(int(found), signal.SIGKILL)
            os.wait()
    except (ChildProcessError, FileNotFoundError):
        return


class Zygote:
    """Forks workers, and tells the pump of their ends.

    Args:
        control: The socket to the pump.
        plan: What the pump wants of every worker.
        held: What holds the zygote.
    """

    def __init__(self, control: socket.socket, plan: Plan, held: Jail) -> None:
        self._control = control
        self._plan = plan
        self._held = held
        self._reach = hardening.reach(plan)
        self._missing: frozenset[str] = frozenset()
        self._numbers: dict[int, int] = {}
        self._pids: dict[int, int] = {}
        self._users: dict[int, int] = {}
        self._turn = int.from_bytes(os.urandom(2), "big")
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)

    def rehearse(self) -> list[Measure]:
        """Hardens a process that then ends, to learn what this machine allows."""
        reader, writer = os.pipe()
        pid = self._new_process()
        if pid == 0:
            measures = hardening.harden(self._birth(0))
            found = [(measure.name, measure.applied, measure.detail) for measure in measures]
            os.write(writer, json.dumps(found).encode())
            os._exit(0)
        os.close(writer)
        measures = [Measure(*found) for found in json.loads(os.read(reader, 65536))]
        os.close(reader)
        os.waitpid(pid, 0)
        self._clean(0)
        self._missing = frozenset(measure.name for measure in measures if not measure.applied)
        return [self._explained(measure) for measure in measures]

    def _explained(self, measure: Measure) -> Measure:
        if measure.name == "own user id" and not measure.applied:
            return Measure(measure.name, False, self._held.no_users)
        return measure

    def run(self) -> NoReturn:
        """Serves the pump until it leaves."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
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
        """Takes note of every child that has ended."""
        self._woken.recv(4096)
        ended = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            number = self._numbers.pop(pid, None)
            if number is not None:
                ended = True
                del self._pids[number]
                self._clean(number)
                self._tell(ENDED, number, status)
        if ended and not self._held.process_namespaces:
            self._kill_strays()

    def _tell(self, what: int, number: int, status: int) -> None:
        try:
            self._control.send(STATE.pack(what, number, status))
        except OSError:
            self._end()  # the pump has left

    def _clean(self, number: int) -> None:
        """Removes what a worker had."""
        self._users.pop(number, None)
        if not self._held.own_root:
            jail.remove_scratch(self._plan, number)

    def _kill_strays(self) -> None:
        """Kills what ended workers have left, where there is no process namespace to end it."""
        with open(f"/proc/self/task/{os.getpid()}/children") as children:
            for found in map(int, children.read().split()):
                if found not in self._numbers:
                    os.kill(found, signal.SIGKILL)

    def _obey(self) -> None:
        try:
            message, descriptors, _, _ = socket.recv_fds(self._control, ORDER.size, 2)
        except ConnectionResetError:  # the pump has left, and did not read all that we said
            message = b""
        if not message:
            self._end()
        match ORDER.unpack(message):
            case (code, number) if code == FORK:
                self._fork(number, *descriptors)
            case (code, number) if code == KILL and number in self._pids:
                os.kill(self._pids[number], signal.SIGKILL)

    def _end(self) -> NoReturn:
        """Kills every worker and waits for it, and ends."""
        signal.set_wakeup_fd(-1)
        for pid in self._pids.values():
            os.kill(pid, signal.SIGKILL)
        for number, pid in self._pids.items():
            os.waitpid(pid, 0)
            self._clean(number)
        os._exit(0)

    def _fork(self, number: int, channel: int, output: int) -> None:
        birth = self._birth(number)
        try:
            pid = self._new_process()
        except (OSError, kernel.KernelError) as error:
            os.write(output, f"no process for a worker: {error}\n".encode())
            pid = NOBODY
        if pid == 0:
            self._become_worker(birth, channel, output)
        os.close(channel)
        os.close(output)
        self._tell(BORN, number, pid)
        if pid == NOBODY:
            self._clean(number)
            self._tell(ENDED, number, FAILED)
            return
        self._pids[number] = pid
        self._numbers[pid] = number

    def _birth(self, number: int) -> Birth:
        user = 0
        if self._held.first_user:
            taken = set(self._users.values())
            while not user or user in taken:
                user = self._held.first_user + self._turn % jail.USERS
                self._turn += 1
            self._users[number] = user
        scratch = f"{self._plan['scratch']}/{number}"
        return Birth(self._plan, self._held, self._reach, user, scratch)

    def _new_process(self) -> int:
        """Forks a process that is the first of a namespace, if there are such."""
        if self._held.process_namespaces:
            kernel.call("setns", self._held.processes, kernel.CLONE_NEWPID, about="CLONE_NEWPID")
            kernel.call("unshare", kernel.CLONE_NEWPID, about="CLONE_NEWPID")
        return os.fork()

    def _become_worker(self, birth: Birth, channel: int, output: int) -> NoReturn:
        """Lets go of all that is the zygote's, holds itself, and serves."""
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._control.detach()
            self._woken.detach()
            self._waker.detach()
            hardening.keep_only(channel, output)
            os.setpgid(0, 0)
            self._check(hardening.harden(birth))
            gc.enable()
            child.serve(socket.socket(fileno=CHANNEL))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def _check(self, measures: list[Measure]) -> None:
        """Ends a worker that is held less than the one of the rehearsal."""
        for measure in measures:
            if not measure.applied and measure.name not in self._missing:
                raise RuntimeError(f"this worker is not held as it has to be: {measure}")
