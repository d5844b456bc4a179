"""The tutorial, followed from its first command to its last."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deployments.conftest import Target
from tests.docs.blocks import in_sections, read_blocks, read_steps
from tests.docs.test_writing_a_namespace import OFFLINE_PIP, make_environment, remove_image
from tests.docs.workbench import Workbench
from tests.task_images import TASK_IMAGES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sdk" / "tutorial.md"
TASK_IMAGE = "busybox:1.37"
FIVE = "Five commands"


@pytest.fixture
def task_image(docker_target: Target) -> Iterator[None]:
    """Let the page's task image be there, by a tag on our own where no registry was asked."""
    command = ["docker", "image", "inspect", TASK_IMAGE]
    found = subprocess.run(command, capture_output=True, check=False)
    if found.returncode == 0:
        yield
        return
    subprocess.run(["docker", "tag", TASK_IMAGES["busybox"]("docker"), TASK_IMAGE], check=True)
    try:
        yield
    finally:
        subprocess.run(["docker", "rmi", TASK_IMAGE], check=True, capture_output=True)


@pytest.fixture
def reader(tmp_path: Path) -> Workbench:
    """Return an empty directory, and an environment into which the page can install."""
    programs = make_environment(tmp_path / "environment")
    command = programs / "agentix-namespace"
    command.write_text(f'#!/bin/sh\nexec {programs}/python -m agentix.namespace_sdk "$@"\n')
    command.chmod(0o755)
    (tmp_path / "reader").mkdir()
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    return Workbench(tmp_path / "reader", programs, OFFLINE_PIP | cache)


def test_five_commands_are_five() -> None:
    blocks = in_sections(read_blocks(PAGE), FIVE)
    steps = [step for block in blocks if block.language == "console" for step in read_steps(block)]
    assert len(steps) == 5


def test_tutorial_leads_to_a_call_in_a_container(reader: Workbench, task_image: None) -> None:
    try:
        reader.follow(read_blocks(PAGE))
    finally:
        remove_image("agentix/my-namespace:0.1.0")
