"""Fixtures for the whole suite."""

import os
import subprocess

import pytest

REQUIRE_DOCKER = "AGENTIX_REQUIRE_DOCKER"


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Runs asynchronous tests on asyncio, which the runtime and the client are made for."""
    return "asyncio"


@pytest.fixture(scope="session")
def docker_engine() -> str:
    """Gives the version of the Docker engine; the test is skipped by name where none answers."""
    command = ["docker", "version", "--format", "{{.Server.Version}}"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        reason = f"no Docker engine answers: {error}"
        if os.environ.get(REQUIRE_DOCKER) == "1":
            pytest.fail(f"{REQUIRE_DOCKER}=1, and {reason}")
        pytest.skip(reason)
    return answer.stdout.strip()
