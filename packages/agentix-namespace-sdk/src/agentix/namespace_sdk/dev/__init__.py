"""Runs a namespace on this machine, makes it anew at each save, and prints each call."""

import argparse
import asyncio
from pathlib import Path

__all__ = ["HELP", "add_arguments", "run"]

HELP = "run a namespace, reload it on save, print each call"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `agentix-namespace dev`."""
    parser.add_argument("path", type=Path, metavar="PATH", help="the directory of the namespace")
    parser.add_argument(
        "--socket",
        type=Path,
        metavar="FILE",
        help="the Unix socket to listen on; by default one in a directory of its own",
    )
    parser.add_argument(
        "--isolation",
        choices=("namespaces", "none"),
        default="namespaces",
        help="none where this machine's kernel lets no sandbox be made",
    )


def run(options: argparse.Namespace) -> int:
    """Serves until it is interrupted, and leaves nothing behind.

    Raises:
        ManifestError: The directory holds no namespace.
        DeploymentError: A sandbox cannot be made here.
    """
    from agentix.namespace_sdk.build.project import Project
    from agentix.namespace_sdk.dev.workshop import serve

    project = Project.read(options.path)
    socket = None if options.socket is None else options.socket.absolute()
    asyncio.run(serve(project.source, socket, options.isolation))
    return 0
