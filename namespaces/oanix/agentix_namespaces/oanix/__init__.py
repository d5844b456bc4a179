"""WASI programs in a tree of what is mounted for them, run at once or as jobs of a queue.

Paths are of the sandbox, except those that a program of WASI sees.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

__all__ = [
    "AgentTool",
    "JobState",
    "LogChunk",
    "Mount",
    "RunResult",
    "Script",
    "Wasi",
    "cancel",
    "logs",
    "run_wasi",
    "status",
    "submit",
    "submit_spec",
]

__image__ = "agentix/oanix:0.1.0"


@dataclass(frozen=True)
class Mount:
    """A directory of the sandbox that a program sees."""

    guest: str
    """Where the program sees it."""
    directory: Path
    """The directory in the sandbox."""
    readonly: bool = False
    """The program cannot change it."""


@dataclass(frozen=True)
class Wasi:
    """A WASI program."""

    program: Path
    """The module, a file of the sandbox; its content of now is what will run."""
    arguments: Sequence[str] = ()
    """What it is given after its name."""
    type: Literal["wasi"] = "wasi"
    """The tag of the kind."""


@dataclass(frozen=True)
class Script:
    """A script, run by a shell or an interpreter in the namespace's `/bin`."""

    path: str
    """The script, in the namespace."""
    arguments: Sequence[str] = ()
    """What it is given after its path."""
    type: Literal["script"] = "script"
    """The tag of the kind."""


@dataclass(frozen=True)
class AgentTool:
    """A tool that works on the namespace's files, such as `read`, `write`, `list` or `search`."""

    name: str
    """The name that it is registered under."""
    arguments: Sequence[str] = ()
    """Its arguments."""
    type: Literal["agent_tool"] = "agent_tool"
    """The tag of the kind."""


@dataclass(frozen=True)
class RunResult:
    """What a run came to."""

    exit_code: int
    """0 to 255: the program's own, or 134 for a trap, 124 for a timeout, 137 for another limit."""
    reason: str
    """Why it ended: `exit`, `trap`, `stack`, `fuel`, `timeout`, `cancelled`, `output`, `memory`."""
    message: str
    """What happened, with the program's stack for a trap."""
    trap_code: str
    """The name of the trap, such as `UNREACHABLE`; empty where there was none."""
    stdout: bytes
    """Standard output."""
    stderr: bytes
    """Standard error; for another end than the program's own, with a last line about it."""
    fuel: int
    """Units of fuel used, about one an instruction."""
    host_calls: int
    """Calls of WASI functions."""
    bytes_read: int
    """Bytes read from files and standard input."""
    bytes_written: int
    """Bytes written to files and the outputs."""
    wall_time: float
    """Seconds from start to end."""
    files_written: list[str] = field(default_factory=list)
    """Paths that were made or changed, as the program sees them."""


@dataclass(frozen=True)
class JobState:
    """How a job stands."""

    id: str
    """The job's number."""
    status: Literal["pending", "running", "completed", "failed", "cancelled"]
    """How it stands."""
    exit_code: int | None
    """The exit code of a completed job."""
    error: str
    """Why a job failed."""
    attempts: int
    """How many times it was started."""
    value: Any = None
    """What its tool returned, or what was written to `/task/result.json`."""


@dataclass(frozen=True)
class LogChunk:
    """A piece of a job's output."""

    stream: Literal["stdout", "stderr"]
    """Which output it is of."""
    offset: int
    """Bytes of the output before it."""
    data: bytes
    """The piece."""


def run_wasi(
    program: Path,
    arguments: Sequence[str] = (),
    *,
    mounts: Sequence[Mount] = (),
    environment: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    timeout: float | None = None,
    fuel: int | None = None,
    memory: int | None = None,
    deterministic: bool = False,
) -> RunResult:
    """Run a program to its end; it sees `mounts`, memory at `/tmp`, devices at `/dev`, no more.

    Args:
        program: The module, a file of the sandbox.
        arguments: What it is given after its name.
        mounts: Directories of the sandbox that it sees.
        environment: Environment variables.
        stdin: Standard input.
        timeout: Seconds that it may take.
        fuel: Units of fuel that it may use.
        memory: Bytes of memory that it may have.
        deterministic: The clock is virtual, and random bytes are of a seed.

    Raises:
        RemoteCallError: The program cannot be started; a program that fails is a result.
    """
    raise NotImplementedError("call via RuntimeClient.remote(oanix.run_wasi, ...)")


def submit(
    job: Wasi | Script | AgentTool,
    *,
    mounts: Sequence[Mount] = (),
    environment: Mapping[str, str] | None = None,
    priority: int = 0,
    retries: int = 0,
    after: Sequence[str] = (),
    tags: Sequence[str] = (),
    timeout: float | None = None,
    fuel: int | None = None,
    memory: int | None = None,
    deterministic: bool = False,
) -> str:
    """Add a job to the sandbox's queue, and return its number.

    Args:
        job: What the job does.
        mounts: Directories of the sandbox that it sees, beside `/tmp` and `/dev`.
        environment: Environment variables.
        priority: Jobs with a higher number start first.
        retries: How many times it is tried again after it failed.
        after: Jobs that must have succeeded before.
        tags: Marks to find the job by.
        timeout: Seconds that an attempt may take.
        fuel: Units of fuel that a program may use.
        memory: Bytes of memory that a program may have.
        deterministic: The clock is virtual, and random bytes are of a seed.

    Raises:
        RemoteCallError: The job cannot be submitted.
    """
    raise NotImplementedError("call via RuntimeClient.remote(oanix.submit, ...)")


def submit_spec(spec: Mapping[str, Any]) -> str:
    """Add a job as `agentix.oanix.jobs.JobSpec` has it in JSON, and return its number.

    Raises:
        RemoteCallError: It is no such job.
    """
    raise NotImplementedError("call via RuntimeClient.remote(oanix.submit_spec, ...)")


def status(job: str) -> JobState:
    """Return how a job stands.

    Raises:
        RemoteCallError: It is unknown.
    """
    raise NotImplementedError("call via RuntimeClient.remote(oanix.status, ...)")


def cancel(job: str) -> JobState:
    """Cancel a job: at once where it waits, and soon where it runs.

    Raises:
        RemoteCallError: It is unknown, or has ended.
    """
    raise NotImplementedError("call via RuntimeClient.remote(oanix.cancel, ...)")


def logs(
    job: str, *, follow: bool = True, stdout_offset: int = 0, stderr_offset: int = 0
) -> AsyncIterator[LogChunk]:
    """Stream what a job writes, while it runs, until it has ended.

    Args:
        job: The job's number.
        follow: Waits for more; otherwise yields what is there.
        stdout_offset: Bytes of standard output to leave out.
        stderr_offset: Bytes of standard error to leave out.

    Raises:
        RemoteCallError: It is unknown.
    """
    raise NotImplementedError("call via RuntimeClient.remote(oanix.logs, ...)")
