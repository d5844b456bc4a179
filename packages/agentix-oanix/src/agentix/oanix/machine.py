"""Machine: compiles programs and runs them in namespaces, one at a time in each thread."""

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import wasmtime

from agentix.oanix import determinism
from agentix.oanix.engine import Profile, Ticker, make_engine
from agentix.oanix.errors import ModuleError, ReplayError
from agentix.oanix.namespace import Namespace
from agentix.oanix.program import CompiledProgram, ModuleCache, check_imports, explain
from agentix.oanix.recording import Recorder, Replayer
from agentix.oanix.run import RunConfig, RunResult
from agentix.oanix.services.task import RESULT, TaskFs
from agentix.oanix.stop import Exit, Halt, Reason
from agentix.oanix.trace import RecordedEnd, RecordedLimits, Trace
from agentix.oanix.wasi.preview1 import Preview1
from agentix.oanix.wasi.process import WasiProcess
from agentix.oanix.wasi.runner import RunOutcome, WasiRunner, check_engine

__all__ = ["Machine"]

MAX_PROGRAMS = 64
EXIT_CODES = {
    Reason.TRAP: 134,
    Reason.STACK: 134,
    Reason.TIMEOUT: 124,
    Reason.CANCELLED: 130,
    Reason.FUEL: 137,
    Reason.OUTPUT: 137,
    Reason.MEMORY: 137,
}
TRAPS = {
    wasmtime.TrapCode.STACK_OVERFLOW: Reason.STACK,
    wasmtime.TrapCode.OUT_OF_FUEL: Reason.FUEL,
}


@dataclass(frozen=True, slots=True)
class EngineRuns:
    """An engine, and what its runs share."""

    engine: wasmtime.Engine
    """Compiles and runs programs of one profile."""
    ticker: Ticker
    """Interrupts runs, so that their deadlines are looked at."""
    idle: list[WasiRunner]
    """Runners that no run has at the moment."""


class Machine:
    """A compiler and runner of programs: each is compiled once, and run many times.

    ```python
    from pathlib import Path

    from agentix.oanix import Machine, Namespace, RunConfig

    machine = Machine(cache=Path("modules"))
    program = machine.load(b'(module (func (export "_start")))')
    for _ in range(3):
        result = machine.run(program, Namespace(), RunConfig(timeout=10))
        assert (result.exit_code, result.reason) == (0, "exit")
    ```

    Args:
        cache: A private directory for compiled programs; `None` keeps them in memory alone.

    Raises:
        EngineError: The installed wasmtime is not one that OANIX runs with.
    """

    runner_class = WasiRunner
    """What runs programs; the tests compare it with one of wasmtime's public interface."""

    def __init__(self, cache: Path | None = None) -> None:
        check_engine()
        self._cache = ModuleCache(cache) if cache is not None else None
        self._lock = threading.Lock()
        self._engines: dict[Profile, EngineRuns] = {}
        self._programs: OrderedDict[tuple[bytes, Profile], CompiledProgram] = OrderedDict()

    def load(
        self, wasm: bytes, *, deterministic: bool = False, stack: int | None = None
    ) -> CompiledProgram:
        """Compile a program, or find it compiled.

        Args:
            wasm: The module.
            deterministic: It is for deterministic runs, whose code differs.
            stack: Bytes of stack, as `RunConfig.stack` has them.

        Raises:
            UnknownImportError: It imports what is not a function of WASI preview 1.
            ModuleError: It is no module, or one with features that this kernel does not run.
        """
        key = bytes(wasm), Profile.of(deterministic, stack)
        with self._lock:
            program = self._programs.get(key)
            if program is not None:
                self._programs.move_to_end(key)
                return program
        digest = hashlib.sha256(key[0]).hexdigest()
        program = CompiledProgram(self._compile(*key), digest, key[1])
        with self._lock:
            self._programs[key] = program
            if len(self._programs) > MAX_PROGRAMS:
                self._programs.popitem(last=False)
        return program

    def _compile(self, wasm: bytes, profile: Profile) -> wasmtime.Module:
        engine = self._engine_runs(profile).engine
        try:
            if self._cache is None:
                module = wasmtime.Module(engine, wasm)
            else:
                kind = f"deterministic={profile.deterministic}"
                module = self._cache.load(engine, wasm, kind)
        except wasmtime.WasmtimeError as error:
            raise explain(wasm, error) from error
        check_imports(module)
        return module

    def run(
        self, wasm: bytes | CompiledProgram, namespace: Namespace, config: RunConfig | None = None
    ) -> RunResult:
        """Run a program to its end in the calling thread.

        Args:
            wasm: The module, or the program that `load` made of it.
            namespace: What the program sees.
            config: What it is started with, and how much it may use.

        Raises:
            ModuleError: The module cannot be run, or was loaded for another stack.
            NamespaceError: The namespace has no directory where a preopen names one.
        """
        config = config or RunConfig()
        program = self._program(wasm, config)
        if config.record:
            return self._record(program, namespace, config)
        runs = self._engine_runs(program.profile)
        try:
            runner = runs.idle.pop()
        except IndexError:
            runner = self.runner_class(runs.engine, Preview1())
        try:
            return _run(runner, program, namespace, config, runs.ticker)
        finally:
            runs.idle.append(runner)

    def _program(self, wasm: bytes | CompiledProgram, config: RunConfig) -> CompiledProgram:
        if not isinstance(wasm, CompiledProgram):
            return self.load(wasm, deterministic=config.deterministic, stack=config.stack)
        if config.stack is not None:
            wanted = Profile.of(config.deterministic, config.stack).stack
            if wasm.profile.stack != wanted:
                raise ModuleError(
                    f"the program was loaded for a stack of {wasm.profile.stack} bytes,"
                    f" not of {wanted}: load it with stack={config.stack}"
                )
        return wasm

    def _record(
        self, program: CompiledProgram, namespace: Namespace, config: RunConfig
    ) -> RunResult:
        runs = self._engine_runs(program.profile)
        process = Preview1()
        limits = RecordedLimits(config.fuel, config.memory, config.stack)
        trace = Trace(program.digest, program.profile.deterministic, limits=limits)
        runner = self.runner_class(runs.engine, process, Recorder(process, trace).wrap)
        result = _run(runner, program, namespace, config, runs.ticker)
        trace.end = RecordedEnd(result.reason, result.message, result.fuel)
        result.trace = trace
        return result

    def replay(self, wasm: bytes | CompiledProgram, trace: Trace) -> RunResult:
        """Run a program again from the trace of a run, without the services it had.

        A run that was stopped while it computed, by a deadline or another thread, stops where it
        had used as much fuel, and has the same reason.

        Args:
            wasm: The module, or the program that `load` made of it.
            trace: The host calls of the run.

        Raises:
            ReplayError: It is another program, or the first call that differs is met.
        """
        limits, end = trace.limits, trace.end
        stopped = end.reason in (Reason.TIMEOUT, Reason.CANCELLED)
        config = RunConfig(
            deterministic=trace.deterministic,
            fuel=end.fuel if stopped else limits.fuel,
            memory=limits.memory,
            stack=limits.stack,
        )
        program = self._program(wasm, config)
        if program.digest != trace.program:
            raise ReplayError(f"the recording is of another program, {trace.program}")
        runs = self._engine_runs(program.profile)
        process = Preview1()
        runner = self.runner_class(runs.engine, process, Replayer(process, trace).wrap)
        result = _run(runner, program, Namespace(), config, runs.ticker)
        if stopped and result.reason is Reason.FUEL:
            result.reason, result.message = end.reason, end.message
            result.exit_code, result.trap_code = EXIT_CODES[end.reason], ""
        return result

    def _engine_runs(self, profile: Profile) -> EngineRuns:
        found = self._engines.get(profile)
        if found is not None:
            return found
        with self._lock:
            if profile not in self._engines:
                engine = make_engine(profile)
                self._engines[profile] = EngineRuns(engine, Ticker(engine), [])
            return self._engines[profile]


