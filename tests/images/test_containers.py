"""The runtime's image in task images of every kind, started as the architecture says."""

import http.client
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentix.namespace_sdk.build.archive import Archive
from tests.task_images import TASK_IMAGES

DEADLINE = 30.0
"""Seconds within which a runtime must answer on a busy machine."""

ENTRYPOINT = """
set -e
mkdir -p /nix/store
for store in /mnt/*/store; do
    set -- "$store"/*
    [ -e "$1" ] || continue
    ln -sfn "$@" /nix/store/
done
exec /mnt/runtime/entry/bin/start
"""


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=DEADLINE)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


@contextmanager
def started_runtime(image: str, volume: str, control: Path) -> Iterator[str]:
    command = ["docker", "run", "--detach", "--network", "none", "--user", "0:0"]
    command += ["--volume", f"{volume}:/mnt/runtime:ro", "--tmpfs", "/nix:exec,mode=755"]
    command += ["--volume", f"{control}:/control", "--env", "AGENTIX_BIND_UNIX=/control/socket"]
    command += ["--entrypoint", "/mnt/runtime/entry/bin/sh", image, "-c", ENTRYPOINT]
    started = subprocess.run(command, check=True, capture_output=True, text=True)
    container = started.stdout.strip()
    try:
        yield container
    finally:
        subprocess.run(["docker", "rm", "--force", container], check=True, capture_output=True)


def health_status(container: str, control: Path) -> int:
    """Asks until the runtime answers; a container that ends first fails at once."""
    give_up = time.monotonic() + DEADLINE
    while time.monotonic() < give_up:
        connection = UnixConnection(control / "socket")
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status
        except (FileNotFoundError, ConnectionRefusedError):
            assert is_running(container), f"the container ended:\n{logs(container)}"
        finally:
            connection.close()
    pytest.fail(f"no answer within {DEADLINE} s:\n{logs(container)}")


def is_running(container: str) -> bool:
    command = ["docker", "inspect", "--format", "{{.State.Running}}", container]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() == "true"


def logs(container: str) -> str:
    finished = subprocess.run(["docker", "logs", container], capture_output=True, text=True)
    return finished.stdout + finished.stderr


@pytest.mark.parametrize("name", sorted(TASK_IMAGES))
def test_runtime_answers_in_any_task_image(
    docker_engine: str, name: str, runtime_volume: str, tmp_path: Path
) -> None:
    image = TASK_IMAGES[name]("docker")
    with started_runtime(image, runtime_volume, tmp_path) as container:
        assert health_status(container, tmp_path) == 200


def test_engine_gives_the_image_the_id_the_archive_promises(
    runtime_tag: str, runtime_archive: Archive
) -> None:
    command = ["docker", "image", "inspect", runtime_tag]
    described = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)[0]
    assert described["Id"] == runtime_archive.image_id
    assert described["Config"]["Volumes"] == {"/nix": {}}


def test_filled_volume_holds_the_store_and_the_entry(
    docker_engine: str, runtime_volume: str, namespace_tag: str
) -> None:
    command = [
        "docker",
        "run",
        "--rm",
        "--network",
        "none",
        "--volume",
        f"{runtime_volume}:/mnt:ro",
    ]
    command += [TASK_IMAGES["busybox"]("docker"), "readlink", "/mnt/entry"]
    entry = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    assert os.path.dirname(entry) == "store"


def test_namespace_s_program_runs_without_anything_else(namespace_tag: str) -> None:
    command = ["docker", "run", "--rm", "--network", "none", namespace_tag]
    command += ["/nix/entry/bin/mock-agent-cli", "fix", "the bug"]
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    assert finished.stdout == "fix the bug\n"
