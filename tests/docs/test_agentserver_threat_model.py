"""The threat model: what the page says of measures and limits is what the code has."""

import os
from pathlib import Path

import pytest

from agentix.agentserver.worker import process
from agentix.agentserver.worker.handlers import WorkerSettings
from agentix.agentserver.worker.pool import WorkerPool
from tests.docs.blocks import read_blocks

PAGE = Path(__file__).resolve().parents[2] / "docs" / "agentserver" / "threat-model.md"

DEFAULT = WorkerSettings()


def shown_report() -> list[str]:
    """Gives the lines of the report on the page."""
    texts = [block.text for block in read_blocks(PAGE) if block.text.startswith("isolation: ")]
    assert len(texts) == 1
    return texts[0].splitlines()


async def test_the_report_is_as_the_page_shows() -> None:
    async with WorkerPool() as workers:
        lines = [line.partition(" (")[0] for line in workers.report().lines()]
    if os.geteuid() == 0:
        assert lines == shown_report()
    names = [line.partition(":")[0] for line in shown_report()]
    assert [line.partition(":")[0] for line in lines] == names


def test_every_measure_has_a_row() -> None:
    text = PAGE.read_text().partition("## Measures")[2].partition("## Where")[0]
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]
    assert rows[1:] == [line.partition(":")[0] for line in shown_report()][1:]


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("Address space 1 GiB", DEFAULT.memory == 2**30),
        ("processor time 1 hour", DEFAULT.cpu == 3600),
        ("64 descriptors", DEFAULT.open_files == 64),
        ("files of 16 MiB", DEFAULT.file_size == 16 * 2**20),
        ("32 processes and threads", DEFAULT.processes == 32),
        ("At most 256 workers", DEFAULT.workers == 256),
        ("idle for ten minutes", DEFAULT.idle == 600),
        ("at most 16 KiB a second", (process.QUOTA, process.PERIOD) == (16 * 1024, 1)),
    ],
)
def test_limits_are_as_the_page_says(said: str, value: bool) -> None:
    assert said in PAGE.read_text()
    assert value
