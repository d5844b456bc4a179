"""The page about AgentServer's payloads does what it says."""

from pathlib import Path

from tests.docs.blocks import read_blocks
from tests.docs.workbench import Workbench

PAGE = Path(__file__).resolve().parents[2] / "docs" / "agentserver" / "payloads.md"


def test_the_examples_print_what_they_show(tmp_path: Path) -> None:
    Workbench(tmp_path).follow(read_blocks(PAGE))
