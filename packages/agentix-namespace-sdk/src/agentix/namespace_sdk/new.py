"""Makes a namespace from a template: an agent, a dataset or a tool."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from agentix.errors import UsageError

__all__ = ["HELP", "add_arguments", "run"]

HELP = "make a namespace from a template"

DEFAULT_KIND = "tool"
KINDS = {
    "agent": "Runs an agent's program and streams what it prints.",
    "dataset": "Lists tasks, sets them up and scores them.",
    "tool": "Searches files for a regular expression.",
}
"""What a namespace can be made as, with what each says of itself unless told otherwise."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `agentix-namespace new`."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="such as my-namespace")
    parser.add_argument(
        "--kind",
        choices=KINDS,
        help="an agent wraps a command-line program, a dataset has tasks, a tool is one function",
    )
    parser.add_argument("--description", metavar="TEXT", help="one sentence")
    parser.add_argument(
        "--into", type=Path, default=Path(), metavar="DIRECTORY", help="where it goes; by default ."
    )


def run(options: argparse.Namespace) -> int:
    """Makes the namespace that was asked for, and says what to do next.

    Raises:
        UsageError: The name cannot be that of a namespace, or its directory is there already.
    """
    from agentix.namespace_sdk.template import NewNamespace, render

    asks = sys.stdin.isatty()
    name = options.name or _ask("name", "", asks)
    if not name:
        raise UsageError("a name is needed: agentix-namespace new my-namespace")
    new = NewNamespace.named(name)
    kind = options.kind or _ask("kind (agent, dataset or tool)", DEFAULT_KIND, asks)
    if kind not in KINDS:
        raise UsageError(f"there is no kind {kind!r}: choose one of {', '.join(KINDS)}")
    description = options.description or _ask("description", KINDS[kind], asks)
    made = render(new.described(kind, description), options.into)
    print(f"made {made}, a namespace of the kind {kind}; next:\n\n  cd {made}\n  pytest")
    return 0


def _ask(question: str, default: str, asks: bool, answer: Callable[[str], str] = input) -> str:
    """Gives what the terminal answers; the default where nobody is asked, or nobody answers."""
    if not asks:
        return default
    shown = f" [{default}]" if default else ""
    try:
        return answer(f"{question}{shown}: ").strip() or default
    except EOFError:
        return default
