"""Programs in namespaces: what they are given, what they do to files, and what they may not use."""

import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import pytest
import wasmtime

from agentix.oanix import (
    Cancellation,
    Function,
    FunctionFs,
    Machine,
    MemFs,
    Namespace,
    OanixEnv,
    Reason,
    RunConfig,
    StreamPipe,
    WorkspaceFs,
)
from agentix.oanix import machine as machine_module
from agentix.oanix.errors import (
    EngineError,
    ModuleError,
    NamespaceError,
    OanixError,
    UnknownImportError,
)
from agentix.oanix.fs.host import HostNode
from agentix.oanix.node import FsNode
from agentix.oanix.wasi import runner
from tests.oanix.conftest import Run
from tests.oanix.oracle import OracleMachine, OracleRunner

EMPTY = Namespace()


def test_another_wasmtime_is_refused_and_the_supported_one_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "version", lambda _: "51.0.0")
    monkeypatch.setattr(machine_module, "check_engine", runner.probe_engine)
    message = "wasmtime 51.0.0 is installed, and OANIX runs with 50.0.*: install 'wasmtime==50.0.*'"
    with pytest.raises(EngineError, match=f"^{re.escape(message)}$"):
        Machine()


def test_an_engine_with_another_interface_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    runner.probe_engine()
    monkeypatch.setitem(runner.SLOT, "I", "I12x")
    with pytest.raises(EngineError, match=r"^host calls differ with wasmtime 50\.0"):
        runner.probe_engine()


def test_the_probe_accepts_what_the_oracle_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "WasiRunner", OracleRunner)
    runner.probe_engine()


@pytest.mark.parametrize("code", [0, 1, 7, 125, 126, 255])
def test_a14_exit_codes_pass_through(run: Run, code: int) -> None:
    result = run("exit", str(code))
    assert (result.exit_code, result.reason) == (code, Reason.EXIT)


def test_a15_a_trap_has_its_code_and_the_stack(run: Run) -> None:
    result = run("abort")
    assert (result.exit_code, result.reason) == (134, Reason.TRAP)
    assert result.trap_code == "UNREACHABLE"
    assert "wasm backtrace" in result.message


def test_a16_arguments_and_environment_arrive_as_they_are(run: Run) -> None:
    result = run("show", "", "ü→", "two\nlines", environment={"A": "", "B": "é=\n"})
    expected = "arg[files]\narg[show]\narg[]\narg[ü→]\narg[two\nlines]\nenv[A=]\nenv[B=é=\n]\n"
    assert result.stdout.decode() == expected


def test_a17_standard_input_ends_after_its_bytes(run: Run) -> None:
    data = bytes(range(256)) * 100
    assert run("copy", stdin=data).stdout == data


def test_a18_output_is_whole_and_comes_live(run: Run) -> None:
    pieces: list[int] = []
    result = run("flood", str(3 << 20), stdout=lambda piece: pieces.append(len(piece)))
    assert len(result.stdout) == 3 << 20
    assert len(pieces) == 3 << 10
    short = run("flood", str(1 << 20), keep_output=1000)
    assert (len(short.stdout), short.truncated) == (1000, True)


def test_a19_memory_that_grew_is_seen(run: Run) -> None:
    assert run("grow", "/tmp/f").stdout == b"tail\n"


def test_a21_an_unlinked_file_can_be_read_while_open(run: Run, memory: MemFs) -> None:
    assert run("unlinked", "/tmp/f").stdout == b"still here\nagain=No such file or directory\n"
    assert memory.used == 0


def test_a22_appends_of_two_descriptors_follow_each_other(run: Run) -> None:
    assert run("append", "/tmp/f").stdout == b"abcd"


def test_a25_a_control_file_answers_in_the_open_file(run: Run) -> None:
    requests: list[bytes] = []

    def answer(request: bytes) -> bytes:
        requests.append(request)
        if request == b"bad\n":
            raise ValueError("refused")
        return request.upper()

    services = FunctionFs({"ctl": Function(lambda: b"status", answer)})
    namespace = Namespace.builder().mount("/cap", services).build()
    assert run("ask", "/cap/ctl", '{"a": 1}', namespace=namespace).stdout == b'{"A": 1}'
    assert run("ask", "/cap/ctl", "no newline", namespace=namespace).stdout == b"NO NEWLINE"
    assert (
        run("ask", "/cap/ctl", "bad\n", namespace=namespace).stdout == b"write=Invalid argument\n"
    )
    assert run("cat", "/cap/ctl", namespace=namespace).stdout == b"status"
    assert requests == [b'{"a": 1}', b"no newline", b"bad\n"]


def test_a_file_that_another_process_makes_meanwhile_is_opened(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = HostNode.create

    def create_late(directory: HostNode, name: str) -> FsNode:
        (tmp_path / name).write_bytes(b"of another process")
        return create(directory, name)

    monkeypatch.setattr(HostNode, "create", create_late)
    namespace = Namespace.builder().mount("/w", WorkspaceFs(tmp_path)).build()
    assert run("put", "/w/program", "text", namespace=namespace).exit_code == 0
    namespace.write("/w/host", b"text")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "program": "text",
        "host": "text",
    }


