"""The deployments that the conformance suite runs against."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentix.deployment import Deployment, SandboxConfig
from agentix.docker import DockerDeployment
from agentix.linux.control import ControlDirectories
from agentix.local import LocalDeployment
from agentix.local.bundle import make_namespace_bundle, make_runtime_bundle
from agentix.version import VERSION
from tests.task_images import TASK_IMAGES

REPOSITORY = Path(__file__).resolve().parents[2]
MOCK_AGENT = f"agentix/mock-agent:{VERSION}"
BROKEN_EXIT_CODE = 3
BROKEN_OUTPUT = "broken on purpose"
BROKEN_START = f"#!/bin/sh\necho {BROKEN_OUTPUT} >&2\nexit {BROKEN_EXIT_CODE}\n"


@dataclass(frozen=True)
class Target:
    """One deployment, and what the suite needs to know to use it."""

    name: str
    make: Callable[[], Deployment]
    """Makes the deployment; all that it makes on the host is found by `leftovers`."""
    config: SandboxConfig
    """A sandbox with the mock agent."""
    missing_image: str
    """A task image that is not there."""
    broken_runtime: str
    """A runtime that prints `BROKEN_OUTPUT` and exits with `BROKEN_EXIT_CODE`."""
    leftovers: Callable[[], set[str]]
    """Tells what there is of sandboxes on the host."""
    expression: str
    """A Python expression that makes the deployment in another process."""
    imports: str
    """The line of imports that it needs."""


@pytest.fixture(scope="session", params=["local", "docker"])
def target(request: pytest.FixtureRequest) -> Target:
    """Gives each deployment in turn."""
    found: Target = request.getfixturevalue(f"{request.param}_target")
    return found


@pytest.fixture
async def deployment(target: Target) -> AsyncIterator[Deployment]:
    """Gives an open deployment, and fails the test that leaves something on the host."""
    async with target.make() as deployment:
        yield deployment
    assert target.leftovers() == set()


@pytest.fixture(scope="session")
def host_bundles() -> Iterator[Path]:
    """Gives a directory of bundles that run on this interpreter."""
    with tempfile.TemporaryDirectory(prefix="agentix-bundles-") as directory:
        bundles = Path(directory)
        make_runtime_bundle(bundles / f"agentix/runtime/{VERSION}")
        for name in ("mock-agent", "mock-dataset"):
            make_namespace_bundle(
                REPOSITORY / "namespaces" / name, bundles / f"agentix/{name}/{VERSION}"
            )
        start = bundles / f"agentix/broken/{VERSION}/entry/bin/start"
        start.parent.mkdir(parents=True)
        start.write_text(BROKEN_START)
        start.chmod(0o755)
        yield bundles


@pytest.fixture(scope="session")
def local_target(host_bundles: Path) -> Iterator[Target]:
    """Return the local deployment on the host's own root."""
    with tempfile.TemporaryDirectory(prefix="agentix-control-") as directory:
        control = Path(directory)
        yield Target(
            name="local",
            make=lambda: LocalDeployment(bundles=host_bundles, directory=control),
            config=SandboxConfig(image="/", namespaces=(MOCK_AGENT,)),
            missing_image="/nonexistent/image",
            broken_runtime=f"agentix/broken:{VERSION}",
            # An open deployment has a directory of its own, and one below it for each sandbox.
            leftovers=lambda: {str(path) for path in control.glob("*/*")},
            expression=f"LocalDeployment(bundles=Path({str(host_bundles)!r}),"
            f" directory=Path({directory!r}))",
            imports="from pathlib import Path; from agentix.local import LocalDeployment",
        )
        # What an owner that was killed left is removed by the next.
        directories = ControlDirectories(control)
        directories.open()
        directories.close()
        assert [*control.iterdir()] == []


@pytest.fixture(scope="session")
def docker_target(docker_engine: str) -> Iterator[Target]:
    """Gives the Docker deployment, with images that Nix built, on a busybox task image."""
    _load_images()
    broken = _build_broken_runtime()
    with tempfile.TemporaryDirectory(prefix="ax-") as directory:
        control = Path(directory)
        yield Target(
            name="docker",
            make=lambda: DockerDeployment(control_root=control, pull=False),
            config=SandboxConfig(image=TASK_IMAGES["busybox"]("docker"), namespaces=(MOCK_AGENT,)),
            missing_image="agentix-test/missing:1",
            broken_runtime=broken,
            # An open deployment has a directory of its own, and one below it for each sandbox.
            leftovers=lambda: _containers() | {str(path) for path in control.glob("*/*")},
            expression=f"DockerDeployment(control_root=Path({directory!r}), pull=False, lease=1.0)",
            imports="from pathlib import Path; from agentix.docker import DockerDeployment",
        )
        # What owners left that a test killed goes when the next deployment is entered.
        reaper = ControlDirectories(control)
        reaper.open()
        reaper.close()
        assert [*control.iterdir()] == []
    subprocess.run(["docker", "rmi", "--force", broken], check=True, capture_output=True)


def _load_images() -> None:
    if shutil.which("nix-build") is None:
        reason = "nix-build is not installed"
        if os.environ.get("AGENTIX_REQUIRE_DOCKER") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    command = [sys.executable, "-m", "nix.images", "load"]
    built = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr


def _build_broken_runtime() -> str:
    tag = f"agentix-test/broken-runtime:{os.getpid()}"
    with tempfile.TemporaryDirectory() as directory:
        programs = Path(directory, "nix/entry/bin")
        programs.mkdir(parents=True)
        Path(directory, "nix/store").mkdir()
        (programs / "start").write_text(BROKEN_START)
        (programs / "start").chmod(0o755)
        busybox = shutil.which("busybox")
        assert busybox is not None
        shutil.copy(busybox, programs / "sh")
        Path(directory, "Dockerfile").write_text("FROM scratch\nCOPY nix /nix\nVOLUME /nix\n")
        command = ["docker", "build", "--quiet", "--tag", tag, directory]
        subprocess.run(command, check=True, capture_output=True)
    return tag


def _containers() -> set[str]:
    """Gives the sandboxes of this process that the engine still has."""
    form = '{{.Names}} {{.Label "org.agentix.owner"}}'
    command = ["docker", "ps", "--all", "--filter", "label=org.agentix.role=sandbox"]
    listed = subprocess.run(
        [*command, "--format", form], check=True, capture_output=True, text=True
    )
    return {line.split()[0] for line in listed.stdout.splitlines() if f"/{os.getpid()}/" in line}
