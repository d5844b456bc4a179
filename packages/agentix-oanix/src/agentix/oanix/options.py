"""Options that several subcommands of `agentix-oanix` have, and what they mean."""

import argparse
import json
import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from agentix.oanix.errors import NamespaceError, OanixError
from agentix.oanix.fs.host import WorkspaceFs
from agentix.oanix.namespace import Namespace, NamespaceBuilder
from agentix.oanix.profile import minimal
from agentix.oanix.run import LARGEST

__all__ = [
    "add_command_line",
    "add_limits",
    "add_mounts",
    "make_environment",
    "make_namespace",
    "take_command_line",
]


def add_mounts(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what a program sees."""
    parser.add_argument("--mount", action="append", default=[], metavar="GUEST=HOST[:ro]")
    parser.add_argument(
        "--namespace", type=Path, metavar="FILE", help="start from this specification, as JSON"
    )


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how a program is run."""
    add_mounts(parser)
    parser.add_argument("--env", action="append", default=[], metavar="K=V")
    parser.add_argument("--fuel", type=_count, metavar="N", help="units, about one an instruction")
    parser.add_argument("--timeout", type=_seconds, metavar="S", help="seconds")
    parser.add_argument("--memory", type=_count, metavar="BYTES")
    parser.add_argument("--deterministic", action="store_true")


def _count(text: str) -> int:
    """Read a limit that is a whole number."""
    if not text.isdecimal() or int(text) >= LARGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 to {LARGEST - 1}")
    return int(text)


def _seconds(text: str) -> float:
    """Read a limit of time."""
    with suppress(ValueError):
        seconds = float(text)
        if 0 < seconds < math.inf:
            return seconds
    raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")


def add_command_line(parser: argparse.ArgumentParser, what: str) -> None:
    """Add what is run and its arguments, which are passed on as they are.

    They are one argument to the parser, which would drop a `--` between two.
    """
    parser.add_argument("command_line", nargs=argparse.REMAINDER, help=what)


def take_command_line(options: argparse.Namespace) -> tuple[str, Sequence[str]]:
    """Return what is run, and its arguments.

    Raises:
        OanixError: Nothing is to be run.
    """
    words: list[str] = options.command_line
    first, *arguments = (words[1:] if words[:1] == ["--"] else words) or [""]
    if not first:
        raise OanixError("what is to be run is missing: see --help")
    return first, arguments


def make_environment(options: argparse.Namespace) -> dict[str, str]:
    """Return the environment variables of `--env`.

    Raises:
        OanixError: One has no equals sign.
    """
    for pair in options.env:
        if "=" not in pair:
            raise OanixError(f"--env {pair}: write it as K=V")
    return dict(pair.partition("=")[::2] for pair in options.env)


def make_namespace(options: argparse.Namespace) -> NamespaceBuilder:
    """Start the namespace of `--namespace` and `--mount`.

    Without a specification it has memory at `/tmp` and devices at `/dev`.

    Raises:
        NamespaceError: The specification is malformed.
        OanixError: A mount is malformed.
    """
    builder = minimal() if options.namespace is None else _read_specification(options.namespace)
    _mount(builder, options.mount)
    return builder


def _read_specification(path: Path) -> NamespaceBuilder:
    try:
        spec = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise NamespaceError(f"{path} is no JSON: {error}") from error
    if not isinstance(spec, dict):
        raise NamespaceError(f"{path} is no namespace: `agentix-oanix ns show` prints one")
    # `ns show` prints the digest beside what a specification is made of.
    parts = {name: value for name, value in spec.items() if name != "digest"}
    builder = NamespaceBuilder()
    for mount in Namespace.from_spec(parts).mounts:
        more = {"readonly": mount.readonly, "mode": mount.mode, "source": mount.source}
        builder.mount(mount.path, mount.service, **more)  # type: ignore[arg-type] # as they were
    return builder


def _mount(builder: NamespaceBuilder, mounts: Sequence[str]) -> None:
    for mount in mounts:
        guest, equals, host = mount.partition("=")
        if not equals:
            raise OanixError(f"--mount {mount}: write it as GUEST=HOST or GUEST=HOST:ro")
        readonly = host.endswith(":ro")
        builder.mount(guest, WorkspaceFs(host.removesuffix(":ro")), readonly=readonly)
