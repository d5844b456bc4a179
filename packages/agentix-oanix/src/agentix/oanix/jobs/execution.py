"""Execution: one attempt of a job, from its namespace to its end."""

import json
import posixpath
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic_core import to_jsonable_python

from agentix.oanix.errors import FsError, JobError, NotFoundError, OanixError
from agentix.oanix.jobs.interpreter import find_interpreter
from agentix.oanix.jobs.job import (
    AgentTool,
    JobResult,
    JobSpec,
    RunSummary,
    Script,
    Step,
    TerminalBench,
    Wasi,
)
from agentix.oanix.jobs.logs import LogWriter, Stream, save_logs
from agentix.oanix.jobs.store import End
from agentix.oanix.jobs.tool import ToolCall, ToolRegistry
from agentix.oanix.machine import Machine
from agentix.oanix.mount import Mount
from agentix.oanix.namespace import Namespace
from agentix.oanix.run import RunConfig
from agentix.oanix.service import FileService
from agentix.oanix.services.logs import LogsFs
from agentix.oanix.services.task import TaskFs
from agentix.oanix.services.trajectory import Trajectory
from agentix.oanix.stop import Cancellation, Reason
from agentix.version import VERSION

__all__ = ["Execution", "Stop"]

OBSERVED = 1 << 16
"""Bytes of each output that a trajectory shows."""

NAME = {Wasi: "program", Script: "script", AgentTool: "tool"}

Service = TypeVar("Service", bound=FileService)
Why = Literal["cancelled", "interrupted"]


class Stop(Cancellation):
    """Stops an execution, and knows why."""

    def __init__(self) -> None:
        super().__init__()
        self.why: Why | None = None
        """What stopped it first."""

    def stop(self, why: Why) -> None:
        """Stops the execution."""
        self.why = self.why or why
        self.cancel()


@dataclass(frozen=True, slots=True)
class StepEnd:
    """How a step of a job ended."""

    exit_code: int
    """The exit code; 1 for a tool that failed."""
    error: str = ""
    """Why it did not come to its own end."""
    run: RunSummary | None = None
    """What a program came to."""
    value: Any = None
    """What a tool gave back."""


