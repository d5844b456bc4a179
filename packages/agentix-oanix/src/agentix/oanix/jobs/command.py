"""The subcommands of `agentix-oanix job`: submit, list, show, logs, wait, cancel, prune, run."""

import argparse
import base64
import json
import sys
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from pydantic import ValidationError

from agentix.oanix.errors import JobError
from agentix.oanix.fs.host import WorkspaceFs
from agentix.oanix.jobs.job import AgentTool, Completed, Failed, Job, JobSpec, Script, Wasi
from agentix.oanix.jobs.manager import MAX_CONCURRENT, Manager
from agentix.oanix.jobs.queue import JobQueue, LogChunk
from agentix.oanix.namespace import NamespaceBuilder, NamespaceSpec
from agentix.oanix.options import (
    add_command_line,
    add_limits,
    make_environment,
    make_namespace,
    take_command_line,
)

__all__ = ["add_job_parsers"]

FAILED, CANCELLED, TIMEOUT = 125, 130, 124
"""Exit codes of `job wait` for jobs that have no exit code of their own."""

DAY_SECONDS = 86400.0


def add_job_parsers(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands to the parser of `job`."""
    parser.add_argument("--queue", type=Path, metavar="DIRECTORY", help="where the jobs are")
    commands = parser.add_subparsers(required=True)
    submit = commands.add_parser(
        "submit",
        help="add a job, and print its number",
        usage="%(prog)s [OPTION]... PROG.wasm|SCRIPT|TOOL|FILE [ARG]...",
    )
    _add_submit(submit)
    listed = commands.add_parser("list", help="print the jobs, one a line")
    listed.add_argument("--json", action="store_true", help="as JSON, one job a line")
    listed.set_defaults(act=_list)
    _add(commands.add_parser("show", help="print a job as JSON"), _show)
    logs = _add(commands.add_parser("logs", help="print what a job writes"), _logs)
    logs.add_argument("-f", "--follow", action="store_true", help="until the job has ended")
    logs.add_argument("--json", action="store_true", help="as JSON, one piece a line")
    for stream in ("stdout", "stderr"):
        logs.add_argument(
            f"--{stream}-offset", type=int, default=0, metavar="N", help="bytes to leave out"
        )
    wait = _add(commands.add_parser("wait", help="wait for a job; exit with its code"), _wait)
    wait.add_argument("--timeout", type=float, metavar="S", help="seconds")
    _add(commands.add_parser("cancel", help="cancel a job"), _cancel)
    prune = commands.add_parser("prune", help="forget jobs that have ended, with their logs")
    prune.add_argument("--days", type=float, default=0.0, metavar="N", help="that long ago")
    prune.set_defaults(act=_prune)
    run = commands.add_parser("run", help="run the queue's jobs here until there are none")
    run.add_argument("--max-concurrent", type=int, default=MAX_CONCURRENT, metavar="N")
    run.add_argument("--keep", action="store_true", help="wait for more jobs when there are none")
    run.set_defaults(act=_run)


def _add(
    parser: argparse.ArgumentParser, act: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    """Make a subcommand about one job."""
    parser.add_argument("job", type=_job_number, metavar="JOB")
    parser.set_defaults(act=act)
    return parser


def _job_number(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError as error:
        message = f"{text!r} is no job's number: see `agentix-oanix job list`"
        raise argparse.ArgumentTypeError(message) from error


def _add_submit(parser: argparse.ArgumentParser) -> None:
    add_limits(parser)
    parser.add_argument("--priority", type=int, default=0, metavar="N", help="higher is sooner")
    parser.add_argument("--retries", type=int, default=0, metavar="N")
    parser.add_argument("--after", type=_job_number, action="append", default=[], metavar="JOB")
    parser.add_argument("--tag", action="append", default=[], metavar="WORD")
    parser.add_argument("--workdir", default="/", metavar="PATH", help="in the namespace")
    parser.add_argument("--record", action="store_true", help="keep the traces of host calls")
    parser.add_argument("--no-start", action="store_true", help="start no manager")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--script", action="store_true", help="run a script of the namespace")
    what.add_argument("--tool", action="store_true", help="call a registered tool")
    what.add_argument("--spec", action="store_true", help="take a job as JSON from a file, or -")
    add_command_line(parser, "what the job does; without an option, a program of this machine")
    parser.set_defaults(act=_submit)


def _submit(options: argparse.Namespace) -> int:
    with JobQueue(options.queue) as queue:
        try:
            spec = _make_spec(options, queue)
        except ValidationError as error:
            raise JobError(f"this is no job: {error}") from error
        print(queue.submit(spec, start=not options.no_start), flush=True)
    return 0


def _read_spec(name: str) -> JobSpec:
    text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    return JobSpec.model_validate_json(text)


def _make_spec(options: argparse.Namespace, queue: JobQueue) -> JobSpec:
    what, arguments = take_command_line(options)
    if options.spec:
        return _read_spec(what)
    builder = make_namespace(options)
    kind: Script | AgentTool | Wasi
    if options.script:
        kind = Script(script_path=what, arguments=tuple(arguments))
    elif options.tool:
        kind = AgentTool(name=what, args=tuple(arguments))
    else:
        kind = Wasi(program=_mount_program(builder, what, queue), arguments=tuple(arguments))
    return JobSpec(
        kind=kind,
        namespace=NamespaceSpec.model_validate(builder.build().spec()),
        priority=options.priority,
        env_vars=make_environment(options),
        working_dir=options.workdir,
        timeout_secs=options.timeout,
        retries=options.retries,
        after=tuple(options.after),
        tags=tuple(options.tag),
        fuel=options.fuel,
        memory=options.memory,
        deterministic=options.deterministic,
        record=options.record,
    )


def _mount_program(builder: NamespaceBuilder, name: str, queue: JobQueue) -> str:
    """Show a program of this machine in `/bin`, by its content of now, and return its path."""
    kept = queue.keep_program(Path(name).read_bytes())
    path = f"/bin/{Path(name).name}"
    builder.mount(path, WorkspaceFs(kept.parent), readonly=True, source=f"/{kept.name}")
    return path


def _list(options: argparse.Namespace) -> int:
    with JobQueue(options.queue) as queue:
        for job in queue.jobs():
            print(job.model_dump_json() if options.json else _line(job))
    return 0


def _line(job: Job) -> str:
    """Describe a job for people: number, status, priority, kind and tags."""
    status = job.status
    how = f"{status.status} {status.exit_code}" if isinstance(status, Completed) else status.status
    tags = ",".join(job.spec.tags)
    return (
        f"{job.spec.id}  {how:<13}  {job.spec.priority:>3}  {job.spec.kind.type}  {tags}".rstrip()
    )


def _show(options: argparse.Namespace) -> int:
    with JobQueue(options.queue) as queue:
        print(queue.get(options.job).model_dump_json(indent=2))
    return 0


def _logs(options: argparse.Namespace) -> int:
    """Pass a job's outputs on to this command's."""
    offsets = (options.stdout_offset, options.stderr_offset)
    with JobQueue(options.queue) as queue:
        for chunk in queue.logs(options.job, offsets=offsets, follow=options.follow):
            if options.json:
                print(_as_json(chunk), flush=True)
            else:
                output = sys.stdout if chunk.stream == "stdout" else sys.stderr
                output.buffer.write(chunk.data)
                output.buffer.flush()
    return 0


def _as_json(chunk: LogChunk) -> str:
    data = base64.b64encode(chunk.data).decode()
    return json.dumps({"stream": chunk.stream, "offset": chunk.offset, "data": data})


def _wait(options: argparse.Namespace) -> int:
    with JobQueue(options.queue) as queue:
        try:
            status = queue.wait(options.job, options.timeout).status
        except TimeoutError as error:
            print(f"agentix-oanix: {error}", file=sys.stderr)
            return TIMEOUT
    match status:
        case Completed():
            return status.exit_code
        case Failed():
            print(f"agentix-oanix: {status.error}", file=sys.stderr)
            return FAILED
        case _:
            return CANCELLED


def _cancel(options: argparse.Namespace) -> int:
    with JobQueue(options.queue) as queue:
        queue.cancel(options.job)
    return 0


def _prune(options: argparse.Namespace) -> int:
    with JobQueue(options.queue) as queue:
        queue.prune(options.days * DAY_SECONDS)
    return 0


def _run(options: argparse.Namespace) -> int:
    """Manage the queue in the foreground."""
    linger = None if options.keep else 0.0
    with JobQueue(options.queue) as queue:
        directory = queue.directory
    manager = Manager(directory, max_concurrent=options.max_concurrent, linger=linger)
    manager.stop_at_signals()
    manager.run()
    return 0
