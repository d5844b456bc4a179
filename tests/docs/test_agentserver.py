"""AgentServer's pages, followed as a reader does."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import yaml

from agentix.agentserver.spec import OrganismSpec
from tests.docs.blocks import read_blocks
from tests.docs.workbench import Workbench

PAGES = Path(__file__).resolve().parents[2] / "docs" / "agentserver"


def test_tutorial_prints_what_it_shows(tmp_path: Path) -> None:
    Workbench(tmp_path).follow(read_blocks(PAGES / "tutorial.md"))


def test_gateways_do_what_the_page_shows(tmp_path: Path) -> None:
    bench = Workbench(tmp_path)
    try:
        bench.follow(read_blocks(PAGES / "gateways.md"))
    finally:
        with suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_files_of_the_pages_are_right(tmp_path: Path) -> None:
    for page in ("gateways", "models"):
        for block in read_blocks(PAGES / f"{page}.md"):
            if block.language == "yaml" and block.title is not None:
                OrganismSpec.model_validate(yaml.safe_load(block.text))
            elif block.language == "yaml":
                head = {"organism": {"name": "page"}}
                OrganismSpec.model_validate(head | yaml.safe_load(block.text))
            elif block.language == "python":
                compile(block.text, str(block.title), "exec")
