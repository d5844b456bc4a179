"""Runs one command in a session of its own and ends all of it when it must."""

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from agentix.errors import UsageError
from agentix.linux.memory import OomKills
from agentix.linux.process import inherited_descriptor_limit
from agentix.runtime.environment import User
from agentix.runtime.pipe import Pipe
from agentix.wire import ExecExit

__all__ = ["Command", "Process", "started"]

TERMINATION_GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL."""

PIPE_GRACE = 0.2
"""Seconds that output may still come in after the command itself has ended."""

OOM_SCORE = 500
"""Added to a command's badness (proc(5)): where memory runs out it ends before the runtime."""

MOST_OOM_SCORE = 1000

TextHandler = Callable[[str, str], None]
"""Takes the name of a stream, `stdout` or `stderr`, and a piece of its text."""


@dataclass(frozen=True, slots=True)
class Command:
    """What is to be run."""

    arguments: tuple[str, ...]
    """The program and its arguments."""
    directory: str
    """The working directory."""
    environment: Mapping[str, str]
    """All of its environment."""
    user: User | None
    """Who runs it; the runtime's own user where it is `None`."""
    timeout: float | None
    """Seconds until it is ended."""
    cap: int | None
    """Bytes passed on from each of stdout and stderr."""
    most_descriptors: int | None = None
    """Its soft limit on descriptors; that of the runtime where it is `None`."""
    oom_kills: OomKills = field(default_factory=partial(OomKills, None))
    """What counts the processes of the sandbox that the kernel kills for want of memory."""


class Process:
    """A command that was started.

    Args:
        command: What was started.
        popen: The child, leader of its own session.
        oom_kills: How many processes of the sandbox the kernel had killed before it started.
        on_text: Takes its output as it comes.
    """

    def __init__(
        self,
        command: Command,
        popen: subprocess.Popen[bytes],
        oom_kills: int,
        on_text: TextHandler,
    ) -> None:
        assert popen.stdout is not None
        assert popen.stderr is not None
        self._command = command
        self._popen = popen
        self._ended = asyncio.Event()
        self._timed_out = False
        self._oom_kills_before = oom_kills
        self._stdout = Pipe(_owned(popen.stdout), command.cap, lambda t: on_text("stdout", t))
        self._stderr = Pipe(_owned(popen.stderr), command.cap, lambda t: on_text("stderr", t))
        self._descriptor = os.pidfd_open(popen.pid)
        asyncio.get_running_loop().add_reader(self._descriptor, self._note_end)

    def pause(self) -> None:
        """Lets the command wait for its reader."""
        self._stdout.pause()
        self._stderr.pause()

    def resume(self) -> None:
        """Takes output again."""
        self._stdout.resume()
        self._stderr.resume()

    async def wait(self) -> ExecExit:
        """Wait for the end of the command, or end it at its time limit.

        A process that the command left in the background keeps running; its output is drained.
        """
        try:
            async with asyncio.timeout(self._command.timeout):
                await self._ended.wait()
        except TimeoutError:
            self._timed_out = True
            await self.terminate()
        await self._settle()
        exit_code = self._popen.wait()
        return ExecExit(
            exit_code=exit_code,
            timed_out=self._timed_out,
            oom_killed=exit_code != 0 and self._kernel_killed(),
            stdout_truncated=self._stdout.truncated,
            stderr_truncated=self._stderr.truncated,
            stdout_bytes=self._stdout.total,
            stderr_bytes=self._stderr.total,
        )

    def _kernel_killed(self) -> bool:
        return self._command.oom_kills.count() > self._oom_kills_before

    async def terminate(self) -> None:
        """End every process of the session: SIGTERM, then SIGKILL, then reaps the child.

        The child stays a zombie until the last signal, so that its number means no other process.
        """
        _signal_session(self._popen.pid, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TERMINATION_GRACE):
                await self._ended.wait()
                await self._stdout.ended.wait()
                await self._stderr.ended.wait()
        _signal_session(self._popen.pid, signal.SIGKILL)
        await self._ended.wait()
        self._popen.wait()

    async def close(self) -> None:
        """Ends all of the session, unless `wait` has seen the command's end.

        A caller that is cancelled meanwhile has no time left: everything is killed at once.
        """
        if self._reaped:
            return
        self._drain()
        try:
            await asyncio.shield(self.terminate())
        finally:
            if not self._reaped:
                _signal_session(self._popen.pid, signal.SIGKILL)

    @property
    def _reaped(self) -> bool:
        return self._popen.returncode is not None

    def _note_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._ended.set()

    async def _settle(self) -> None:
        """Takes what the command has written, then leaves the pipes to whoever still holds them.

        Late output of such processes has a moment to come.
        """
        self._stdout.take_rest()
        self._stderr.take_rest()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PIPE_GRACE):
                await self._stdout.ended.wait()
                await self._stderr.ended.wait()
        self._drain()

    def _drain(self) -> None:
        for pipe in (self._stdout, self._stderr):
            if not pipe.ended.is_set():
                pipe.drain()


