"""What the tests of the documentation share."""

from pathlib import Path

import pytest

from tests.deployments.conftest import docker_target, host_bundles
from tests.docs.workbench import Workbench

__all__ = ["clone", "docker_target", "host_bundles"]

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def clone(tmp_path: Path) -> Workbench:
    """Gives a directory that looks like a clone of the repository, to be written to."""
    directory = tmp_path / "agentix"
    directory.mkdir()
    for name in ("README.md", "examples", "namespaces", "nix", "tests"):
        (directory / name).symlink_to(REPOSITORY / name)
    return Workbench(directory)
