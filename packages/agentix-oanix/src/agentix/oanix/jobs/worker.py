"""Worker: a process that takes jobs from a store, one after the other, and runs them.

    main thread    waits for signals, looks at the store, and stops what is to stop
    thread "jobs"  claim ──► Execution.run ──► finish ──► claim ...

A worker leaves after the job that it has when its standard input ends, which the manager holds the
other end of. At SIGTERM it gives the job back to the queue first.
"""

import argparse
import json
import logging
import os
import posixpath
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from pydantic_core import to_jsonable_python

from agentix.oanix.errors import FsError, JobError, NoSuchFileError, OanixError
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
from agentix.oanix.jobs.store import (
    POLL_SECONDS,
    AttemptEnd,
    Claim,
    JobDirectory,
    JobStore,
    ProcessLock,
)
from agentix.oanix.jobs.tools import TOOLBOX, ToolCall, ToolRegistry, find_interpreter
from agentix.oanix.machine import Machine
from agentix.oanix.mount import Mount
from agentix.oanix.namespace import Namespace
from agentix.oanix.node import FsNode, Kind, OpenFlags
from agentix.oanix.places import modules_directory
from agentix.oanix.run import RunConfig
from agentix.oanix.service import File, FileService
from agentix.oanix.services.logs import LogsFs
from agentix.oanix.services.task import TaskFs
from agentix.oanix.services.trajectory import Trajectory
from agentix.oanix.stop import Cancellation, Reason
from agentix.version import VERSION

__all__ = ["EXIT_STUCK", "GRACE_SECONDS", "Execution", "JobWorker", "main"]

logger = logging.getLogger(__name__)

GRACE_SECONDS = 3.0
"""Seconds that a job has to end after it was stopped or its time was over."""

EXIT_STUCK = 70
"""The exit code of a worker whose job did not end when it was told to."""

OBSERVED_BYTES = 1 << 16
"""Bytes of each output that a trajectory shows."""

STDIN = 0

STEP_NAMES = {Wasi: "program", Script: "script", AgentTool: "tool"}

ServiceT = TypeVar("ServiceT", bound=FileService)
StopCause = Literal["cancelled", "interrupted"]


class JobWorker:
    """A process that takes jobs and runs them, until it is to leave.

    Args:
        directory: Where the jobs are.
        name: The worker's own name, which no other worker of the directory has had.
        limit: Attempts that may be under way at once, in all workers.
        machine: Runs the programs.
        tools: What jobs may call.
    """

    def __init__(
        self,
        directory: JobDirectory,
        name: str,
        limit: int,
        machine: Machine,
        tools: ToolRegistry,
    ) -> None:
        self._directory = directory
        self._name = name
        self._limit = limit
        self._machine = machine
        self._tools = tools
        self._interrupted = self._has_failed = False
        self._current: tuple[Claim, Execution] | None = None
        self._turn = threading.Lock()

    def interrupt(self) -> None:
        """Make the worker give its job back and leave; it may be called by a signal handler."""
        self._interrupted = True

    def run(self) -> bool:
        """Work until standard input ends or the worker is interrupted.

        Returns:
            Whether the worker could do its work to the end.

        Raises:
            JobError: Another worker has this name.
        """
        lock = ProcessLock(self._directory.worker(self._name))
        runner = threading.Thread(target=self._work, name="jobs", daemon=True)
        runner.start()
        with JobStore(self._directory) as store:
            while runner.is_alive():
                runner.join(POLL_SECONDS)
                self._look_around(store)
        self._directory.worker(self._name).unlink()
        lock.release()
        return not self._has_failed

    def _look_around(self, store: JobStore) -> None:
        """Stop the job that is to stop, or this process where the job does not."""
        with self._turn:
            if self._current is None:
                return
            claim, execution = self._current
            if self._interrupted:
                execution.stop("interrupted")
            if store.is_cancelled(claim):
                execution.stop("cancelled")
            if execution.is_overdue():
                # No thread can be made to end, so its process does.
                logger.warning("job %s did not end, so its worker does", claim.spec.id)
                store.finish(claim, execution.overdue_end())
                os._exit(EXIT_STUCK)

    def _work(self) -> None:
        """Take and run jobs."""
        try:
            with JobStore(self._directory) as store:
                while not self._interrupted and not _stdin_ends_within(0):
                    claim = store.claim(self._name, self._limit)
                    if claim is None:
                        _stdin_ends_within(POLL_SECONDS)
                    else:
                        store.finish(claim, self._perform(claim))
        except Exception:
            self._has_failed = True
            logger.exception("the worker cannot go on")

    def _perform(self, claim: Claim) -> AttemptEnd:
        logs = self._directory.logs(claim.spec.id)
        execution = Execution(claim.spec, self._machine, self._tools, logs)
        with self._turn:
            self._current = claim, execution
        try:
            return execution.run()
        except Exception as error:
            logger.exception("attempt %s of job %s failed", claim.number, claim.spec.id)
            return AttemptEnd("failed", error=repr(error))
        finally:
            with self._turn:
                self._current = None


