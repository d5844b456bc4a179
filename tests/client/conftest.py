"""Fixtures for the tests of the client."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentix.wire import READY_PREFIX
from tests.client import probe
from tests.client.raw import Place

TOKEN = "correct horse battery staple"


@dataclass(frozen=True)
class Runtime:
    """A real runtime in a process of its own, with the namespace `probe`."""

    url: str
    token: str
    workspace: Path
    process: "subprocess.Popen[str]"


@pytest.fixture(params=["tcp", "unix"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Where the test's servers listen; each test runs once on TCP, once on a Unix socket."""
    return Place(tmp_path / "socket" if request.param == "unix" else None)


@pytest.fixture
def unused_tcp_url() -> Iterator[str]:
    """A URL where nobody listens, and nobody else can while the test runs."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


@pytest.fixture(params=["tcp", "unix"], scope="module")
def runtime(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runtime]:
    """A runtime shared by the tests of a module, once on TCP, once on a Unix socket."""
    root = tmp_path_factory.mktemp("runtime")
    mount_probe(root / "mnt")
    (root / "token").write_text(TOKEN)
    binding = (
        {"AGENTIX_BIND_PORT": "0"} if request.param == "tcp" else {"AGENTIX_BIND_UNIX": f"{root}/s"}
    )
    environment = (
        os.environ
        | binding
        | {
            "AGENTIX_MOUNT_ROOT": f"{root}/mnt",
            "AGENTIX_UPLOAD_ROOT": f"{root}/workspace",
            "AGENTIX_TOKEN_FILE": f"{root}/token",
        }
    )
    command = [sys.executable, "-m", "agentix.runtime"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(READY_PREFIX), line
        yield Runtime(line.removeprefix(READY_PREFIX).strip(), TOKEN, root / "workspace", process)
        process.terminate()
        process.wait(20)


def mount_probe(mounts: Path) -> None:
    """Lays the namespace out as a deployment would."""
    entry = mounts / "c1" / "entry"
    shutil.copytree(Path(probe.__path__[0]), entry / "python" / "agentix_namespaces" / "probe")
    manifest = {"abi": 1, "name": "probe", "version": "1.0.0", "package": probe.PACKAGE}
    (entry / "manifest.json").write_text(json.dumps(manifest))
