"""RunConfig and RunResult: what a run is asked for, and what it came to."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentix.oanix.errors import OanixError
from agentix.oanix.node import Handle
from agentix.oanix.stop import Cancellation, Reason
from agentix.oanix.trace import Trace

__all__ = ["LARGEST", "RunConfig", "RunResult"]

Sink = Callable[[bytes], None]

LARGEST = 1 << 63
"""Limits are below this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """What a program is started with, and how much it may use.

    ```python
    from agentix.oanix import Machine, Namespace, RunConfig

    config = RunConfig(
        arguments=("tool", "--verbose"),
        environment={"LANG": "C.UTF-8"},
        stdin=b"some input",
        timeout=10,
        memory=64 << 20,
    )
    assert Machine().run(b'(module (func (export "_start")))', Namespace(), config).exit_code == 0
    ```
    """

    arguments: Sequence[str] = ("program",)
    """The program's name and its arguments."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables; the program sees no others."""
    stdin: bytes | Handle = b""
    """Standard input: bytes and then the end, or a stream such as a `StreamPipe`."""
    stdout: Sink | None = None
    """Is called with each piece of standard output as it comes, in the run's thread."""
    stderr: Sink | None = None
    """Is called with each piece of standard error as it comes, in the run's thread."""
    keep_output: int = 16 << 20
    """Bytes of each output that the result carries."""
    output: int | None = 1 << 30
    """Bytes of both outputs after which the run is stopped; `None` for no limit."""
    fuel: int | None = None
    """Units of fuel after which the run is stopped; `None` for no limit."""
    timeout: float | None = None
    """Seconds after which the run is stopped; `None` for no limit."""
    memory: int | None = None
    """Bytes that the program's memory may have; `None` for the 4 GiB that it can address."""
    stack: int | None = None
    """Bytes of stack, rounded up to a power of two, up to 4 MiB; `None` for 1 MiB."""
    deterministic: bool = False
    """Time is virtual, random bytes are of `seed`, and NaNs are canonical."""
    seed: int = 0
    """What the random bytes of a deterministic run come from."""
    preopens: Mapping[str, str] = field(default_factory=lambda: {"/": "/"})
    """Directories that are open from the start: their names, and their paths in the namespace."""
    cancellation: Cancellation | None = None
    """Lets another thread stop the run."""
    record: bool = False
    """The result has the trace of all host calls."""

    def __post_init__(self) -> None:
        """Refuse limits that limit nothing; the engine would take them for very large ones.

        Raises:
            OanixError: A limit is negative, too large, or no number.
        """
        for name in ("fuel", "memory", "stack", "output"):
            limit = getattr(self, name)
            if limit is not None and not 0 <= limit < LARGEST:
                raise OanixError(f"{name}={limit} is no limit: give 0 to {LARGEST - 1}, or None")
        if self.timeout is not None and not 0 <= self.timeout < math.inf:
            raise OanixError(f"timeout={self.timeout} is no limit: give seconds from 0, or None")

    @property
    def watched(self) -> bool:
        """Whether the run has a deadline or can be cancelled; it looks at both once a tick."""
        return self.timeout is not None or self.cancellation is not None


@dataclass(kw_only=True, slots=True)
class RunResult:
    """What a run came to; not frozen, which would take a fifth of a short run's time.

    ```python
    from agentix.oanix import Machine, Namespace

    result = Machine().run(b'(module (func (export "_start") unreachable))', Namespace())
    assert (result.exit_code, result.reason, result.trap_code) == (134, "trap", "UNREACHABLE")
    ```
    """

    exit_code: int
    """0 to 255: the program's own, or 134 for a trap, 124 for a timeout, 130 where it was
    cancelled, 137 for another limit."""
    reason: Reason
    """Why the run ended."""
    message: str = ""
    """What happened, with the program's stack for a trap; empty for the program's own end."""
    trap_code: str = ""
    """The name of the trap, such as `UNREACHABLE`; empty where there was none."""
    stdout: bytes = b""
    """Standard output, up to `keep_output` bytes."""
    stderr: bytes = b""
    """Standard error, up to `keep_output` bytes."""
    fuel: int = 0
    """Units of fuel used."""
    host_calls: int = 0
    """Calls of WASI functions."""
    bytes_read: int = 0
    """Bytes read from files and standard input."""
    bytes_written: int = 0
    """Bytes written to files and the outputs."""
    wall_time: float = 0.0
    """Seconds from start to end."""
    files_written: tuple[str, ...] = ()
    """Paths that were made or changed, in their order of names."""

    task_result: Any = None
    """What the program wrote to the `result.json` of a `TaskFs`, as JSON; `None` for nothing."""
    trace: Trace | None = None
    """The host calls, where they were recorded."""
    truncated: bool = False
    """An output was longer than what is kept of it."""

    @property
    def trace_digest(self) -> str:
        """The SHA-256 of the trace, in hexadecimal; empty where nothing was recorded."""
        return self.trace.digest if self.trace is not None else ""