def _stdin_ends_within(seconds: float) -> bool:
    return bool(select.select([STDIN], [], [], seconds)[0])


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
    """What a tool returned."""


class Execution:
    """One attempt of a job, from its namespace to its end.

    Args:
        spec: What the job is asked for.
        machine: Runs its programs.
        tools: The tools that it may call.
        logs: The directory of its logs.
    """

    def __init__(self, spec: JobSpec, machine: Machine, tools: ToolRegistry, logs: Path) -> None:
        self._spec = spec
        self._machine = machine
        self._tools = tools
        self._directory = logs
        self._output = LogWriter(logs)
        self._logs = LogsFs()
        self._trajectory = Trajectory("agentix-oanix", VERSION, str(spec.id))
        self._cancellation = Cancellation()
        self._stopped_by: StopCause | None = None
        self._deadline = None if spec.timeout_secs is None else time.monotonic() + spec.timeout_secs
        self._overdue = None if self._deadline is None else self._deadline + GRACE_SECONDS

    def stop(self, cause: StopCause) -> None:
        """Stop the attempt from another thread; the first cause holds."""
        if self._stopped_by is None:
            self._stopped_by = cause
            end = time.monotonic() + GRACE_SECONDS
            self._overdue = end if self._overdue is None else min(end, self._overdue)
            self._cancellation.cancel()

    def is_overdue(self) -> bool:
        """Return whether the attempt did not end when it was told to."""
        return self._overdue is not None and time.monotonic() >= self._overdue

    def overdue_end(self) -> AttemptEnd:
        """Return the end of an attempt that is overdue."""
        error = f"the job did not end within {GRACE_SECONDS} s"
        if self._stopped_by is None:
            return AttemptEnd("failed", error=f"timeout: {error} after it")
        return AttemptEnd(self._stopped_by, error=error)

    def run(self) -> AttemptEnd:
        """Do what the job is asked for, and return how it ended."""
        with self._output:
            try:
                namespace = Namespace.of(self._spec.namespace)
                self._logs = _service_at(namespace, "/logs", LogsFs) or self._logs
                end = self._perform(namespace)
            except OanixError as error:
                end = AttemptEnd("failed", error=str(error))
        if self._trajectory.steps:
            self._trajectory.save(self._logs)
        _save_logs(self._logs, self._directory)
        if self._stopped_by is not None and end.outcome != "completed":
            return AttemptEnd(self._stopped_by, error=end.error, result=end.result)
        return end

    def _perform(self, namespace: Namespace) -> AttemptEnd:
        if not _is_directory(namespace, self._spec.working_dir):
            raise JobError(f"the working directory {self._spec.working_dir} is no directory")
        task = _service_at(namespace, "/task", TaskFs)
        if task is not None:
            task.status = "running"
        match self._spec.kind:
            case TerminalBench() as bench:
                steps = self._judge(bench, namespace, task)
            case step:
                steps = [self._step(STEP_NAMES[type(step)], step, namespace)]
        last = steps[-1]
        runs = tuple(step.run for step in steps if step.run is not None)
        value = last.value if task is None or task.result is None else task.result
        result = JobResult(runs=runs, value=value)
        if last.error:
            return AttemptEnd("failed", error=last.error, result=result)
        return AttemptEnd("completed", exit_code=last.exit_code, result=result)

    def _judge(
        self, bench: TerminalBench, namespace: Namespace, task: TaskFs | None
    ) -> Sequence[StepEnd]:
        """Let the agent work and the verifier judge."""
        if task is None or task.task.id != bench.task_id:
            there = "nothing" if task is None else f"task {task.task.id}"
            raise JobError(f"the job is about task {bench.task_id}, and at /task is {there}")
        self._trajectory.message("user", task.task.description or task.task.id)
        agent = self._step("agent", bench.agent, namespace, bench.agent_timeout_secs)
        if self._cancellation.cancelled:
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
        """Run a program of the namespace."""
        spec = self._spec
        config = RunConfig(
            arguments=arguments,
            environment=self._environment(),
            stdin=stdin.encode(),
            stdout=self._write_stdout,
            stderr=self._write_stderr,
            keep_output=OBSERVED_BYTES,
            output=spec.output,
            fuel=spec.fuel,
            timeout=self._remaining(timeout),
            memory=spec.memory,
            deterministic=spec.deterministic,
            seed=spec.seed,
            cancellation=self._cancellation,
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
        """Call a tool."""
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
                stdout=self._write_stdout,
                stderr=self._write_stderr,
            )
            try:
                value = to_jsonable_python(tool(call))
                end = StepEnd(0, value=value)
            except Exception as error:  # a tool is the code of others
                self._write_stderr(traceback.format_exc().encode())
                end = StepEnd(1, f"the tool {step.name} failed: {error!r}")
            if cancellation.cancelled and not self._cancellation.cancelled:
                end = StepEnd(124, f"{Reason.TIMEOUT}: the time is over")
            elif cancellation.cancelled:
                end = StepEnd(130, f"{Reason.CANCELLED}: cancelled")
        arguments = {"args": list(step.args), "input": step.input}
        observed = end.error or json.dumps(end.value)
        self._trajectory.call(step.name, arguments, observed, {"exit_code": end.exit_code})
        return end

    @contextmanager
    def _limited(self, timeout: float | None) -> Iterator[Cancellation]:
        """Make a cancellation that follows the attempt's own, and a limit of time."""
        limited, remaining = Cancellation(), self._remaining(timeout)
        undo = self._cancellation.watch(limited.cancel)
        if self._cancellation.cancelled:
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
        """Return the seconds that a step may take."""
        if self._deadline is None:
            return timeout
        remaining = max(0.0, self._deadline - time.monotonic())
        return remaining if timeout is None else min(timeout, remaining)

    def _environment(self) -> dict[str, str]:
        place = {} if self._spec.working_dir == "/" else {"PWD": self._spec.working_dir}
        return place | dict(self._spec.env_vars)

    def _write_stdout(self, piece: bytes) -> None:
        """Add to standard output, in the job's logs and in the namespace's."""
        self._output.write("stdout", piece)
        self._logs.stdout.add(piece)

    def _write_stderr(self, piece: bytes) -> None:
        """Add to standard error, in the job's logs and in the namespace's."""
        self._output.write("stderr", piece)
        self._logs.stderr.add(piece)


