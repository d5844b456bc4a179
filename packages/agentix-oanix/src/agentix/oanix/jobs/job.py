"""JobSpec, JobKind and JobStatus: what a job is asked for, and how it stands."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from uuid import UUID, uuid4

from pydantic import BaseModel, ConfigDict, Field

from agentix.oanix.namespace import NamespaceSpec
from agentix.oanix.run import RunResult

__all__ = [
    "AgentTool",
    "Attempt",
    "AttemptOutcome",
    "Cancelled",
    "Completed",
    "Failed",
    "Job",
    "JobKind",
    "JobResult",
    "JobSpec",
    "JobStatus",
    "Pending",
    "RunSummary",
    "Running",
    "Script",
    "StatusName",
    "Step",
    "TerminalBench",
    "Wasi",
]

MAX_OUTPUT_BYTES = 64 << 20
"""Bytes of output that a job may write unless it is told otherwise."""


StatusName = Literal["pending", "running", "completed", "failed", "cancelled"]
"""The names of the states that a job can be in."""


class Frozen(BaseModel):
    """Immutable data that knows all its fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Wasi(Frozen):
    """A WASI program of the namespace.

    ```python
    from agentix.oanix.jobs import JobSpec, Wasi

    job = JobSpec(kind=Wasi(program="/bin/tool.wasm", arguments=("--all",), stdin="some input"))
    assert job.model_dump(mode="json")["kind"]["type"] == "wasi"
    ```
    """

    type: Literal["wasi"] = "wasi"
    """The tag of the kind."""
    program: str
    """The path of the module in the namespace, such as `/bin/tool.wasm`."""
    arguments: tuple[str, ...] = ()
    """What the program is given after its name."""
    stdin: str = ""
    """What the program reads as standard input."""


class Script(Frozen):
    """A script of the namespace, run by a WASI shell or interpreter in the namespace's `/bin`.

    The interpreter is the one that the script's first line names (`#!/bin/sh`,
    `#!/usr/bin/env python3`), or one that goes with the ending of its name. `/bin/python3` and
    `/bin/python3.wasm` are both found as `python3`.

    ```python
    from agentix.oanix.jobs import JobSpec, Script

    job = JobSpec(kind=Script(script_path="build.sh", arguments=("all",)), working_dir="/code")
    assert job.kind.interpreter is None
    ```
    """

    type: Literal["script"] = "script"
    """The tag of the kind."""
    script_path: str
    """The path of the script in the namespace; a relative one starts at the working directory."""
    arguments: tuple[str, ...] = ()
    """What the script is given after its path."""
    interpreter: str | None = None
    """The name of a program in `/bin`, where neither first line nor ending should choose it."""
    stdin: str = ""
    """What the script reads as standard input."""


class AgentTool(Frozen):
    """A registered tool, called in the worker with the namespace as its tree of files.

    ```python
    from agentix.oanix.jobs import AgentTool, JobSpec

    job = JobSpec(kind=AgentTool(name="search", args=("milk", "/notes")))
    assert job.kind.name == "search"
    ```
    """

    type: Literal["agent_tool"] = "agent_tool"
    """The tag of the kind."""
    name: str
    """The name that the tool is registered under."""
    args: tuple[str, ...] = ()
    """Arguments as words."""
    input: Any = None
    """Arguments as JSON."""


Step = Annotated[Wasi | Script | AgentTool, Field(discriminator="type")]
"""One step of a task: a program, a script or a tool."""


class TerminalBench(Frozen):
    """A task at `/task` that an agent works on, and a verifier then judges.

    The namespace is one like `agentix.oanix.profile.terminalbench` makes, with a `TaskFs` at
    `/task`. The agent may fail or run out of time; the verifier judges all the same, and its exit
    code is the job's.

    ```python
    from agentix.oanix.jobs import AgentTool, JobSpec, TerminalBench, Wasi

    kind = TerminalBench(
        task_id="note",
        agent=AgentTool(name="write", args=("/workspace/note", "1 2 3")),
        verifier=Wasi(program="/bin/check.wasm"),
        agent_timeout_secs=60,
    )
    assert JobSpec(kind=kind).kind.agent.name == "write"
    ```
    """

    type: Literal["terminal_bench"] = "terminal_bench"
    """The tag of the kind."""
    task_id: str
    """The name of the task, which is also in `/task/spec.json`."""
    agent: Step
    """What works on the task."""
    verifier: Step
    """What judges the result."""
    tests: NamespaceSpec | None = None
    """What is at `/tests` for the verifier, and was not there for the agent."""
    agent_timeout_secs: float | None = Field(default=None, gt=0)
    """Seconds that the agent may take."""
    verifier_timeout_secs: float | None = Field(default=None, gt=0)
    """Seconds that the verifier may take."""


