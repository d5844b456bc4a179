"""The command `agentix-oanix`: runs a program, shows a namespace, replays a recording."""

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from agentix.oanix.errors import OanixError
from agentix.oanix.fs.device import DeviceFs
from agentix.oanix.fs.host import WorkspaceFs
from agentix.oanix.fs.memory import MemFs
from agentix.oanix.machine import Machine
from agentix.oanix.namespace import Namespace, NamespaceBuilder
from agentix.oanix.program import Program
from agentix.oanix.run import RunConfig, RunResult
from agentix.oanix.stop import Cancellation, Reason
from agentix.oanix.trace import Trace
from agentix.oanix.wasi.stream import Pipe

__all__ = ["main"]

SLOW = 1.0
"""Seconds of compiling after which a terminal is told about it."""

CHUNK = 1 << 16


def main(arguments: Sequence[str] | None = None) -> int:
    """Does what the command line says, and gives the exit code."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.act(options))
    except (OanixError, OSError) as error:
        print(f"agentix-oanix: {error}", file=sys.stderr)
        return 125


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="agentix-oanix", description=__doc__)
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="run a WASI program in a namespace")
    _add_mounts(run)
    run.add_argument("--env", action="append", default=[], metavar="K=V")
    run.add_argument("--fuel", type=int, metavar="N")
    run.add_argument("--timeout", type=float, metavar="S", help="seconds")
    run.add_argument("--memory", type=int, metavar="BYTES")
    run.add_argument("--deterministic", action="store_true")
    run.add_argument("--record", type=Path, metavar="FILE")
    run.add_argument("program", type=Path, metavar="PROG.wasm")
    run.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARG")
    run.set_defaults(act=_run)
    shown = commands.add_parser("ns", help="about namespaces").add_subparsers(required=True)
    show = shown.add_parser("show", help="print a namespace as JSON, with its digest")
    _add_mounts(show)
    show.set_defaults(act=_show)
    replay = commands.add_parser("replay", help="run a program again from a recording")
    replay.add_argument("recording", type=Path, metavar="FILE")
    replay.add_argument("program", type=Path, metavar="PROG.wasm")
    replay.set_defaults(act=_replay)
    return parser


def _add_mounts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mount", action="append", default=[], metavar="GUEST=HOST[:ro]")


def _namespace(mounts: Sequence[str]) -> Namespace:
    """Makes a namespace of a host's directories, with memory at `/tmp` and devices at `/dev`."""
    builder = NamespaceBuilder().mount("/tmp", MemFs()).mount("/dev", DeviceFs())  # noqa: S108
    for mount in mounts:
        guest, equals, host = mount.partition("=")
        if not equals:
            raise OanixError(f"--mount {mount}: write it as GUEST=HOST or GUEST=HOST:ro")
        readonly = host.endswith(":ro")
        builder.mount(guest, WorkspaceFs(host.removesuffix(":ro")), readonly=readonly)
    return builder.build()


def _run(options: argparse.Namespace) -> int:
    """Runs a program with the command's own streams."""
    environment = dict(pair.partition("=")[::2] for pair in options.env)
    cancellation, stdin = Cancellation(), Pipe()
    config = RunConfig(
        arguments=(options.program.name, *options.arguments),
        environment=environment,
        stdin=stdin,
        stdout=lambda piece: _write(1, piece),
        stderr=lambda piece: _write(2, piece),
        keep_output=0,
        output=None,
        fuel=options.fuel,
        timeout=options.timeout,
        memory=options.memory,
        deterministic=options.deterministic,
        cancellation=cancellation,
        record=options.record is not None,
    )
    namespace, machine = _namespace(options.mount), Machine(_cache())
    program = _load(machine, options.program, deterministic=options.deterministic)
    threading.Thread(target=_feed, args=(stdin,), name="stdin", daemon=True).start()
    signal.signal(signal.SIGINT, lambda *_: cancellation.cancel())
    with ThreadPoolExecutor(1, "program") as executor:
        result = executor.submit(machine.run, program, namespace, config).result()
    if options.record is not None and result.trace is not None:
        result.trace.save(options.record)
    return _report(result)


def _report(result: RunResult) -> int:
    if result.reason is not Reason.EXIT:
        print(f"agentix-oanix: {result.reason}: {result.message}", file=sys.stderr)
    return result.exit_code


def _replay(options: argparse.Namespace) -> int:
    trace, machine = Trace.load(options.recording), Machine(_cache())
    program = _load(machine, options.program, deterministic=trace.deterministic)
    result = machine.replay(program, trace)
    _write(1, result.stdout)
    _write(2, result.stderr)
    return _report(result)


def _show(options: argparse.Namespace) -> int:
    namespace = _namespace(options.mount)
    print(json.dumps({"digest": namespace.digest, **namespace.spec()}, indent=2))
    return 0


def _load(machine: Machine, path: Path, deterministic: bool) -> Program:
    """Loads a program, and says on a terminal that it takes its time."""
    timer = threading.Timer(SLOW, print, [f"compiling {path.name} ..."], {"file": sys.stderr})
    if sys.stderr.isatty():
        timer.start()
    try:
        return machine.load(path.read_bytes(), deterministic=deterministic)
    finally:
        timer.cancel()


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "agentix-oanix" / "modules"


def _feed(stdin: Pipe) -> None:
    """Passes the command's standard input on, as it comes."""
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
