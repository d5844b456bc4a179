"""Recording and replay, and determinism as the trace shows it."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentix.oanix import Machine, MemFs, Namespace, Reason, RunConfig, RunResult, StreamPipe, Trace
from agentix.oanix.errors import ReplayError
from tests.oanix.oracle import OracleMachine


def record(machine: Machine, wasm: bytes, *arguments: str, stdin: bytes = b"") -> RunResult:
    namespace = Namespace.builder().mount("/tmp", MemFs({"in": b"content"})).build()
    config = RunConfig(
        arguments=("files", *arguments), stdin=stdin, deterministic=True, record=True
    )
    return machine.run(wasm, namespace, config)


def trace_of(result: RunResult) -> Trace:
    assert result.trace is not None
    return result.trace


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "é"),
        ("list", "/tmp"),
        ("cat", "/tmp/in"),
        ("cat", "/missing"),
        ("change", "/tmp"),
        ("chance",),
        ("copy",),
        ("exit", "7"),
    ],
)
def test_a35_a_replay_needs_no_services(
    machine: Machine, files_wasm: bytes, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    recorded = record(machine, files_wasm, *arguments, stdin=b"some input")
    path = tmp_path / "trace"
    trace_of(recorded).save(path)
    replayed = machine.replay(files_wasm, Trace.load(path))
    assert (replayed.stdout, replayed.exit_code) == (recorded.stdout, recorded.exit_code)
    assert (replayed.fuel, replayed.host_calls) == (recorded.fuel, recorded.host_calls)


def test_a35_the_first_call_that_differs_is_reported(machine: Machine, files_wasm: bytes) -> None:
    trace = trace_of(record(machine, files_wasm, "cat", "/tmp/in"))
    place = next(i for i, call in enumerate(trace.calls) if call.name == "fd_read")
    address, data = trace.calls[place].outputs[1]
    assert data == b"content"
    trace.calls[place].outputs[1] = address, b"CONTENT"
    with pytest.raises(ReplayError, match=rf"call {place + 1}, fd_write.*CONTENT.*content"):
        machine.replay(files_wasm, trace)
    del trace.calls[place:]
    with pytest.raises(ReplayError, match=f"call {place} is fd_read.*the recording ends"):
        machine.replay(files_wasm, trace)


@pytest.mark.parametrize(
    ("arguments", "limits", "reason"),
    [
        (("loop",), {"fuel": 100_000}, Reason.FUEL),
        (("loop",), {"timeout": 0.1}, Reason.TIMEOUT),
        (("copy",), {"timeout": 0.1, "stdin": StreamPipe()}, Reason.TIMEOUT),
        (("flood", "1000000"), {"output": 5000}, Reason.OUTPUT),
        (("grow", "/tmp/f"), {"memory": 20 << 20}, Reason.EXIT),
        (("show",), {"memory": 1 << 16}, Reason.MEMORY),
        (("abort",), {}, Reason.TRAP),
        (("recurse",), {"stack": 1 << 16}, Reason.STACK),
    ],
)
def test_a35_a_replay_ends_by_the_limit_that_ended_the_run(
    machine: Machine,
    files_wasm: bytes,
    arguments: tuple[str, ...],
    limits: dict[str, Any],
    reason: Reason,
    tmp_path: Path,
) -> None:
    namespace = Namespace.builder().mount("/tmp", MemFs()).build()
    config = RunConfig(arguments=("files", *arguments), record=True, **limits)
    recorded = machine.run(files_wasm, namespace, config)
    assert recorded.reason is reason
    path = tmp_path / "trace"
    trace_of(recorded).save(path)
    replayed = machine.replay(files_wasm, Trace.load(path))
    for name in ("reason", "exit_code", "trap_code", "stdout", "host_calls"):
        assert getattr(replayed, name) == getattr(recorded, name), name


def test_the_digest_of_the_trace_is_part_of_the_result(
    machine: Machine, files_wasm: bytes, tmp_path: Path
) -> None:
    recorded = record(machine, files_wasm, "change", "/tmp")
    path = tmp_path / "trace"
    trace_of(recorded).save(path)
    assert recorded.trace_digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert record(machine, files_wasm, "change", "/tmp").trace_digest == recorded.trace_digest
    assert record(machine, files_wasm, "cat", "/tmp/in").trace_digest != recorded.trace_digest
    assert machine.run(files_wasm, Namespace()).trace_digest == ""


def test_a_recording_of_another_program_is_refused(machine: Machine, files_wasm: bytes) -> None:
    with pytest.raises(ReplayError, match="another program"):
        machine.replay(files_wasm, Trace("0" * 64, deterministic=True))


def test_a_file_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("{}\n")
    with pytest.raises(ReplayError, match="not a trace"):
        Trace.load(tmp_path / "x")


@pytest.mark.parametrize(
    ("part", "value"),
    [("result", "x"), ("outputs", [["x", ""]]), ("arguments", [None]), ("stream", {})],
)
def test_a_trace_with_a_call_that_is_none_is_refused(
    machine: Machine, files_wasm: bytes, tmp_path: Path, part: str, value: object
) -> None:
    path = tmp_path / "trace"
    trace_of(record(machine, files_wasm, "exit", "7")).save(path)
    first, call, *rest = path.read_text().splitlines()
    changed = json.dumps(json.loads(call) | {part: value})
    path.write_text("\n".join([first, changed, *rest]))
    with pytest.raises(ReplayError, match="trace is not a trace: "):
        Trace.load(path)


SCRIPT = """
import sys
from pathlib import Path
from agentix.oanix import Machine
from tests.oanix.test_trace import record, trace_of
result = record(Machine(), Path(sys.argv[1]).read_bytes(), "list", "/tmp")
print(trace_of(result).digest, result.fuel, result.stdout)
"""


def test_a34_traces_are_equal_in_every_process(files_wasm: bytes, tmp_path: Path) -> None:
    (tmp_path / "program.wasm").write_bytes(files_wasm)
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "program.wasm")]
    root = Path(__file__).parents[2]
    printed = {
        subprocess.run(command, capture_output=True, text=True, check=True, cwd=root).stdout
        for _ in range(2)
    }
    own = record(Machine(), files_wasm, "list", "/tmp")
    assert printed == {f"{trace_of(own).digest} {own.fuel} {own.stdout!r}\n"}


def test_a27_the_oracle_has_the_same_trace(files_wasm: bytes) -> None:
    traces = [
        trace_of(record(machine, files_wasm, "change", "/tmp")).digest
        for machine in (Machine(), OracleMachine())
    ]
    assert traces[0] == traces[1]
