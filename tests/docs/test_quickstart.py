"""The quickstart, followed from its first command to its last."""

from pathlib import Path

from tests.deployments.conftest import Target
from tests.docs.blocks import Block, in_sections, read_blocks
from tests.docs.workbench import Workbench

PAGE = Path(__file__).resolve().parents[2] / "docs" / "quickstart.md"
DOCKER = "With Docker"


def local_blocks() -> list[Block]:
    """Gives all that needs no engine."""
    return [block for block in read_blocks(PAGE) if block.section != DOCKER]


def test_quickstart_prints_what_it_shows(clone: Workbench) -> None:
    clone.follow(local_blocks())


def test_programs_of_the_quickstart_print_the_same_with_docker(
    clone: Workbench, docker_target: Target
) -> None:
    for block in local_blocks():
        if block.title is not None:
            clone.write(block.title, block.text)
    clone.follow(in_sections(read_blocks(PAGE), DOCKER))
    for block in local_blocks():
        if block.section != "Bundles":
            clone.follow([block] if block.language == "console" else [])
