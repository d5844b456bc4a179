"""Write a typed stub package from an image, a bundle or a sandbox that runs."""

import argparse
import asyncio
import os
from pathlib import Path

from agentix.errors import UsageError

__all__ = ["HELP", "add_arguments", "run"]

HELP = "write typed stubs for callers who do not install the namespace"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `agentix-namespace stubs`."""
    parser.add_argument(
        "target",
        metavar="IMAGE|URL|PATH",
        help="an image, the URL of a runtime (http:// or unix:), a bundle or a source tree",
    )
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="where to; by default <name>-stubs"
    )
    parser.add_argument(
        "--runtime", metavar="IMAGE", help="the runtime that describes an image; by default ours"
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="the token of a URL; by default that of the variable AGENTIX_TOKEN",
    )


def run(options: argparse.Namespace) -> int:
    """Write the stubs, and print the package of each namespace and where it is.

    Raises:
        UsageError: A namespace cannot be described, or a directory holds something else.
        DeploymentError: A sandbox cannot be made of an image or a bundle.
        SandboxGoneError: Nothing answers at a URL.
    """
    from agentix.namespace_sdk.stubs.package import describe, write_stubs

    described = asyncio.run(describe(options.target, options.runtime, _token(options.token_file)))
    if not described.namespaces:
        raise UsageError(f"{options.target} has no namespace")
    for path in write_stubs(described, options.output):
        print(path)
    return 0


def _token(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get("AGENTIX_TOKEN") or None
    return file.read_text(encoding="ascii").strip()
