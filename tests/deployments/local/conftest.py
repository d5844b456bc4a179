"""What the tests of the local deployment share."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from agentix.deployment import SandboxConfig
from agentix.local import LocalDeployment
from agentix.version import VERSION

REPOSITORY = Path(__file__).resolve().parents[3]
MOCK_AGENT = f"agentix/mock-agent:{VERSION}"
NOBODY = 65534
APPLETS = ("cat", "env", "grep", "id", "ls", "mount", "sh", "touch")

SHELL_RUNTIME = """#!/bin/sh
{before}
echo "agentix-server ready fd:$AGENTIX_BIND_FD"
{script}
"""
"""A runtime that answers nothing: it says that it is ready, and does what a test asks for."""


class ShellRuntime(Protocol):
    """Makes bundles of runtimes which are shell scripts."""

    def __call__(self, script: str, before: str = "") -> str:
        """Return the reference of a runtime that runs `before`, is ready, and runs `script`."""
        ...


@pytest.fixture
def control() -> Iterator[Path]:
    """Make a directory for control directories, and fail the test that leaves something there."""
    with tempfile.TemporaryDirectory(prefix="agentix-control-") as directory:
        Path(directory).chmod(0o1777)
        yield Path(directory)
        assert [*Path(directory).iterdir()] == []


@pytest.fixture
async def deployment(host_bundles: Path, control: Path) -> AsyncIterator[LocalDeployment]:
    """Open a deployment with bundles that run on this interpreter."""
    async with LocalDeployment(bundles=host_bundles, directory=control) as deployment:
        yield deployment


@pytest.fixture
def config() -> SandboxConfig:
    """Return what most tests make a sandbox from."""
    return SandboxConfig(image="/", namespaces=(MOCK_AGENT,))


@pytest.fixture
def shell_runtime(tmp_path: Path) -> ShellRuntime:
    """Return a function that makes the bundle of a runtime which is a shell script."""

    def make(script: str, before: str = "") -> str:
        start = tmp_path / "shell-runtime/entry/bin/start"
        start.parent.mkdir(parents=True)
        start.write_text(SHELL_RUNTIME.format(script=script, before=before))
        start.chmod(0o755)
        return str(tmp_path / "shell-runtime")

    return make


@pytest.fixture(scope="session")
def nix_bundles() -> Path:
    """Return the bundles that Nix builds; the test is skipped by name where Nix is missing."""
    if shutil.which("nix-build") is None:
        reason = "nix-build is not installed"
        if os.environ.get("AGENTIX_REQUIRE_DOCKER") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    command = [sys.executable, "-m", "nix.images", "bundles"]
    built = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return REPOSITORY / ".cache/bundles"


@pytest.fixture(scope="session")
def busybox_root() -> Iterator[Path]:
    """Make the root filesystem directory of a static busybox."""
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("busybox is not installed; install busybox-static")
    with tempfile.TemporaryDirectory(prefix="agentix-busybox-") as directory:
        root = Path(directory)
        root.chmod(0o755)
        for name in ("bin", "etc", "home", "var/tmp"):
            (root / name).mkdir(parents=True)
        shutil.copy(busybox, root / "bin/busybox")
        for name in APPLETS:
            (root / "bin" / name).symlink_to("busybox")
        (root / "etc/marker").write_text("the task image\n")
        (root / "etc/resolv.conf").symlink_to("../run/resolver/resolv.conf")
        yield root


@pytest.fixture(scope="session")
def ordinary_python() -> Iterator[list[str]]:
    """Return the command of a Python that an ordinary user may run, with these packages."""
    if os.geteuid() != 0:
        yield [sys.executable]
        return
    system = Path("/usr/bin") / f"python3.{sys.version_info.minor}"
    if not system.exists() or shutil.which("setpriv") is None:
        pytest.skip(f"{system} and setpriv are needed to run as an ordinary user")
    user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    path = os.pathsep.join(
        entry for entry in sys.path if "packages" in entry or "namespaces" in entry
    )
    environment = ["env", "-i", "PATH=/usr/bin:/bin", f"PYTHONPATH={path}"]
    yield [*user, *environment, str(system), "-B"]
