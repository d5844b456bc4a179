"""Makes a namespace from a template: an agent, a dataset or a tool."""

import argparse

from agentix.errors import UsageError

__all__ = ["HELP", "add_arguments", "run"]

HELP = "make a namespace from a template"

KINDS = ("agent", "dataset", "tool")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `agentix-namespace new`."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="such as my-namespace")
    parser.add_argument("--kind", choices=KINDS, help="what the namespace is")


def run(options: argparse.Namespace) -> int:
    """Makes the namespace that was asked for."""
    raise UsageError(f"{options.name}: there are no templates yet")