@asynccontextmanager
async def started(command: Command, on_text: TextHandler) -> AsyncIterator[Process]:
    """Start a command; leaving the block before its end was awaited ends all of its session.

    Raises:
        UsageError: It cannot be started: the message says why.
    """
    oom_kills = command.oom_kills.count()
    score = min(_oom_score() + OOM_SCORE, MOST_OOM_SCORE)
    with _own_oom_score(score) as inherited:
        popen = _spawn(command)
    if not inherited:
        _set_oom_score(popen.pid, score)
    process = Process(command, popen, oom_kills, on_text)
    try:
        yield process
    finally:
        await process.close()


def _spawn(command: Command) -> subprocess.Popen[bytes]:
    user = command.user
    try:
        with _descriptor_limit(command.most_descriptors) as lower:
            return subprocess.Popen(
                command.arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                cwd=command.directory,
                env=command.environment,
                start_new_session=True,
                user=None if user is None else user.uid,
                group=None if user is None else user.gid,
                extra_groups=None if user is None else user.groups,
                preexec_fn=lower,
            )
    except (OSError, ValueError) as error:
        raise UsageError(f"the command cannot be started: {error}") from error


@contextmanager
def _descriptor_limit(most: int | None) -> Iterator[Callable[[], None] | None]:
    """Give the programs that are started in a block their soft limit on descriptors.

    The block's value is what they have to do for it themselves. That takes a fork(2) in place of a
    vfork(2), a millisecond more, and only a runtime of very many connections needs it.
    """
    if most is None:
        yield None
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with inherited_descriptor_limit(most) as inherited:
        own = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (most, hard))
        yield None if inherited else own


@contextmanager
def _own_oom_score(score: int) -> Iterator[bool]:
    """Have another score for the length of a block, which what is started in it inherits.

    Set after its start, the score would miss what a command forks at once. The block's value is
    whether it worked: an ordinary user may not write to the files of a runtime that is not
    dumpable (proc(5)), unless it is root of a user namespace.
    """
    before = _oom_score()
    changed = _set_oom_score(os.getpid(), score)
    try:
        yield changed
    finally:
        if changed:
            _set_oom_score(os.getpid(), before)


def _oom_score() -> int:
    return int(Path("/proc/self/oom_score_adj").read_text(encoding="ascii"))


def _set_oom_score(pid: int, score: int) -> bool:
    """Say how early the kernel takes a process, and what that starts, when it needs memory."""
    try:
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(score), encoding="ascii")
    except OSError:
        return False
    return True


def _owned(stream: object) -> int:
    """Takes a descriptor out of the file object that would close it."""
    descriptor = os.dup(stream.fileno())  # type: ignore[attr-defined]
    stream.close()  # type: ignore[attr-defined]
    return descriptor


def _signal_session(session: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(session, number)
    for pid in _other_members(session):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _other_members(session: int) -> list[int]:
    """Finds the processes of a session that left its first process group."""
    found = ((int(path.name), _ids(path)) for path in Path("/proc").glob("[0-9]*"))
    return [pid for pid, ids in found if ids is not None and ids[1] == session != ids[0]]


def _ids(process: Path) -> tuple[int, int] | None:
    """Return the process group and the session of a process that still exists."""
    try:
        status = (process / "stat").read_bytes()
    except OSError:
        return None
    # The name of the program, in parentheses, may hold anything (proc(5)).
    _state, _parent, group, session, *_rest = status.rpartition(b")")[2].split()
    return int(group), int(session)