def _run(
    runner: WasiRunner,
    program: CompiledProgram,
    namespace: Namespace,
    config: RunConfig,
    ticker: Ticker,
) -> RunResult:
    """Run a program in the runner's process, and return what came of it."""
    process = runner.process
    linked = program.linked(runner)
    process.begin(config, namespace)
    try:
        if config.watched or config.deterministic:
            with _surrounded(process, ticker):
                outcome = runner.run(linked, config)
        else:
            outcome = runner.run(linked, config)
    finally:
        process.end()
    return _result(process, outcome)


@contextmanager
def _surrounded(process: WasiProcess, ticker: Ticker) -> Iterator[None]:
    """Watch a run's limits, and show services its own time and random bytes."""
    with ExitStack() as stack:
        if process.config.watched:
            stack.enter_context(ticker.running())
        if process.virtual is not None:
            stack.callback(determinism.CLOCK.reset, determinism.CLOCK.set(process.virtual.stamp))
            stack.callback(determinism.ENTROPY.reset, determinism.ENTROPY.set(process.random))
        yield


def _result(process: WasiProcess, outcome: RunOutcome) -> RunResult:
    code, reason, message, trap_code = _end(process.stop, outcome)
    result = RunResult(
        exit_code=code,
        reason=reason,
        message=message,
        trap_code=trap_code,
        fuel=outcome.fuel,
        host_calls=process.host_calls,
        wall_time=(time.monotonic_ns() - process.started) / 1e9,
    )
    if process.outputs is not None:
        stdout, stderr = process.outputs
        result.stdout, result.stderr = bytes(stdout.data), bytes(stderr.data)
        result.truncated = max(stdout.total, stderr.total) > process.config.keep_output
        result.bytes_read, result.bytes_written = process.bytes_read, process.bytes_written
        result.files_written = tuple(sorted(process.written))
        result.task_result = _task_result(process)
    return result


def _task_result(process: WasiProcess) -> Any:
    """Return the result that the program wrote for the task of its namespace."""
    mounts = process.namespace.mounts if process.written else ()
    for mount in mounts:
        task = mount.service
        if isinstance(task, TaskFs) and f"{mount.path}/{RESULT}" in process.written:
            return task.result
    return None


def _end(stop: BaseException | None, outcome: RunOutcome) -> tuple[int, Reason, str, str]:
    """Return the exit code, the reason, the message and the trap of a run."""
    match stop:
        case Exit():
            return stop.code & 0xFF, Reason.EXIT, "", ""
        case Halt():
            return EXIT_CODES[stop.reason], stop.reason, stop.message, ""
        case BaseException():
            raise stop
    trap = outcome.trap
    if trap is not None:
        code = trap.trap_code
        if code is wasmtime.TrapCode.INTERRUPT:
            return EXIT_CODES[Reason.TIMEOUT], Reason.TIMEOUT, "the time is over", ""
        reason = TRAPS.get(code, Reason.TRAP) if code is not None else Reason.TRAP
        return EXIT_CODES[reason], reason, trap.message, "" if code is None else code.name
    if outcome.error is not None:
        message = str(outcome.error)
        if not outcome.started and "memory" in message and "limit" in message:
            return EXIT_CODES[Reason.MEMORY], Reason.MEMORY, message, ""
        raise ModuleError(f"the program cannot be started: {message}")
    return 0, Reason.EXIT, "", ""