class LogWriter:
    """The files of a job's outputs, each made with its first piece.

    Args:
        directory: The job's logs.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[str, int] = {}

    def write(self, stream: str, data: bytes) -> None:
        """Add a piece to the end of an output, where readers see it at once."""
        number = self._files.get(stream)
        if number is None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            number = self._files[stream] = os.open(self._directory / f"{stream}.log", flags, 0o600)
        view = memoryview(data)
        while len(view):
            view = view[os.write(number, view) :]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number in self._files.values():
            os.close(number)
        self._files.clear()


def _save_logs(logs: LogsFs, directory: Path) -> None:
    """Write the trajectories, events and metrics of an attempt where the job's logs are."""
    if logs.events.data:
        (directory / "events.jsonl").write_bytes(bytes(logs.events.data))
    (directory / "metrics.json").write_bytes(logs.metrics())
    _save_tree(logs.trajectories.attach(), directory / "atif")


def _save_tree(node: FsNode, target: Path) -> None:
    """Write the files below a directory of a service; links are left out."""
    below = [(entry.name, node.lookup(entry.name)) for entry in node.entries()]
    files = [(name, found) for name, found in below if found.kind is Kind.REGULAR]
    if files:
        target.mkdir(parents=True, exist_ok=True)
    for name, file in files:
        (target / name).write_bytes(File(file.open(OpenFlags())).read())
    for name, directory in below:
        if directory.kind is Kind.DIRECTORY:
            _save_tree(directory, target / name)


def _service_at(namespace: Namespace, path: str, kind: type[ServiceT]) -> ServiceT | None:
    """Return the service at a path, where it is of a class."""
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
    except NoSuchFileError as error:
        raise JobError(f"there is no program {path} in the namespace") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Work as the command line says."""
    parser = argparse.ArgumentParser(prog="agentix-oanix worker", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("name")
    parser.add_argument("limit", type=int)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    machine = Machine(modules_directory(os.environ))
    directory = JobDirectory(options.directory)
    worker = JobWorker(directory, options.name, options.limit, machine, ToolRegistry(TOOLBOX))
    signal.signal(signal.SIGTERM, lambda *_: worker.interrupt())
    return 0 if worker.run() else 1


if __name__ == "__main__":
    sys.exit(main())
