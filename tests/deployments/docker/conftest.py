"""What the tests of the Docker deployment share."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from agentix.deployment import SandboxConfig
from agentix.docker import DockerDeployment
from agentix.docker.labels import OWNER, ROLE
from agentix.docker.owner import Owner
from agentix.version import VERSION
from tests.deployments.docker.closure_images import docker
from tests.deployments.local.conftest import ordinary_python
from tests.task_images import TASK_IMAGES

__all__ = ["ordinary_python"]

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def images(docker_engine: str) -> None:
    """Builds and loads the runtime and the mocks; the test is skipped where Nix is missing."""
    if shutil.which("nix-build") is None:
        reason = "nix-build is not installed"
        if os.environ.get("AGENTIX_REQUIRE_DOCKER") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    command = [sys.executable, "-m", "nix.images", "load"]
    built = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr


@pytest.fixture(scope="session")
def busybox(docker_engine: str) -> str:
    return TASK_IMAGES["busybox"]("docker")


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind(docker_engine: str) -> Iterator[None]:
    """Fails the suite where a sandbox or a network of this process outlives it."""
    networks = docker("network", "ls", "--quiet")
    yield
    mine = ["--filter", f"label={OWNER}={Owner.current()}", "--filter", f"label={ROLE}=sandbox"]
    assert docker("ps", "--all", "--quiet", *mine) == ""
    assert docker("network", "ls", "--quiet") == networks


@pytest.fixture
def control_root() -> Iterator[Path]:
    """Gives a short path for control directories, and fails the test where one is left."""
    with tempfile.TemporaryDirectory(prefix="ax-") as root:
        yield Path(root)
        assert [*Path(root).iterdir()] == []


@pytest.fixture
async def deployment(docker_engine: str, control_root: Path) -> AsyncIterator[DockerDeployment]:
    async with DockerDeployment(control_root=control_root) as deployment:
        yield deployment


@pytest.fixture
def config(images: None, busybox: str) -> SandboxConfig:
    """Gives what most tests make a sandbox from."""
    return SandboxConfig(image=busybox, namespaces=(f"agentix/mock-agent:{VERSION}",))