def test_a26_gaps_are_zeros(run: Run) -> None:
    assert run("sparse", "/tmp/f").stdout == b"000000000000000000780000\n"


def test_a27_the_oracle_does_the_same(files_wasm: bytes) -> None:
    results = []
    for machine in (Machine(), OracleMachine()):
        namespace = Namespace.builder().mount("/tmp", MemFs()).build()
        config = RunConfig(arguments=("files", "sparse", "/tmp/f"), deterministic=True)
        result = machine.run(files_wasm, namespace, config)
        results.append((result.stdout, result.fuel, result.host_calls, result.files_written))
    assert results[0] == results[1]
    assert results[0][3] == ("/tmp/f",)


@pytest.mark.parametrize(
    ("text", "named", "kind"),
    [
        ('(module (import "env" "f" (func)))', "env.f", UnknownImportError),
        (
            '(module (import "wasi_snapshot_preview1" "thread_spawn" (func)))',
            "wasi_snapshot_preview1.thread_spawn",
            UnknownImportError,
        ),
        (
            '(module (import "wasi_snapshot_preview1" "fd_close" (func (param i64))))',
            "fd_close with another signature",
            UnknownImportError,
        ),
        ('(module (import "env" "memory" (memory 1)))', "env.memory", UnknownImportError),
        ('(module (import "env" "m" (memory 1 2 shared)))', "env.m is shared", ModuleError),
        ('(module (memory (export "m") i64 1))', "m is of 64 bits", ModuleError),
        ("(module", "not a module", ModuleError),
        ("(module)", "no export named _start", ModuleError),
    ],
)
def test_a28_a_module_that_cannot_run_names_the_cause(
    machine: Machine, text: str, named: str, kind: type[Exception]
) -> None:
    with pytest.raises(kind, match=named):
        machine.run(text.encode(), EMPTY)


def test_a29_a_loop_ends_at_its_deadline(run: Run) -> None:
    run("exit", "0")
    started = time.monotonic()
    result = run("loop", timeout=0.2)
    assert (result.exit_code, result.reason) == (124, Reason.TIMEOUT)
    assert 0.2 <= time.monotonic() - started < 1.0


def test_a30_a_waiting_read_is_cancelled(run: Run) -> None:
    cancellation, pipe = Cancellation(), StreamPipe()
    pipe.send(b"before")
    seen = threading.Event()

    def cancel() -> None:
        seen.wait()
        cancellation.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    result = run("copy", stdin=pipe, cancellation=cancellation, stdout=lambda _: seen.set())
    thread.join()
    assert (result.exit_code, result.reason) == (130, Reason.CANCELLED)
    assert result.stdout == b"before"


def test_a30_a_waiting_read_ends_at_its_deadline(run: Run) -> None:
    result = run("copy", stdin=StreamPipe(), timeout=0.1)
    assert (result.exit_code, result.reason) == (124, Reason.TIMEOUT)


async def test_a30_cancelling_the_call_stops_the_program(files_wasm: bytes) -> None:
    env = OanixEnv(EMPTY)
    with anyio.move_on_after(0.2) as scope:
        await env.run_wasi(files_wasm, RunConfig(arguments=("files", "loop")))
    assert scope.cancelled_caught
    result = await env.run_wasi(files_wasm, RunConfig(arguments=("files", "exit", "3")))
    assert result.exit_code == 3


def test_a31_fuel_is_exact_and_repeatable(run: Run) -> None:
    used = run("show").fuel
    assert run("show").fuel == used
    assert run("show", fuel=used).exit_code == 0
    stopped = run("loop", fuel=1_000_000)
    assert (stopped.exit_code, stopped.reason) == (137, Reason.FUEL)
    assert stopped.fuel == 1_000_000
    assert run("show", fuel=0).reason is Reason.FUEL


def test_a32_memory_is_limited_when_it_grows_and_at_the_start(run: Run) -> None:
    assert run("grow", "/tmp/f", memory=20 << 20).stdout == b"no memory\n"
    refused = run("show", memory=1 << 16)
    assert (refused.exit_code, refused.reason) == (137, Reason.MEMORY)


def test_a33_deep_recursion_ends(run: Run) -> None:
    result = run("recurse")
    assert result.exit_code == 134
    assert result.reason in (Reason.STACK, Reason.TRAP)


NESTED = """(module (memory (export "memory") 1)
 (func $down (param i32) (if (local.get 0)
  (then (call $down (i32.sub (local.get 0) (i32.const 1))))))
 (func (export "_start") (call $down (i32.const 8000))))"""


