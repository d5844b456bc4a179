"""The Docker engine, by its command line: what a bare `docker run` costs, and what is there."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from agentix.deployment import DEFAULT_RUNTIME
from agentix_namespaces import mock_agent

__all__ = ["docker", "obstacle", "run_bare", "server_process", "task_image"]

REPOSITORY = Path(__file__).resolve().parents[1]


def obstacle() -> str | None:
    """Tells why no container can be measured here; `None` where nothing is in the way."""
    if shutil.which("docker") is None:
        return "docker is not installed"
    if subprocess.run(["docker", "version"], capture_output=True).returncode:
        return "no Docker engine answers"
    for image in (DEFAULT_RUNTIME, mock_agent.__image__):
        if subprocess.run(["docker", "image", "inspect", image], capture_output=True).returncode:
            return f"the engine has no image {image}: nox -s images"
    return None


def task_image(name: str) -> str:
    """Gives the tag of a task image, which is made where it is missing."""
    command = [sys.executable, "tests/task_images.py", name]
    made = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True)
    return made.stdout.split()[-1]


async def docker(*arguments: str) -> str:
    """Runs the command line and gives what it prints.

    Raises:
        CalledProcessError: It fails.
    """
    process = await asyncio.create_subprocess_exec(
        "docker", *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, problem = await process.communicate()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, arguments, out, problem)
    return out.decode().strip()


async def run_bare(image: str, options: Sequence[str] = ()) -> str:
    """Starts a container that only sleeps, and gives its id."""
    return await docker("run", "-d", *options, image, "sleep", "1000")


async def server_process(container: str) -> int | None:
    """Finds the runtime of a container on this host; `None` where the engine is elsewhere."""
    return _last_descendant(int(await docker("inspect", "--format", "{{.State.Pid}}", container)))


def _last_descendant(pid: int) -> int | None:
    """Gives the process at the end of a chain of first children, where it may be looked at."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    if not children.exists():
        return None
    first, *_ = [*children.read_text().split(), None]
    if first is not None:
        return _last_descendant(int(first))
    return pid if os.access(f"/proc/{pid}/smaps_rollup", os.R_OK) else None
