"""Checks a namespace against the protocol: a source tree, a bundle or an image."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from agentix.errors import AgentixError, UsageError

if TYPE_CHECKING:
    from agentix.namespace_sdk.check.finding import Finding

__all__ = ["HELP", "add_arguments", "check", "run"]

HELP = "check a source tree, a bundle or an image against the protocol"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `agentix-namespace check`."""
    parser.add_argument("target", metavar="PATH|IMAGE", help="what to check")
    parser.add_argument(
        "-o", "--output", choices=("text", "json", "github"), default="text", help="the format"
    )


def check(target: str) -> "list[Finding]":
    """Checks a source tree, a bundle or an image.

    Args:
        target: The path of a directory, or the reference of an image of the Docker engine. A
            directory with `entry` is a bundle.

    Returns:
        What was found, in the order of places.

    Raises:
        UsageError: There is no such directory or image.
        DeploymentError: The Docker engine refuses.
    """
    # Each of these takes a while to import, and no target needs all of them.
    if Path(target, "entry").is_dir() or Path(target, "entry").is_symlink():
        from agentix.namespace_sdk.check.closure import check_bundle

        found = check_bundle(Path(target))
    elif Path(target).is_dir():
        from agentix.namespace_sdk.check.source import check_source

        found = check_source(Path(target))
    elif target.startswith(("/", ".", "~")):
        raise UsageError(f"{target}: there is no such directory")
    else:
        from agentix.namespace_sdk.check.image import check_image_to_the_end

        found = check_image_to_the_end(target)
    return sorted(set(found), key=lambda item: (item.file, item.line or 0, item.code, item.message))


def run(options: argparse.Namespace) -> int:
    """Checks what was given, and gives 1 where a rule is broken.

    Raises:
        UsageError: There is nothing of that name, or it can not be looked at.
    """
    from agentix.namespace_sdk.check.report import FORMATS

    target = str(options.target)
    try:
        findings = check(target)
    except (AgentixError, OSError) as error:
        raise UsageError(str(error)) from error
    report = FORMATS[options.output](target, findings)
    if report:
        print(report)
    return 1 if findings else 0
