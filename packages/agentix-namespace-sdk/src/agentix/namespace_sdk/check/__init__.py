"""Checks a namespace against the protocol: a source tree, a bundle or an image."""

import argparse

from agentix.errors import UsageError

__all__ = ["HELP", "add_arguments", "run"]

HELP = "check a source tree, a bundle or an image against the protocol"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `agentix-namespace check`."""
    parser.add_argument("target", metavar="PATH|IMAGE", help="what to check")
    parser.add_argument(
        "-o", "--output", choices=("text", "json", "github"), default="text", help="the format"
    )


def run(options: argparse.Namespace) -> int:
    """Checks what was given, and gives 1 where a rule is broken."""
    raise UsageError(f"{options.target}: there are no rules yet")
