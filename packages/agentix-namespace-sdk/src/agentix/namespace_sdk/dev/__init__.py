"""Run a namespace on this machine, reload it at each save, and print each call.

caller ──► Proxy ──► sandbox of the newest source, made by DevServer
                └──► sandbox of the source before, until its calls have ended
"""

import argparse
import asyncio
from pathlib import Path

__all__ = ["HELP", "add_arguments", "run"]

HELP = "run a namespace, reload it on save, print each call"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `agentix-namespace dev`."""
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
    """Serve until it is interrupted, and leave nothing behind.

    Raises:
        ManifestError: The directory holds no namespace.
        DeploymentError: A sandbox cannot be made here.
    """
    from agentix.namespace_sdk.build.project import Project
    from agentix.namespace_sdk.dev.server import serve

    project = Project.read(options.path)
    socket = None if options.socket is None else options.socket.absolute()
    asyncio.run(serve(project.source, socket, options.isolation))
    return 0