def test_a33_the_stack_is_as_big_as_asked_for(machine: Machine) -> None:
    wasm = bytes(wasmtime.wat2wasm(NESTED))
    assert machine.run(wasm, EMPTY, RunConfig(stack=4 << 20)).reason is Reason.EXIT
    small = machine.run(wasm, EMPTY, RunConfig(stack=50_000))
    assert (small.exit_code, small.reason) == (134, Reason.STACK)
    program = machine.load(wasm, stack=65_536)
    assert machine.run(program, EMPTY, RunConfig(stack=50_000)).reason is Reason.STACK
    with pytest.raises(ModuleError, match="loaded for a stack of 65536 bytes, not of 131072"):
        machine.run(program, EMPTY, RunConfig(stack=100_000))
    with pytest.raises(OanixError, match="a stack of 8388608 bytes"):
        machine.run(wasm, EMPTY, RunConfig(stack=8 << 20))


def test_a_preopen_must_be_a_directory_of_the_namespace(run: Run, memory: MemFs) -> None:
    memory.write("/file", b"")
    assert run("cat", "in", preopens={".": "/tmp"}).stdout == b"open=No such file or directory\n"
    for path in ("/tmp/file", "/missing"):
        with pytest.raises(NamespaceError, match=f"{path} cannot be open from the start"):
            run("cat", "in", preopens={".": path})


def test_threads_run_programs_at_once(files_wasm: bytes) -> None:
    machine = Machine()

    def one(number: int) -> tuple[bytes, Reason]:
        namespace = Namespace.builder().mount("/tmp", MemFs()).build()
        what = ("loop",) if number % 3 == 0 else ("put", "/tmp/f", str(number))
        config = RunConfig(arguments=("files", *what), timeout=0.1 if number % 3 == 0 else 30.0)
        result = machine.run(files_wasm, namespace, config)
        return namespace.read("/tmp/f") if number % 3 else b"", result.reason

    with ThreadPoolExecutor(4) as executor:
        results = list(executor.map(one, range(12)))
    for number, (content, reason) in enumerate(results):
        expected = (str(number).encode(), Reason.EXIT) if number % 3 else (b"", Reason.TIMEOUT)
        assert (content, reason) == expected


def test_runs_leave_no_open_files(run: Run, tmp_path: Path) -> None:
    namespace = Namespace.builder().mount("/w", WorkspaceFs(tmp_path)).build()
    run("put", "/w/f", "text", namespace=namespace)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        run("cat", "/w/f", namespace=namespace)
        run("unlinked", "/w/g", namespace=namespace)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_flood_of_output_is_stopped(run: Run) -> None:
    result = run("flood", str(1 << 30), output=1 << 20)
    assert (result.exit_code, result.reason) == (137, Reason.OUTPUT)


def test_a34_deterministic_runs_are_equal(run: Run) -> None:
    results = [run("chance", deterministic=True, seed=7) for _ in range(2)]
    assert results[0].stdout == results[1].stdout
    assert results[0].fuel == results[1].fuel
    assert run("chance", deterministic=True, seed=8).stdout != results[0].stdout
    assert run("chance").stdout != run("chance").stdout


def test_a37_the_virtual_clock_starts_at_its_date(run: Run) -> None:
    _, seconds, monotone = run("chance", deterministic=True).stdout.split()
    assert (int(seconds), monotone) == (1_577_836_800, b"1")


def test_a36_nan_payloads_are_canonical(machine: Machine) -> None:
    text = """(module
     (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
     (memory (export "memory") 1)
     (func (export "_start") (local $x f32)
      (local.set $x (f32.reinterpret_i32 (i32.const 0x7fa12345)))
      (call $exit (i32.eq (i32.reinterpret_f32 (f32.add (local.get $x) (f32.const 1)))
       (i32.const 0x7fc00000)))))"""
    wasm = bytes(wasmtime.wat2wasm(text))
    assert machine.run(wasm, EMPTY, RunConfig(deterministic=True)).exit_code == 1
    assert machine.run(wasm, EMPTY).exit_code == 0


def test_compiled_programs_are_kept_in_a_private_directory(
    files_wasm: bytes, tmp_path: Path
) -> None:
    cache = tmp_path / "modules"
    for _ in range(2):
        config = RunConfig(arguments=("files", "exit", "5"))
        assert Machine(cache).run(files_wasm, EMPTY, config).exit_code == 5
    assert [path.suffix for path in cache.iterdir()] == [".cwasm"]
    assert cache.stat().st_mode & 0o777 == 0o700
    cache.chmod(0o755)
    with pytest.raises(OanixError, match="trusted code"):
        Machine(cache)


@pytest.mark.parametrize(
    "limits",
    [
        {"fuel": -1},
        {"fuel": 1 << 64},
        {"memory": -1},
        {"output": -1},
        {"stack": -1},
        {"timeout": -0.1},
        {"timeout": float("nan")},
    ],
)
def test_a_limit_that_limits_nothing_is_refused(limits: dict[str, Any]) -> None:
    ((name, value),) = limits.items()
    with pytest.raises(OanixError, match=f"{name}={value} is no limit: give "):
        RunConfig(**limits)
