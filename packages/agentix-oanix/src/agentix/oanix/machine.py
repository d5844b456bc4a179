"""Machine: compiles programs and runs them in namespaces, one at a time in each thread."""

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import wasmtime

from agentix.oanix import clock, entropy
from agentix.oanix.cache import ModuleCache
from agentix.oanix.engine import Ticker, make_engine
from agentix.oanix.errors import ModuleError, ReplayError
from agentix.oanix.namespace import Namespace
from agentix.oanix.program import Program, check_imports, explain
from agentix.oanix.recording import Recorder, Replayer
from agentix.oanix.run import RunConfig, RunResult
from agentix.oanix.stop import Exit, Halt, Reason
from agentix.oanix.trace import Trace
from agentix.oanix.wasi.fast import FastSlot
from agentix.oanix.wasi.outcome import Outcome
from agentix.oanix.wasi.preview1 import Preview1
from agentix.oanix.wasi.process import Process
from agentix.oanix.wasi.public import PublicSlot
from agentix.oanix.wasi.selftest import FAST_PATH

__all__ = ["Machine"]

Slot = FastSlot | PublicSlot
REMEMBERED = 64
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
    wasmtime.TrapCode.INTERRUPT: Reason.TIMEOUT,
}


class Machine:
    """Compiles programs once and runs them many times.

    Args:
        cache: A private directory for compiled programs; `None` keeps them in memory alone.
        fast: Host functions are registered through the C interface; by default where it works.
    """

    def __init__(self, cache: Path | None = None, *, fast: bool = FAST_PATH) -> None:
        self._cache = ModuleCache(cache) if cache is not None else None
        self._slot_class = FastSlot if fast else PublicSlot
        self._lock = threading.Lock()
        self._engines: dict[bool, tuple[wasmtime.Engine, Ticker]] = {}
        self._programs: OrderedDict[tuple[bytes, bool], Program] = OrderedDict()
        self._idle: dict[bool, list[Slot]] = {False: [], True: []}

    def load(self, wasm: bytes, *, deterministic: bool = False) -> Program:
        """Compiles a program, or finds it compiled.

        Args:
            wasm: The module.
            deterministic: It is for deterministic runs, whose code differs.

        Raises:
            UnknownImportError: It imports what is not a function of WASI preview 1.
            ModuleError: It is no module, or one with features that this kernel does not run.
        """
        key = bytes(wasm), deterministic
        with self._lock:
            program = self._programs.get(key)
            if program is not None:
                self._programs.move_to_end(key)
                return program
        digest = hashlib.sha256(key[0]).hexdigest()
        program = Program(self._compile(key[0], deterministic), digest, deterministic)
        with self._lock:
            self._programs[key] = program
            if len(self._programs) > REMEMBERED:
                self._programs.popitem(last=False)
        return program

    def _compile(self, wasm: bytes, deterministic: bool) -> wasmtime.Module:
        engine, _ = self._engine(deterministic)
        try:
            if self._cache is None:
                module = wasmtime.Module(engine, wasm)
            else:
                module = self._cache.load(engine, wasm, f"deterministic={deterministic}")
        except wasmtime.WasmtimeError as error:
            raise explain(wasm, error) from error
        check_imports(module)
        return module

    def run(
        self, wasm: bytes | Program, namespace: Namespace, config: RunConfig | None = None
    ) -> RunResult:
        """Runs a program to its end in the calling thread.

        Args:
            wasm: The module, or the program that `load` made of it.
            namespace: What the program sees.
            config: What it is started with, and how much it may use.

        Raises:
            ModuleError: The module can not be run.
            NamespaceError: The namespace has no directory where a preopen names one.
        """
        config = config or RunConfig()
        program = (
            wasm
            if isinstance(wasm, Program)
            else self.load(wasm, deterministic=config.deterministic)
        )
        if config.record:
            return self._record(program, namespace, config)
        slot = self._take(program.deterministic)
        try:
            return _run(slot, program, namespace, config, self._engine(program.deterministic)[1])
        finally:
            self._idle[program.deterministic].append(slot)

    def _record(self, program: Program, namespace: Namespace, config: RunConfig) -> RunResult:
        engine, ticker = self._engine(program.deterministic)
        process = Preview1()
        trace = Trace(program.digest, program.deterministic)
        slot = self._slot_class(engine, process, Recorder(process, trace).wrap)
        return replace(_run(slot, program, namespace, config, ticker), trace=trace)

    def replay(self, wasm: bytes | Program, trace: Trace) -> RunResult:
        """Runs a program again from the trace of a run, without the services it had.

        Args:
            wasm: The module, or the program that `load` made of it.
            trace: The host calls of the run.

        Raises:
            ReplayError: It is another program, or the first call that differs is met.
        """
        deterministic = trace.deterministic
        program = (
            wasm if isinstance(wasm, Program) else self.load(wasm, deterministic=deterministic)
        )
        if program.digest != trace.program:
            raise ReplayError(f"the recording is of another program, {trace.program}")
        engine, ticker = self._engine(program.deterministic)
        process = Preview1()
        slot = self._slot_class(engine, process, Replayer(process, trace).wrap)
        return _run(slot, program, Namespace(), RunConfig(deterministic=deterministic), ticker)

    def _take(self, deterministic: bool) -> Slot:
        try:
            return self._idle[deterministic].pop()
        except IndexError:
            return self._slot_class(self._engine(deterministic)[0], Preview1())

    def _engine(self, deterministic: bool) -> tuple[wasmtime.Engine, Ticker]:
        found = self._engines.get(deterministic)
        if found is not None:
            return found
        with self._lock:
            if deterministic not in self._engines:
                engine = make_engine(deterministic)
                self._engines[deterministic] = engine, Ticker(engine)
            return self._engines[deterministic]


def _run(
    slot: Slot, program: Program, namespace: Namespace, config: RunConfig, ticker: Ticker
) -> RunResult:
    """Gives the slot's process to a program and tells what came of it."""
    process = slot.process
    prepared = program.prepared(slot)
    process.begin(config, namespace)
    try:
        if config.watched or config.deterministic:
            with _surrounded(process, ticker):
                outcome = slot.run(prepared, config)
        else:
            outcome = slot.run(prepared, config)
    finally:
        process.end()
    return _result(process, outcome)


@contextmanager
def _surrounded(process: Process, ticker: Ticker) -> Iterator[None]:
    """Has a run's limits looked at, and its own time and random bytes seen by services."""
    with ExitStack() as stack:
        if process.config.watched:
            stack.enter_context(ticker.running())
        if process.virtual is not None:
            stack.callback(clock.CLOCK.reset, clock.CLOCK.set(process.virtual.stamp))
            stack.callback(entropy.ENTROPY.reset, entropy.ENTROPY.set(process.random))
        yield


def _result(process: Process, outcome: Outcome) -> RunResult:
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
    return result


def _end(stop: BaseException | None, outcome: Outcome) -> tuple[int, Reason, str, str]:
    """Tells the exit code, the reason, the message and the trap of a run."""
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
        reason = TRAPS.get(code, Reason.TRAP) if code is not None else Reason.TRAP
        return EXIT_CODES[reason], reason, trap.message, "" if code is None else code.name
    if outcome.error is not None:
        message = str(outcome.error)
        if not outcome.started and "memory" in message and "limit" in message:
            return EXIT_CODES[Reason.MEMORY], Reason.MEMORY, message, ""
        raise ModuleError(f"the program can not be started: {message}")
    return 0, Reason.EXIT, "", ""
