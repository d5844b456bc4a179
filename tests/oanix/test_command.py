"""The command: streams and exit codes pass through, and nothing else is printed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "agentix.oanix"]


@pytest.fixture
def program(files_wasm: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "files.wasm").write_bytes(files_wasm)
    return str(tmp_path / "files.wasm")


def call(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*COMMAND, *arguments], input=given, capture_output=True, timeout=60)


def test_streams_and_exit_code_pass_through(program: str, tmp_path: Path) -> None:
    copied = call("run", program, "copy", given=b"\x00\xffbytes")
    assert (copied.returncode, copied.stdout, copied.stderr) == (0, b"\x00\xffbytes", b"")
    assert call("run", program, "exit", "7").returncode == 7
    shown = call("run", "--env", "A=b=c", program, "show", "--fuel")
    assert shown.stdout == b"arg[files.wasm]\narg[show]\narg[--fuel]\nenv[A=b=c]\n"


def test_a_host_directory_is_mounted_as_asked(program: str, tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    where = f"/w={tmp_path / 'w'}"
    assert call("run", "--mount", where, program, "put", "/w/f", "text").returncode == 0
    assert (tmp_path / "w" / "f").read_text() == "text"
    refused = call("run", "--mount", f"{where}:ro", program, "put", "/w/f", "x")
    assert (refused.returncode, refused.stdout) == (1, b"open=Read-only file system\n")


def test_limits_have_their_exit_codes(program: str) -> None:
    trapped = call("run", program, "abort")
    assert trapped.returncode == 134
    assert b"agentix-oanix: trap: " in trapped.stderr
    assert b"unreachable" in trapped.stderr
    late = call("run", "--timeout", "0.2", program, "loop")
    assert (late.returncode, late.stdout) == (124, b"")
    assert call("run", "--fuel", "10", program, "loop").returncode == 137


def test_an_interrupt_ends_the_program(program: str) -> None:
    command = [*COMMAND, "run", program, "flood", "4000000000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert os.read(process.stdout.fileno(), 1) == b"x"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130


def test_a_recording_is_replayed(program: str, tmp_path: Path) -> None:
    trace = str(tmp_path / "trace")
    recorded = call("run", "--deterministic", "--record", trace, program, "chance")
    replayed = call("replay", trace, program)
    assert (replayed.returncode, replayed.stdout) == (0, recorded.stdout)
    assert len(recorded.stdout) > 16


def test_a_namespace_is_shown(tmp_path: Path) -> None:
    shown = json.loads(call("ns", "show", "--mount", f"/w={tmp_path}:ro").stdout)
    assert len(shown["digest"]) == 64
    assert shown["mounts"][-1]["path"] == "/w"
    assert shown["mounts"][-1]["readonly"] is True


def test_a_wrong_call_says_what_is_wrong(program: str, tmp_path: Path) -> None:
    refused = call("run", "--mount", "/w", program)
    assert (refused.returncode, refused.stdout) == (125, b"")
    assert refused.stderr == b"agentix-oanix: --mount /w: write it as GUEST=HOST or GUEST=HOST:ro\n"
    (tmp_path / "text.wasm").write_text("text")
    assert call("run", str(tmp_path / "text.wasm")).returncode == 125
