"""Servers: each a process of its own on the server's core."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentix.local.bundle import make_namespace_bundle
from agentix.wire import READY_PREFIX
from bench.cores import on_server_core
from bench.stubs import NAMESPACE

__all__ = [
    "TOKEN",
    "Server",
    "floor",
    "prepared_root",
    "runtime",
    "runtime_environment",
    "runtime_in",
]

TOKEN = "a-token-of-some-length-for-the-bench"


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    url: str
    """Where it listens."""
    pid: int
    """Its process."""


@contextmanager
def floor() -> Iterator[Server]:
    """Serves the floor."""
    with _started([sys.executable, "-m", "bench.floor"], os.environ) as process:
        yield Server(_first_line(process), process.pid)


@contextmanager
def runtime(transport: Literal["tcp", "unix"] = "tcp") -> Iterator[Server]:
    """Serves a runtime with the bench's namespace mounted."""
    with prepared_root() as root, runtime_in(root, transport) as server:
        yield server


@contextmanager
def prepared_root() -> Iterator[Path]:
    """Lays out all that a runtime needs, in memory, as a local sandbox has it."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="bench-", dir=memory) as directory:
        root = Path(directory)
        bundle = make_namespace_bundle(NAMESPACE, root / "bundles" / "bench")
        (root / "mnt").mkdir()
        (root / "mnt" / "bench").symlink_to(bundle)
        (root / "token").write_text(TOKEN)
        yield root


@contextmanager
def runtime_in(root: Path, transport: Literal["tcp", "unix"] = "tcp") -> Iterator[Server]:
    """Serves a runtime that keeps all it has below a prepared directory."""
    environment = runtime_environment(root, transport)
    with _started([sys.executable, "-m", "agentix.runtime"], environment) as process:
        yield Server(_first_line(process).removeprefix(READY_PREFIX), process.pid)


def runtime_environment(root: Path, transport: Literal["tcp", "unix"] = "tcp") -> dict[str, str]:
    """Gives the environment of a runtime that keeps all it has below a directory."""
    binding = {"AGENTIX_BIND_PORT": "0"}
    if transport == "unix":
        binding = {"AGENTIX_BIND_UNIX": str(root / "socket")}
    return {
        **os.environ,
        **binding,
        "AGENTIX_MOUNT_ROOT": str(root / "mnt"),
        "AGENTIX_UPLOAD_ROOT": str(root / "workspace"),
        "AGENTIX_TOKEN_FILE": str(root / "token"),
    }


@contextmanager
def _started(
    command: list[str], environment: Mapping[str, str]
) -> Iterator["subprocess.Popen[str]"]:
    with on_server_core():
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _first_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line, "the server ended before it listened"
    return line
