"""The fork server: one warm process of trusted code that forks every worker.

It holds no handler's code and is told no listener's name, so a worker inherits neither: what a
worker is for, it reads from its own socket after it is held.

    pump ── control ──► fork server ──► worker, worker, ...
      └──► guard ────────────┘

The guard is the process that the pump started. It made the process namespace of which the fork
server is the first process: when either ends, the kernel kills every worker and all that they made.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import select
import selectors
import shutil
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from agentix.agentserver.errors import KernelError
from agentix.agentserver.worker import child, isolation, syscalls
from agentix.agentserver.worker.handlers import Mitigation
from agentix.agentserver.worker.isolation import PROCESSES, Jail, Mitigations, WorkerConfig
from agentix.agentserver.worker.protocol import (
    BORN,
    ENDED,
    FORK,
    KILL,
    ORDER,
    READY,
    STATE,
    ForkServerConfig,
)

__all__ = [
    "main",
    "make_loop",
    "wakers",
]


def make_loop() -> asyncio.SelectorEventLoop:
    """Make a loop that can be taken over a fork.

    It selects by poll(2), which leaves nothing in the kernel that two processes would share. What
    else it has there is a pair of sockets by which threads and signals wake it: see `wakers`.
    """
    return asyncio.SelectorEventLoop(selectors.PollSelector())


def wakers(loop: asyncio.SelectorEventLoop) -> tuple[int, int]:
    """Return the descriptors of the pair of sockets, for which a worker needs others.

    asyncio has no public names for them.
    """
    return loop._ssock.fileno(), loop._csock.fileno()  # type: ignore[attr-defined]


# Paths are strings here: the syscalls's calls take them, and pathlib would be imported for nothing.
# ruff: noqa: PTH123


ROUNDS = 12
"""How often a sample is loaded and called: Python adapts code to what it does, by writing to it."""

FILLING = 32 * 1024
"""How much of each size is put between small objects, in bytes."""

NOBODY = -1
"""In place of a process id where the kernel gives no process."""

FAILED = 1 << 8
"""The wait status of a process that exits with 1."""


def main(control: socket.socket, plan: ForkServerConfig, pump: int) -> NoReturn:
    """Warm up, and becomes the guard of a fork server.

    Args:
        control: The socket to the pump.
        plan: What every worker is to be like.
        pump: The process id of the pump.
    """
    gc.disable()
    for module in plan["preload"]:
        importlib.import_module(module)
    held = Jail()
    measures = isolation.enter_process_namespace(held)
    syscalls.call("prctl", syscalls.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    server = os.fork()
    if server == 0:
        _serve(control, plan, held, measures)
    control.close()
    _guard(server, plan, pump)


def _guard(server: int, plan: ForkServerConfig, pump: int) -> NoReturn:
    """Wait for the end of the fork server, end it with the pump, and leave nothing behind."""
    signal.signal(signal.SIGTERM, lambda *_: os.kill(server, signal.SIGKILL))
    syscalls.die_with_parent(signal.SIGTERM)
    if os.getppid() != pump:
        os.kill(server, signal.SIGKILL)
    os.waitpid(server, 0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _kill_children()
    shutil.rmtree(plan["scratch"], ignore_errors=True)
    os._exit(0)


def _serve(
    control: socket.socket, plan: ForkServerConfig, held: Jail, measures: list[Mitigation]
) -> NoReturn:
    """Build the jail, try it, and fork workers in it until the pump leaves."""
    try:
        syscalls.die_with_parent()
        syscalls.call("prctl", syscalls.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        loop = make_loop()
        measures += isolation.build(plan, held)
        server = ForkServer(control, plan, held, wakers(loop))
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        measures += server.probe()
        report = [(measure.name, measure.applied, measure.detail) for measure in measures]
        control.send(STATE.pack(READY, 0, 0) + json.dumps(report).encode())
        loop.run_until_complete(_live(server, loop))
    except BaseException:
        traceback.print_exc()
    os._exit(1)


async def _live(server: ForkServer, loop: asyncio.AbstractEventLoop) -> NoReturn:
    """Serve the pump, and goes on as each worker, in whose loop this task then is."""
    for _ in range(ROUNDS):
        await child.warm_up()
    server.freeze_heap()
    forked = server.run()
    forked.enter()
    asyncio._set_running_loop(loop)  # asyncio knows the process of a running loop
    gc.enable()
    await child.serve()


def _kill_children() -> None:
    """Kill what workers made and left, which is handed to this process where nothing else is."""
    try:
        while True:
            with open(f"/proc/self/task/{os.getpid()}/children") as children:
                for found in children.read().split():
                    os.kill(int(found), signal.SIGKILL)
            os.wait()
    except (ChildProcessError, FileNotFoundError):
        return


@dataclass(frozen=True, slots=True)
class ForkedWorker:
    """A worker right after its birth, with all that was made ready for it."""

    mitigations: Mitigations
    """What is to hold it."""
    missing: frozenset[str]
    """The measures that this machine does not allow."""
    channel: int
    """Its socket to the pump."""
    output: int
    """Its pipe to the log."""
    wakers: Sequence[tuple[int, int]]
    """What wakes its loop: each descriptor, and the fork server's that it takes the place of."""
    descriptors: int
    """What every descriptor of the fork server is below."""

    def close(self) -> None:
        """Let go of it, in the fork server."""
        self.mitigations.close()
        for own, _ in self.wakers:
            os.close(own)

    def enter(self) -> None:
        """Let go of all that is the fork server's, and is held from then on.

        Raises:
            RuntimeError: It is held less than the process that was probed.
        """
        os.setpgid(0, 0)
        isolation.take_over(self.channel, self.output, self.wakers)
        failures = self.mitigations.apply()
        isolation.keep_only(sorted(place for _, place in self.wakers), self.descriptors)
        for name, reason in failures.items():
            if name not in self.missing:
                raise RuntimeError(f"this worker is not held as it has to be: {name}: {reason}")


