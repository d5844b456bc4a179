"""The command `agentix-oanix`: runs programs and jobs, shows namespaces, replays recordings."""

import argparse
import json
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from agentix.oanix.errors import OanixError, ReplayError
from agentix.oanix.jobs.command import add_job_parsers
from agentix.oanix.jobs.job import RunSummary
from agentix.oanix.machine import Machine
from agentix.oanix.options import (
    add_command_line,
    add_limits,
    add_mounts,
    make_environment,
    make_namespace,
    take_command_line,
)
from agentix.oanix.places import keep_program, modules_directory, programs_directory
from agentix.oanix.program import CompiledProgram
from agentix.oanix.run import RunConfig, RunResult
from agentix.oanix.stop import Cancellation, Reason
from agentix.oanix.trace import Trace
from agentix.oanix.wasi.stream import StreamPipe

__all__ = ["main"]


CHUNK = 1 << 16

PROGRESS_SECONDS = 1.0
"""Seconds before a terminal shows that something takes its time, and between two looks."""

CLEAR_LINE = "\r\x1b[K"
"""The sequence that empties a terminal's line (ECMA-48)."""

REFUSED = 125
"""The exit code where the command itself fails, as of env(1) and docker(1)."""

INTERRUPTED, BROKEN_PIPE = 130, 141
"""The exit codes of a shell for what SIGINT and SIGPIPE have ended."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says, and return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.act(options))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Nobody reads standard output any more, and Python would complain about it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return BROKEN_PIPE
    except (OanixError, OSError, sqlite3.Error) as error:
        print(f"agentix-oanix: {error}", file=sys.stderr)
        return REFUSED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="agentix-oanix", description=__doc__)
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser(
        "run",
        help="run a WASI program in a namespace",
        usage="%(prog)s [OPTION]... PROG.wasm [ARG]...",
    )
    add_limits(run)
    run.add_argument("--record", type=Path, metavar="FILE", help="write the trace of host calls")
    run.add_argument("--result", type=Path, metavar="FILE", help="write what it came to, as JSON")
    add_command_line(run, "the program and its arguments")
    run.set_defaults(act=_run)
    shown = commands.add_parser("ns", help="about namespaces").add_subparsers(required=True)
    show = shown.add_parser("show", help="print a namespace as JSON, with its digest")
    add_mounts(show)
    show.set_defaults(act=_show)
    replay = commands.add_parser("replay", help="run a program again from a recording")
    replay.add_argument("recording", type=Path, metavar="FILE")
    replay.add_argument(
        "program", type=Path, nargs="?", metavar="PROG.wasm", help="where it was recorded elsewhere"
    )
    replay.set_defaults(act=_replay)
    add_job_parsers(commands.add_parser("job", help="about jobs that run from a queue"))
    return parser


def _run(options: argparse.Namespace) -> int:
    """Run a program with the command's own streams."""
    name, arguments = take_command_line(options)
    path, cancellation, stdin = Path(name), Cancellation(), StreamPipe()
    outputs = _Outputs(cancellation)
    config = RunConfig(
        arguments=(path.name, *arguments),
        environment=make_environment(options),
        stdin=stdin,
        stdout=outputs.stdout,
        stderr=outputs.stderr,
        keep_output=0,
        output=None,
        fuel=options.fuel,
        timeout=options.timeout,
        memory=options.memory,
        deterministic=options.deterministic,
        cancellation=cancellation,
        record=options.record is not None,
    )
    namespace, machine = make_namespace(options).build(), _machine()
    program = _load(machine, path, deterministic=options.deterministic)
    threading.Thread(target=_feed, args=(stdin,), name="stdin", daemon=True).start()
    signal.signal(signal.SIGINT, lambda *_: cancellation.cancel())
    with ThreadPoolExecutor(1, "program") as executor:
        result = executor.submit(machine.run, program, namespace, config).result()
    if options.record is not None and result.trace is not None:
        result.trace.save(options.record)
        keep_program(programs_directory(os.environ), path.read_bytes())
    if options.result is not None:
        options.result.write_text(RunSummary.of("program", result).model_dump_json() + "\n")
    if outputs.broken and result.reason is Reason.CANCELLED:
        raise BrokenPipeError
    return _report(result)


class _Outputs:
    """The command's own outputs, which end a program when nobody reads them, as SIGPIPE does."""

    def __init__(self, cancellation: Cancellation) -> None:
        self._cancellation = cancellation
        self.broken = False
        """Nobody reads an output any more."""

    def stdout(self, piece: bytes) -> None:
        """Pass a piece of standard output on."""
        self._pass(1, piece)

    def stderr(self, piece: bytes) -> None:
        """Pass a piece of standard error on."""
        self._pass(2, piece)

    def _pass(self, number: int, piece: bytes) -> None:
        try:
            _write(number, piece)
        except BrokenPipeError:
            self.broken = True
            self._cancellation.cancel()
            raise


def _report(result: RunResult) -> int:
    if result.reason is not Reason.EXIT:
        print(f"agentix-oanix: {result.reason}: {result.message}", file=sys.stderr)
    return result.exit_code


def _replay(options: argparse.Namespace) -> int:
    trace, machine = Trace.load(options.recording), _machine()
    path = options.program or programs_directory(os.environ) / trace.program
    if not path.exists():
        raise ReplayError(f"{path} is missing: name the program, as replay FILE PROG.wasm")
    program = _load(machine, path, deterministic=trace.deterministic)
    result = machine.replay(program, trace)
    _write(1, result.stdout)
    _write(2, result.stderr)
    return _report(result)


def _show(options: argparse.Namespace) -> int:
    namespace = make_namespace(options).build()
    print(json.dumps({"digest": namespace.digest, **namespace.spec()}, indent=2))
    return 0


def _load(machine: Machine, path: Path, deterministic: bool) -> CompiledProgram:
    """Load a program, and say on a terminal that it takes its time."""
    with _progress(f"compiling {path.name}"):
        return machine.load(path.read_bytes(), deterministic=deterministic)


def _machine() -> Machine:
    return Machine(modules_directory(os.environ))


def _feed(stdin: StreamPipe) -> None:
    """Pass the command's standard input on, as it comes."""
    try:
        while data := os.read(0, CHUNK):
            stdin.send(data)
    except OSError:
        pass
    stdin.finish()


def _write(number: int, data: bytes) -> None:
    view = memoryview(data)
    while len(view):
        view = view[os.write(number, view) :]


@contextmanager
def _progress(text: str) -> Iterator[None]:
    """Show a text and the seconds so far while the block takes longer than a second.

    It stands on standard error, if that is a terminal, and is gone afterwards.

    Args:
        text: What takes its time.
    """
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    thread = threading.Thread(
        target=_show_progress, args=(text, done), name="progress", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _show_progress(text: str, done: threading.Event) -> None:
    seconds = 0
    while not done.wait(PROGRESS_SECONDS):
        seconds += 1
        print(f"{CLEAR_LINE}{text} ... {seconds} s", end="", file=sys.stderr, flush=True)
    if seconds:
        print(CLEAR_LINE, end="", file=sys.stderr, flush=True)