JobKind = Annotated[TerminalBench | Script | AgentTool | Wasi, Field(discriminator="type")]
"""What a job does, told apart by `type`."""


class JobSpec(Frozen):
    """What a job is asked for.

    ```python
    from agentix.oanix.jobs import JobSpec, Wasi

    first = JobSpec(kind=Wasi(program="/bin/prepare.wasm"), timeout_secs=60, retries=2)
    second = JobSpec(kind=Wasi(program="/bin/report.wasm"), after=(first.id,), priority=5)
    assert JobSpec.model_validate_json(second.model_dump_json()) == second
    ```
    """

    kind: JobKind
    """What it does."""
    id: UUID = Field(default_factory=uuid4)
    """The job's own number."""
    env_id: UUID = Field(default_factory=uuid4)
    """The number of the environment; jobs of one environment can be given the same."""
    namespace: NamespaceSpec = NamespaceSpec()
    """What the job sees, made anew for each attempt."""
    priority: int = 0
    """Jobs with a higher number start first; those of one number in the order of submission."""
    env_vars: Mapping[str, str] = {}
    """Environment variables; a program sees no others."""
    working_dir: str = "/"
    """Where relative paths of a script and a tool start; programs find it as `PWD`."""
    created_at: datetime = Field(default_factory=lambda: datetime.now(UTC))
    """When the job was made."""
    timeout_secs: float | None = Field(default=None, gt=0)
    """Seconds that an attempt may take."""
    retries: int = Field(default=0, ge=0)
    """How many times the job is tried again after it failed, or its worker ended."""
    after: tuple[UUID, ...] = ()
    """Jobs that must have completed with exit code 0 before; where one does not, this one fails."""
    tags: tuple[str, ...] = ()
    """Marks to find the job by."""
    fuel: int | None = Field(default=None, ge=0)
    """Units of fuel that a program may use."""
    memory: int | None = Field(default=None, ge=0)
    """Bytes of memory that a program may have."""
    output: int | None = Field(default=MAX_OUTPUT_BYTES, ge=0)
    """Bytes of output that a program may write; `None` for no limit."""
    deterministic: bool = False
    """Programs run with a virtual clock and seeded random bytes."""
    seed: int = 0
    """What the random bytes of a deterministic run come from."""
    record: bool = False
    """The traces of the programs' host calls are kept with the logs, as `trace-NAME`."""


class Pending(Frozen):
    """The job waits for its turn, or for other jobs.

    ```python
    from agentix.oanix.jobs import JobQueue, JobSpec, Pending, Wasi

    with JobQueue("queue") as queue:
        job = queue.submit(JobSpec(kind=Wasi(program="/bin/tool.wasm")), start=False)
        assert queue.get(job).status == Pending()
    ```
    """

    status: Literal["pending"] = "pending"
    """The tag of the status."""


class Running(Frozen):
    """An attempt is under way.

    ```python
    from agentix.oanix.jobs import JobDirectory, JobSpec, JobStore, Running, Wasi

    job = JobSpec(kind=Wasi(program="/bin/tool.wasm"))
    with JobStore(JobDirectory("queue")) as store:
        store.submit(job)
        store.claim("worker-1", limit=1)
        assert store.get(job.id).status == Running()
    ```
    """

    status: Literal["running"] = "running"
    """The tag of the status."""


class Completed(Frozen):
    """The job came to its own end.

    ```python
    from agentix.oanix.jobs import Completed

    match Completed(exit_code=3):
        case Completed(exit_code=0):
            raise AssertionError("it did not succeed")
        case Completed(exit_code=code):
            assert code == 3
    ```
    """

    status: Literal["completed"] = "completed"
    """The tag of the status."""
    exit_code: int
    """The exit code of its program, of its verifier, or 0 for a tool."""


class Failed(Frozen):
    """The job could not come to its own end.

    ```python
    from agentix.oanix.jobs import Failed

    status = Failed(error="timeout: the time is over")
    assert (status.status, status.error) == ("failed", "timeout: the time is over")
    ```
    """

    status: Literal["failed"] = "failed"
    """The tag of the status."""
    error: str
    """What went wrong."""