class ForkServer:
    """Forks workers, and tells the pump of their ends.

    Args:
        control: The socket to the pump.
        plan: What the pump wants of every worker.
        held: What holds the fork server.
        wakers: The descriptors that wake the loop that workers are born in.
    """

    def __init__(
        self, control: socket.socket, plan: ForkServerConfig, held: Jail, wakers: tuple[int, int]
    ) -> None:
        self._control = control
        self._plan = plan
        self._held = held
        self._wakers = wakers
        self._reach = isolation.reach(plan)
        self._missing: frozenset[str] = frozenset()
        self._pids: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._users: dict[int, int] = {}
        self._turn = int.from_bytes(os.urandom(2), "big")
        self._poll = select.poll()
        self._descriptors = os.sysconf("SC_OPEN_MAX")
        self._filling: list[bytes] = []

    def probe(self) -> list[Mitigation]:
        """Harden a process that then ends, to learn what this machine allows."""
        reader, writer = os.pipe()
        mitigations = Mitigations(self._birth(0))
        pid = self._new_process()
        if pid == 0:
            os.write(writer, json.dumps(mitigations.apply()).encode())
            os._exit(0)
        os.close(writer)
        failures = json.loads(os.read(reader, 65536))
        os.close(reader)
        os.waitpid(pid, 0)
        mitigations.close()
        self._clean(0)
        self._missing = frozenset(failures)
        mitigations = Mitigations(self._birth(0))
        mitigations.close()
        self._clean(0)
        return [
            Mitigation(step.name, step.name not in failures, failures.get(step.name, step.detail))
            for step in mitigations.steps
        ]

    def freeze_heap(self) -> None:
        """Leave memory so that a worker writes to few pages of it, which are copied for it then.

        The gaps between small objects are filled: a worker would put there what it makes, and
        have one page after the other copied.
        """
        gc.collect()
        self._filling = [bytes(size) for size in range(15, 480, 16) for _ in range(FILLING // size)]
        gc.freeze()

    def run(self) -> ForkedWorker:
        """Serve the pump until it leaves; return in each worker, and nowhere else."""
        self._poll.register(self._control.fileno(), select.POLLIN)
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor != self._control.fileno():
                    self._reap(descriptor)
                elif (forked := self._obey()) is not None:
                    return forked

    def _reap(self, end: int) -> None:
        """Take note of a worker that has ended."""
        self._poll.unregister(end)
        os.close(end)
        number = self._ends.pop(end)
        _, status = os.waitpid(self._pids.pop(number), 0)
        self._clean(number)
        if not self._held.process_namespaces:
            self._kill_strays()
        self._tell(ENDED, number, status)

    def _tell(self, what: int, number: int, status: int) -> None:
        try:
            self._control.send(STATE.pack(what, number, status))
        except OSError:
            self._end()  # the pump has left

    def _clean(self, number: int) -> None:
        """Remove what a worker had."""
        self._users.pop(number, None)
        if not self._held.own_root:
            isolation.remove_scratch(self._plan, number)

    def _kill_strays(self) -> None:
        """Kill what ended workers have left, where there is no process namespace to end it."""
        workers = set(self._pids.values())
        with open(f"/proc/self/task/{os.getpid()}/children") as children:
            strays = set(map(int, children.read().split())) - workers
        for stray in strays:
            os.kill(stray, signal.SIGKILL)
            os.waitpid(stray, 0)
        if strays:
            self._kill_strays()  # theirs are this process's now

    def _obey(self) -> ForkedWorker | None:
        """Do what the pump says; return a worker in the process that is one."""
        try:
            message, descriptors, _, _ = socket.recv_fds(self._control, ORDER.size, 2)
        except ConnectionResetError:  # the pump has left, and did not read all that we said
            message = b""
        if not message:
            self._end()
        match ORDER.unpack(message):
            case (code, number) if code == FORK:
                return self._fork(number, *descriptors)
            case (code, number) if code == KILL and number in self._pids:
                os.kill(self._pids[number], signal.SIGKILL)
        return None

    def _end(self) -> NoReturn:
        """Kill every worker and wait for it, and end."""
        for pid in self._pids.values():
            os.kill(pid, signal.SIGKILL)
        for number, pid in self._pids.items():
            os.waitpid(pid, 0)
            self._clean(number)
        os._exit(0)

    def _fork(self, number: int, channel: int, output: int) -> ForkedWorker | None:
        """Fork a worker, where it gives what that needs."""
        forked = None
        try:
            forked = self._make_ready(number, channel, output)
            pid = self._new_process()
        except (OSError, KernelError) as error:
            os.write(output, f"no process for a worker: {error}\n".encode())
            pid = NOBODY
        if pid == 0:
            return forked
        if forked is not None:
            forked.close()
        os.close(channel)
        os.close(output)
        self._tell(BORN, number, pid)
        self._watch(number, pid)
        return None

    def _make_ready(self, number: int, channel: int, output: int) -> ForkedWorker:
        pair = socket.socketpair()
        for end in pair:
            end.setblocking(False)
        return ForkedWorker(
            mitigations=Mitigations(self._birth(number)),
            missing=self._missing,
            channel=channel,
            output=output,
            wakers=tuple(zip((end.detach() for end in pair), self._wakers, strict=True)),
            descriptors=self._descriptors,
        )

    def _watch(self, number: int, pid: int) -> None:
        """Wait for the end of a worker, without standing still."""
        if pid == NOBODY:
            self._clean(number)
            self._tell(ENDED, number, FAILED)
            return
        end = os.pidfd_open(pid)
        self._pids[number] = pid
        self._ends[end] = number
        self._poll.register(end, select.POLLIN)

    def _birth(self, number: int) -> WorkerConfig:
        user = 0
        if self._held.first_user:
            taken = set(self._users.values())
            while not user or user in taken:
                user = self._held.first_user + self._turn % isolation.USERS
                self._turn += 1
            self._users[number] = user
        scratch = f"{self._plan['scratch']}/{number}"
        bounded = PROCESSES not in self._missing
        return WorkerConfig(self._plan, self._held, self._reach, user, scratch, bounded)

    def _new_process(self) -> int:
        """Fork a process that is the first of a namespace, if there are such."""
        if self._held.process_namespaces:
            syscalls.call(
                "setns", self._held.processes, syscalls.CLONE_NEWPID, about="CLONE_NEWPID"
            )
            syscalls.call("unshare", syscalls.CLONE_NEWPID, about="CLONE_NEWPID")
        return os.fork()
