"""The command: streams and exit codes pass through, and nothing else is printed."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
import wasmtime

from agentix.oanix.jobs import Completed, JobQueue
from agentix.oanix.jobs.store import JobDirectory, lock_holder
from tests.oanix.job_processes import GUESTS, wait_until
from tests.oanix.programs import compile_guest

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
    dashes = call("run", "--", program, "show", "--", "x", "--")
    assert dashes.stdout == b"arg[files.wasm]\narg[show]\narg[--]\narg[x]\narg[--]\n"


def test_standard_error_passes_through(tmp_path: Path) -> None:
    (tmp_path / "steps.wasm").write_bytes(compile_guest(GUESTS / "steps.c"))
    run = call("run", str(tmp_path / "steps.wasm"), "complain", "bad", "print", "good", "exit", "1")
    assert (run.returncode, run.stdout, run.stderr) == (1, b"good\n", b"bad\n")


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
    assert call("run", "--memory", "65536", program, "show").returncode == 137


def test_what_a_run_came_to_is_written_where_it_is_asked_for(program: str, tmp_path: Path) -> None:
    report = tmp_path / "result.json"
    call("run", "--result", str(report), program, "abort")
    result = json.loads(report.read_text())
    assert (result["exit_code"], result["reason"]) == (134, "trap")
    assert (result["trap_code"], result["host_calls"] > 0) == ("UNREACHABLE", True)


def test_an_interrupt_ends_the_program(program: str) -> None:
    command = [*COMMAND, "run", program, "flood", "4000000000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert os.read(process.stdout.fileno(), 1) == b"x"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130


def test_a_program_whose_output_nobody_reads_ends(tmp_path: Path) -> None:
    """The program ignores that it cannot write, and would go on for good."""
    source = tmp_path / "forever.c"
    source.write_text('#include <stdio.h>\nint main(void) { for (;;) puts("y"); }\n')
    (tmp_path / "forever.wasm").write_bytes(compile_guest(source))
    command = [*COMMAND, "run", str(tmp_path / "forever.wasm")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"y\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 141


def test_a_recording_is_replayed(program: str, tmp_path: Path) -> None:
    trace = str(tmp_path / "trace")
    recorded = call("run", "--deterministic", "--record", trace, program, "chance")
    replayed = call("replay", trace, program)
    assert (replayed.returncode, replayed.stdout) == (0, recorded.stdout)
    assert len(recorded.stdout) > 16
    alone = call("replay", trace)
    assert (alone.returncode, alone.stdout) == (0, recorded.stdout)
    Path(program).unlink()
    assert call("replay", trace).stdout == recorded.stdout


def test_a_recording_from_elsewhere_needs_its_program(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = str(tmp_path / "trace")
    call("run", "--record", trace, program, "show")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    refused = call("replay", trace)
    assert (refused.returncode, refused.stdout) == (125, b"")
    assert b"is missing: name the program, as replay FILE PROG.wasm" in refused.stderr
    assert call("replay", trace, program).stdout == b"arg[files.wasm]\narg[show]\n"


def test_what_is_no_recording_is_refused_in_a_line(program: str) -> None:
    refused = call("replay", program)
    assert (refused.returncode, refused.stdout) == (125, b"")
    assert refused.stderr == f"agentix-oanix: {program} is not a trace: it is not text\n".encode()


def test_a_file_that_is_no_namespace_is_refused(program: str, tmp_path: Path) -> None:
    path = tmp_path / "namespace.json"
    path.write_text("[]")
    refused = call("run", "--namespace", str(path), program)
    assert (refused.returncode, refused.stdout) == (125, b"")
    expected = f"agentix-oanix: {path} is no namespace: `agentix-oanix ns show` prints one\n"
    assert refused.stderr == expected.encode()


def test_a_namespace_is_shown(tmp_path: Path) -> None:
    shown = json.loads(call("ns", "show", "--mount", f"/w={tmp_path}:ro").stdout)
    assert len(shown["digest"]) == 64
    assert shown["mounts"][-1]["path"] == "/w"
    assert shown["mounts"][-1]["readonly"] is True
    saved = tmp_path / "namespace.json"
    saved.write_text(json.dumps(shown))
    assert json.loads(call("ns", "show", "--namespace", str(saved)).stdout) == shown


def test_a_wrong_call_says_what_is_wrong(program: str, tmp_path: Path) -> None:
    refused = call("run", "--mount", "/w", program)
    assert (refused.returncode, refused.stdout) == (125, b"")
    assert refused.stderr == b"agentix-oanix: --mount /w: write it as GUEST=HOST or GUEST=HOST:ro\n"
    (tmp_path / "text.wasm").write_text("text")
    assert call("run", str(tmp_path / "text.wasm")).returncode == 125
    assert call("run").stderr == b"agentix-oanix: what is to be run is missing: see --help\n"
    assert call("run", "--env", "A", program).stderr == b"agentix-oanix: --env A: write it as K=V\n"


@pytest.mark.parametrize(
    "limit",
    [
        ("--fuel", "-1"),
        ("--fuel", str(1 << 64)),
        ("--memory", "-65536"),
        ("--memory", "1e6"),
        ("--timeout", "-1"),
        ("--timeout", "0"),
        ("--timeout", "nan"),
        ("--timeout", "inf"),
    ],
)
def test_a_limit_that_limits_nothing_is_refused(program: str, limit: tuple[str, str]) -> None:
    refused = call("run", *limit, program, "exit", "7")
    assert (refused.returncode, refused.stdout) == (2, b"")
    assert f"argument {limit[0]}: '{limit[1]}' is no ".encode() in refused.stderr


def slow_module() -> bytes:
    """Make a module of one function that takes seconds to compile and is never called."""
    count = 400
    body = "".join(
        f"(if (i64.eqz (local.get {n % count})) (then (local.set {n * 7 % count}"
        f" (i64.mul (local.get {n * 3 % count}) (local.get {n * 5 % count})))))"
        for n in range(20 * count)
    )
    function = f"(func (local {'i64 ' * count}) {body})"
    start = '(memory (export "memory") 1) (func (export "_start"))'
    return bytes(wasmtime.wat2wasm(f"(module {function} {start})"))


def run_on_terminal(*arguments: str) -> tuple[bytes, bytes]:
    """Run the command with a terminal as its standard error; return both outputs."""
    ours, theirs = pty.openpty()
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        shown = b"".join(read_terminal(ours))
        output, _ = process.communicate(timeout=60)
    os.close(ours)
    assert process.returncode == 0
    return output, shown


def read_terminal(number: int) -> Iterator[bytes]:
    """Read until the other end is closed, which Linux reports as EIO."""
    try:
        while data := os.read(number, 1 << 16):
            yield data
    except OSError:
        return


def test_a_terminal_is_told_about_slow_compiling(program: str, tmp_path: Path) -> None:
    slow = tmp_path / "slow.wasm"
    slow.write_bytes(slow_module())
    output, shown = run_on_terminal("run", str(slow))
    assert output == b""
    assert shown.startswith(b"\r\x1b[Kcompiling slow.wasm ... 1 s")
    assert shown.endswith(b"\r\x1b[K")
    assert run_on_terminal("run", str(slow)) == (b"", b"")
    assert run_on_terminal("run", program, "show", "x")[1] == b""


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's own queue, in a directory of the test; what was started for it is ended."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    queue = tmp_path / "state/agentix-oanix/jobs"
    yield queue
    if queue.exists():
        manager = JobDirectory(queue).manager
        pid = lock_holder(manager)
        if pid is not None:
            os.kill(pid, signal.SIGTERM)
        wait_until(lambda: lock_holder(manager) is None)


def submit(*arguments: str) -> str:
    """Submit a job, and return its number, which is all that is printed."""
    submitted = call("job", "submit", *arguments)
    assert (submitted.returncode, submitted.stderr) == (0, b"")
    number = submitted.stdout.decode()
    assert number == f"{UUID(number.strip())}\n"
    return number.strip()


def test_a_submitted_job_runs_in_the_background(program: str, queue: Path) -> None:
    job = submit("--tag", "one", "--env", "A=b", program, "show", "--", "x")
    Path(program).unlink()
    followed = call("job", "logs", "-f", job)
    shown = b"arg[files.wasm]\narg[show]\narg[--]\narg[x]\nenv[A=b]\n"
    assert (followed.returncode, followed.stdout, followed.stderr) == (0, shown, b"")
    waited = call("job", "wait", job)
    assert (waited.returncode, waited.stdout, waited.stderr) == (0, b"", b"")
    listed = call("job", "list").stdout.decode()
    assert listed == f"{job}  completed 0      0  wasi  one\n"
    (line,) = call("job", "list", "--json").stdout.splitlines()
    assert json.loads(line) == json.loads(call("job", "show", job).stdout)
    assert json.loads(line)["status"] == {"status": "completed", "exit_code": 0}
    rest = call("job", "logs", "--json", "--stdout-offset", str(len(shown) - 4), job)
    assert json.loads(rest.stdout) == {
        "stream": "stdout",
        "offset": len(shown) - 4,
        "data": "PWJdCg==",
    }


def test_followed_logs_come_while_the_job_runs(program: str, queue: Path, tmp_path: Path) -> None:
    (tmp_path / "steps.wasm").write_bytes(compile_guest(GUESTS / "steps.c"))
    (tmp_path / "w").mkdir()
    steps = ("print", "begun", "await", "/w/go", "complain", "bad", "exit", "3")
    job = submit("--mount", f"/w={tmp_path / 'w'}", str(tmp_path / "steps.wasm"), *steps)
    command = [*COMMAND, "job", "logs", "--follow", job]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        late = call("job", "wait", "--timeout", "0.01", job)
        assert (late.returncode, late.stdout) == (124, b"")
        (tmp_path / "w" / "go").touch()
        assert process.communicate(timeout=60) == (b"", b"bad\n")
    assert call("job", "wait", job).returncode == 3


def test_an_interrupt_ends_following_and_not_the_job(
    program: str, queue: Path, tmp_path: Path
) -> None:
    (tmp_path / "steps.wasm").write_bytes(compile_guest(GUESTS / "steps.c"))
    job = submit(str(tmp_path / "steps.wasm"), "print", "begun", "loop")
    command = [*COMMAND, "job", "logs", "-f", job]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == (b"", b"")
    assert process.returncode == 130
    cancelled = call("job", "cancel", job)
    assert (cancelled.returncode, cancelled.stdout, cancelled.stderr) == (0, b"", b"")
    assert call("job", "wait", job).returncode == 130


def test_a_queue_is_run_in_the_foreground(program: str, queue: Path, tmp_path: Path) -> None:
    elsewhere = ("--queue", str(tmp_path / "own"))
    (tmp_path / "job.json").write_text(
        json.dumps({"kind": {"type": "agent_tool", "name": "list", "args": ["/"]}, "priority": 1})
    )
    first = call("job", *elsewhere, "submit", "--no-start", program, "exit", "4")
    second = call("job", *elsewhere, "submit", "--no-start", "--spec", str(tmp_path / "job.json"))
    listed = call("job", *elsewhere, "list").stdout.decode().splitlines()
    assert [line.split()[1] for line in listed] == ["pending", "pending"]
    ran = call("job", *elsewhere, "run", "--max-concurrent", "1")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"", b"")
    for submitted, code in ((first, 4), (second, 0)):
        number = submitted.stdout.decode().strip()
        assert call("job", *elsewhere, "wait", number).returncode == code
    assert not queue.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", str(UUID(int=0))), f"there is no job {UUID(int=0)}"),
        (("cancel", str(UUID(int=0))), f"there is no job {UUID(int=0)}"),
        (("logs", "-f", str(UUID(int=0))), f"there is no job {UUID(int=0)}"),
        (("submit", "/missing.wasm"), "[Errno 2] No such file or directory: '/missing.wasm'"),
        (("submit", "--retries", "-1", "--tool", "x"), "this is no job: 1 validation error"),
        (("submit", "--spec", "/dev/null"), "this is no job: 1 validation error"),
        (("run", "--max-concurrent", "0"), "a manager runs at least one job at once, and not 0"),
    ],
)
def test_a_wrong_call_about_a_job_says_what_is_wrong(
    queue: Path, arguments: tuple[str, ...], message: str
) -> None:
    refused = call("job", *arguments)
    assert (refused.returncode, refused.stdout) == (125, b"")
    assert refused.stderr.decode().startswith(f"agentix-oanix: {message}")


def test_a_word_that_is_no_jobs_number_is_refused(queue: Path) -> None:
    refused = call("job", "show", "mine")
    assert (refused.returncode, refused.stdout) == (2, b"")
    assert b"'mine' is no job's number: see `agentix-oanix job list`" in refused.stderr


def test_a_damaged_queue_is_refused(tmp_path: Path) -> None:
    (tmp_path / "jobs.sqlite").write_bytes(b"no database" * 100)
    refused = call("job", "--queue", str(tmp_path), "list")
    assert (refused.returncode, refused.stdout) == (125, b"")
    assert refused.stderr.endswith(b"jobs.sqlite cannot be used: file is not a database\n")


def test_ended_jobs_are_forgotten_when_they_are_pruned(program: str, tmp_path: Path) -> None:
    elsewhere = ("--queue", str(tmp_path / "own"))
    with JobQueue(tmp_path / "own") as jobs:
        first = call("job", *elsewhere, "submit", "--no-start", program, "show")
        ended = UUID(first.stdout.decode().strip())
        assert call("job", *elsewhere, "run").returncode == 0
        assert call("job", *elsewhere, "prune", "--days", "1").returncode == 0
        assert jobs.output(ended) == b"arg[files.wasm]\narg[show]\n"
        after = ("--after", str(ended), program, "exit", "0")
        call("job", *elsewhere, "submit", "--no-start", *after)
        for path in jobs.directory.programs.iterdir():
            os.utime(path, (0, 0))
        unused = jobs.keep_program(b"new"), jobs.keep_program(b"old")
        os.utime(unused[1], (0, 0))
        pruned = call("job", *elsewhere, "prune")
        assert (pruned.returncode, pruned.stdout, pruned.stderr) == (0, b"", b"")
        (left,) = jobs.jobs()
        assert left.spec.after == (ended,)
        assert [path.name for path in (jobs.directory.path / "logs").iterdir()] == [
            str(left.spec.id)
        ]
        assert [path.exists() for path in unused] == [True, False]
        assert jobs.prune() == 0
        assert call("job", *elsewhere, "run").returncode == 0
        assert jobs.get(left.spec.id).status == Completed(exit_code=0)


def test_submitting_at_once_makes_one_queue_with_one_manager(program: str, queue: Path) -> None:
    command = [*COMMAND, "job", "submit", program, "exit", "3"]
    submitting = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(5)]
    numbers = [process.communicate(timeout=60)[0].decode().strip() for process in submitting]
    assert [process.returncode for process in submitting] == [0] * 5
    with JobQueue(queue) as jobs:
        for number in numbers:
            assert jobs.wait(UUID(number), 60).status == Completed(exit_code=3)
        assert len(jobs.jobs()) == 5
    assert (queue / "manager.log").read_text() == ""
