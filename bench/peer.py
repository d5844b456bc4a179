"""The peer: SWE-ReX, a runtime for sandboxes that does some of the same jobs.

It is no requirement of anything here: where it is not installed, it is not compared with.
"""

import importlib
import importlib.util
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.cores import on_server_core

__all__ = ["ABSENT", "Peer", "is_installed", "peer"]

ABSENT = "swe-rex is not installed"
TOKEN = "a-token-of-some-length-for-the-bench"


def is_installed() -> bool:
    """Tells whether SWE-ReX can be compared with."""
    return importlib.util.find_spec("swerex") is not None


@dataclass(frozen=True, slots=True)
class Peer:
    """A server of SWE-ReX, with its own client."""

    client: Any
    """Its `RemoteRuntime`."""
    models: Any
    """The module of its requests and answers."""
    pid: int
    """The server's process."""

    async def run(self, command: str) -> str:
        """Runs a shell command and gives what it printed."""
        answer = await self.client.execute(self.models.Command(command=command, shell=True))
        return str(answer.stdout)

    async def upload(self, source: Path, target: Path) -> None:
        """Sends a file."""
        paths = {"source_path": str(source), "target_path": str(target)}
        await self.client.upload(self.models.UploadRequest(**paths))

    async def ready(self) -> None:
        """Waits until the server answers, as its deployments do."""
        await self.client.wait_until_alive(timeout=60)


@contextmanager
def peer() -> Iterator[Peer]:
    """Starts a server of SWE-ReX; it may not listen yet."""
    remote = importlib.import_module("swerex.runtime.remote")
    models = importlib.import_module("swerex.runtime.abstract")
    quiet = logging.getLogger("bench.peer")
    quiet.setLevel(logging.CRITICAL)
    port = _free_port()
    command = ["-m", "swerex.server", "--host", "127.0.0.1", "--port", str(port)]
    with on_server_core():
        process = subprocess.Popen(
            [sys.executable, *command, "--auth-token", TOKEN],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "SWE_REX_LOG_STREAM_LEVEL": "ERROR"},
        )
    try:
        address = {"host": "http://127.0.0.1", "port": port, "auth_token": TOKEN}
        yield Peer(remote.RemoteRuntime(logger=quiet, **address), models, process.pid)
    finally:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