class Execution:
    """One attempt of a job.

    Args:
        spec: What the job is asked for.
        machine: Runs its programs.
        tools: The tools that it may call.
        logs: The directory of its logs.
    """

    def __init__(self, spec: JobSpec, machine: Machine, tools: ToolRegistry, logs: Path) -> None:
        self.stop = Stop()
        """Stops it from another thread."""
        self._spec = spec
        self._machine = machine
        self._tools = tools
        self._directory = logs
        self._output = LogWriter(logs)
        self._logs = LogsFs()
        self._trajectory = Trajectory("agentix-oanix", VERSION, str(spec.id))
        self._deadline = None if spec.timeout_secs is None else time.monotonic() + spec.timeout_secs

    def run(self) -> End:
        """Does what the job is asked for, and tells how it ended."""
        with self._output:
            try:
                namespace = Namespace.of(self._spec.namespace)
                self._logs = _service_at(namespace, "/logs", LogsFs) or self._logs
                end = self._perform(namespace)
            except OanixError as error:
                end = End("failed", error=str(error))
        self._keep()
        if self.stop.why is not None and end.outcome != "completed":
            return End(self.stop.why, error=end.error, result=end.result)
        return end

    def _keep(self) -> None:
        """Writes what is not in the outputs where the job's logs are."""
        if self._trajectory.steps:
            self._trajectory.save(self._logs)
        save_logs(self._logs, self._directory)

    def _perform(self, namespace: Namespace) -> End:
        if not _is_directory(namespace, self._spec.working_dir):
            raise JobError(f"the working directory {self._spec.working_dir} is no directory")
        task = _service_at(namespace, "/task", TaskFs)
        if task is not None:
            task.status = "running"
        match self._spec.kind:
            case TerminalBench() as bench:
                steps = self._judge(bench, namespace, task)
            case step:
                steps = [self._step(NAME[type(step)], step, namespace)]
        last = steps[-1]
        runs = tuple(step.run for step in steps if step.run is not None)
        value = last.value if task is None or task.result is None else task.result
        result = JobResult(runs=runs, value=value)
        if last.error:
            return End("failed", error=last.error, result=result)
        return End("completed", exit_code=last.exit_code, result=result)

    def _judge(
        self, bench: TerminalBench, namespace: Namespace, task: TaskFs | None
    ) -> Sequence[StepEnd]:
        """Has the agent work and the verifier judge."""
        if task is None or task.task.id != bench.task_id:
            there = "nothing" if task is None else f"task {task.task.id}"
            raise JobError(f"the job is about task {bench.task_id}, and at /task is {there}")
        self._trajectory.message("user", task.task.description or task.task.id)
        agent = self._step("agent", bench.agent, namespace, bench.agent_timeout_secs)
        if self.stop.cancelled:
            return [agent]
        if bench.tests is not None:
            tests = Namespace.of(bench.tests)
            namespace = Namespace([*namespace.mounts, Mount("/tests", tests, readonly=True)])
        verifier = self._step("verifier", bench.verifier, namespace, bench.verifier_timeout_secs)
        passed = verifier.exit_code == 0 and not verifier.error
        task.status = "completed" if passed else "failed"
        return [agent, verifier]

    def _step(
        self, name: str, step: Step, namespace: Namespace, timeout: float | None = None
    ) -> StepEnd:
        match step:
            case Wasi():
                program = self._path(step.program)
                words = [posixpath.basename(program), *step.arguments]
                return self._run(name, program, words, step.stdin, namespace, timeout)
            case Script():
                script = self._path(step.script_path)
                program, options = find_interpreter(namespace, step, script)
                words = [posixpath.basename(program), *options, script, *step.arguments]
                return self._run(name, program, words, step.stdin, namespace, timeout)
            case AgentTool():
                return self._call(step, namespace, timeout)

    def _path(self, path: str) -> str:
        return posixpath.normpath(posixpath.join("/", self._spec.working_dir, path))

    def _run(
        self,
        name: str,
        program: str,
        arguments: Sequence[str],
        stdin: str,
        namespace: Namespace,
        timeout: float | None,
    ) -> StepEnd:
        """Runs a program of the namespace."""
        spec = self._spec
        config = RunConfig(
            arguments=arguments,
            environment=self._environment(),
            stdin=stdin.encode(),
            stdout=lambda piece: self._write("stdout", piece),
            stderr=lambda piece: self._write("stderr", piece),
            keep_output=OBSERVED,
            output=spec.output,
            fuel=spec.fuel,
            timeout=self._remaining(timeout),
            memory=spec.memory,
            deterministic=spec.deterministic,
            seed=spec.seed,
            cancellation=self.stop,
            record=spec.record,
        )
        result = self._machine.run(_read_program(namespace, program), namespace, config)
        self._logs.record(result)
        self._trajectory.run(arguments, result)
        if result.trace is not None:
            result.trace.save(self._directory / f"trace-{name}")
        error = "" if result.reason is Reason.EXIT else f"{result.reason}: {result.message}"
        return StepEnd(result.exit_code, error, RunSummary.of(name, result))

    def _call(self, step: AgentTool, namespace: Namespace, timeout: float | None) -> StepEnd:
        """Calls a tool."""
        tool = self._tools.get(step.name)
        with self._limited(timeout) as cancellation:
            call = ToolCall(
                namespace=namespace,
                args=step.args,
                input=step.input,
                environment=self._environment(),
                working_dir=self._spec.working_dir,
                machine=self._machine,
                cancellation=cancellation,
                stdout=lambda piece: self._write("stdout", piece),
                stderr=lambda piece: self._write("stderr", piece),
            )
            try:
                value = to_jsonable_python(tool(call))
                end = StepEnd(0, value=value)
            except Exception as error:  # a tool is the code of others
                self._write("stderr", traceback.format_exc().encode())
                end = StepEnd(1, f"the tool {step.name} failed: {error!r}")
            if cancellation.cancelled and not self.stop.cancelled:
                end = StepEnd(124, f"{Reason.TIMEOUT}: the time is over")
            elif cancellation.cancelled:
                end = StepEnd(130, f"{Reason.CANCELLED}: cancelled")
        arguments = {"args": list(step.args), "input": step.input}
        observed = end.error or json.dumps(end.value)
        self._trajectory.call(step.name, arguments, observed, {"exit_code": end.exit_code})
        return end

    @contextmanager
    def _limited(self, timeout: float | None) -> Iterator[Cancellation]:
        """Gives a cancellation that follows the execution's own, and a limit of time."""
        limited, remaining = Cancellation(), self._remaining(timeout)
        undo = self.stop.watch(limited.cancel)
        if self.stop.cancelled:
            limited.cancel()
        timer = threading.Timer(remaining, limited.cancel) if remaining is not None else None
        if timer is not None:
            timer.start()
        try:
            yield limited
        finally:
            undo()
            if timer is not None:
                timer.cancel()

    def _remaining(self, timeout: float | None) -> float | None:
        """Gives the seconds that a step may take."""
        if self._deadline is None:
            return timeout
        remaining = max(0.0, self._deadline - time.monotonic())
        return remaining if timeout is None else min(timeout, remaining)

    def _environment(self) -> dict[str, str]:
        place = {} if self._spec.working_dir == "/" else {"PWD": self._spec.working_dir}
        return place | dict(self._spec.env_vars)

    def _write(self, stream: Stream, piece: bytes) -> None:
        """Adds to an output, in the job's logs and in the namespace's."""
        self._output.write(stream, piece)
        (self._logs.stdout if stream == "stdout" else self._logs.stderr).add(piece)


def _service_at(namespace: Namespace, path: str, kind: type[Service]) -> Service | None:
    """Gives the service at a path, where it is of a class."""
    found = namespace.resolve(path)
    return found[0] if found is not None and isinstance(found[0], kind) else None


def _is_directory(namespace: Namespace, path: str) -> bool:
    try:
        return namespace.stat(path).is_dir
    except FsError:
        return False


def _read_program(namespace: Namespace, path: str) -> bytes:
    try:
        return namespace.read(path)
    except NotFoundError as error:
        raise JobError(f"there is no program {path} in the namespace") from error
