"""What the tests of the namespace SDK share: the command, and namespaces that it makes."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.deployments.conftest import docker_target
from tests.images.conftest import builder

__all__ = ["builder", "docker_target"]

DEADLINE = 120
"""Seconds that one command may take on a busy machine."""

KINDS = ("agent", "dataset", "tool")

Finished = subprocess.CompletedProcess[str]
Command = Callable[..., Finished]


def run(
    command: list[str], directory: Path, environment: Mapping[str, str] | None = None
) -> Finished:
    """Run a program to its end."""
    return subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )


@pytest.fixture(scope="session")
def agentix_namespace() -> Command:
    """Return the command `agentix-namespace`, as a process of its own."""

    def command(*arguments: str | Path, directory: Path = Path()) -> Finished:
        words = [sys.executable, "-m", "agentix.namespace_sdk", *map(str, arguments)]
        return run(words, directory)

    return command


@pytest.fixture(scope="session")
def rendered(agentix_namespace: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with one namespace of each kind, untouched: `my-agent` and so on."""
    directory = tmp_path_factory.mktemp("rendered")
    for kind in KINDS:
        made = agentix_namespace("new", f"my-{kind}", "--kind", kind, directory=directory)
        assert made.returncode == 0, made.stderr
    return directory
