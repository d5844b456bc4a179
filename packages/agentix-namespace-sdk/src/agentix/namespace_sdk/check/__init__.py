"""Check a namespace against the protocol: a source tree, a bundle or an image.

check ──► rules     what can be broken, each rule beside its function
    ├──► source     a source tree: manifest, layout, stubs; `importing` in a child process
    ├──► closure    a bundle, and what an image holds under `/nix`
    ├──► image      an image of the Docker engine
    └──► report     text, JSON, GitHub's annotations, `--explain`
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from agentix.errors import AgentixError, UsageError

if TYPE_CHECKING:
    from agentix.namespace_sdk.check.rules import Finding

__all__ = ["HELP", "add_arguments", "check", "run"]

HELP = "check a source tree, a bundle or an image against the protocol"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `agentix-namespace check`."""
    parser.add_argument("target", nargs="?", metavar="PATH|IMAGE", help="what to check")
    parser.add_argument(
        "-o", "--output", choices=("text", "json", "github"), default="text", help="the format"
    )
    parser.add_argument("--explain", metavar="CODE", help="explain a rule, such as AGX202")


def check(target: str) -> "list[Finding]":
    """Check a source tree, a bundle or an image.

    ```python
    from agentix.namespace_sdk.check import check

    assert check("namespaces/mock-agent") == []
    ```

    Args:
        target: The path of a directory, or the reference of an image of the Docker engine. A
            directory with `entry` is a bundle.

    Returns:
        What was found, in the order of places.

    Raises:
        UsageError: There is no such directory or image.
        DeploymentError: The Docker engine refuses.
    """
    from agentix.namespace_sdk.check.closure import check_bundle
    from agentix.namespace_sdk.check.source import check_source

    if Path(target, "entry").is_dir() or Path(target, "entry").is_symlink():
        found = check_bundle(Path(target))
    elif Path(target).is_dir():
        found = check_source(Path(target))
    elif target.startswith(("/", ".", "~")):
        raise UsageError(f"{target}: there is no such directory")
    else:
        from agentix.namespace_sdk.check.image import check_image_until_terminated

        found = check_image_until_terminated(target)
    return sorted(set(found), key=lambda item: (item.file, item.line or 0, item.code, item.message))


def run(options: argparse.Namespace) -> int:
    """Check what was given, or explain a rule; return 1 where a rule is broken.

    Raises:
        UsageError: There is nothing of that name, or it cannot be read.
    """
    from agentix.namespace_sdk.check.report import FORMATS, explain
    from agentix.namespace_sdk.check.rules import find_rule

    if options.explain is not None:
        print(explain(find_rule(options.explain)))
        return 0
    if options.target is None:
        raise UsageError("a target is needed: agentix-namespace check PATH|IMAGE")
    target = str(options.target)
    try:
        findings = check(target)
    except (AgentixError, OSError) as error:
        raise UsageError(str(error)) from error
    report = FORMATS[options.output](target, findings)
    if report:
        print(report)
    return 1 if findings else 0