class Cancelled(Frozen):
    """The job was cancelled, before it started or while it ran.

    ```python
    from agentix.oanix.jobs import Cancelled, JobQueue, JobSpec, Wasi

    with JobQueue("queue") as queue:
        job = queue.submit(JobSpec(kind=Wasi(program="/bin/tool.wasm")), start=False)
        queue.cancel(job)
        assert queue.get(job).status == Cancelled()
    ```
    """

    status: Literal["cancelled"] = "cancelled"
    """The tag of the status."""


JobStatus = Annotated[
    Pending | Running | Completed | Failed | Cancelled, Field(discriminator="status")
]
"""How a job stands, told apart by `status`."""


class RunSummary(Frozen):
    """A `RunResult` without the output, which is in the job's logs.

    ```python
    from agentix.oanix import Machine, Namespace
    from agentix.oanix.jobs import RunSummary

    result = Machine().run(b'(module (func (export "_start")))', Namespace())
    assert RunSummary.of("program", result).reason == "exit"
    ```
    """

    name: str
    """What ran: `program`, `script`, `agent` or `verifier`."""
    exit_code: int
    """The exit code, as `RunResult` has it."""
    reason: str
    """Why the run ended, as `Reason` has it."""
    message: str = ""
    """What happened, with the program's stack for a trap."""
    trap_code: str = ""
    """The name of the trap."""
    fuel: int
    """Units of fuel used."""
    host_calls: int
    """Calls of WASI functions."""
    bytes_read: int
    """Bytes read from files and standard input."""
    bytes_written: int
    """Bytes written to files and the outputs."""
    wall_time: float
    """Seconds from start to end."""
    files_written: tuple[str, ...] = ()
    """Paths that were made or changed."""
    trace_digest: str = ""
    """The SHA-256 of the trace, where the run was recorded."""

    @classmethod
    def of(cls, name: str, result: RunResult) -> "RunSummary":
        """Make the summary of a result."""
        kept = {field: getattr(result, field) for field in cls.model_fields if field != "name"}
        return cls(name=name, **kept | {"reason": str(result.reason)})


class JobResult(Frozen):
    """What an attempt came to.

    ```python
    from agentix.oanix.jobs import JobResult

    result = JobResult(value={"words": 3})
    assert JobResult.model_validate_json(result.model_dump_json()).value == {"words": 3}
    ```
    """

    runs: tuple[RunSummary, ...] = ()
    """The programs that ran, in their order."""
    value: Any = None
    """What the tool returned, or what was written to `/task/result.json`."""


AttemptOutcome = Literal["completed", "failed", "cancelled", "lost", "interrupted"]
"""How an attempt ended: `lost` with its worker, or `interrupted` by an orderly stop of it."""


class Attempt(Frozen):
    """One start of a job; it is recorded before the job starts.

    ```python
    from agentix.oanix.jobs import JobDirectory, JobSpec, JobStore, Wasi

    job = JobSpec(kind=Wasi(program="/bin/tool.wasm"))
    with JobStore(JobDirectory("queue")) as store:
        store.submit(job)
        store.claim("worker-1", limit=1)
        (attempt,) = store.get(job.id).attempts
        assert (attempt.number, attempt.worker, attempt.outcome) == (1, "worker-1", None)
    ```
    """

    number: int
    """1 for the first one."""
    worker: str
    """The name of the worker that had it."""
    started: datetime
    """When it was recorded."""
    ended: datetime | None = None
    """When its end was recorded; `None` while it is under way."""
    outcome: AttemptOutcome | None = None
    """How it ended."""
    exit_code: int | None = None
    """The exit code, where it completed."""
    error: str = ""
    """What went wrong."""


class Job(Frozen):
    """A job in a store: what it is asked for, and how it stands.

    ```python
    from agentix.oanix.jobs import JobQueue, JobSpec, Wasi

    with JobQueue("queue") as queue:
        number = queue.submit(JobSpec(kind=Wasi(program="/bin/tool.wasm")), start=False)
        job = queue.get(number)
        assert (job.ended, job.attempts, job.result) == (False, (), None)
    ```
    """

    spec: JobSpec
    """What it is asked for."""
    status: JobStatus
    """How it stands."""
    attempts: tuple[Attempt, ...] = ()
    """Its starts so far."""
    result: JobResult | None = None
    """What the last attempt that ended came to."""

    @property
    def ended(self) -> bool:
        """Whether the status is final."""
        return not isinstance(self.status, Pending | Running)
