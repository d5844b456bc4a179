"""The page about jobs, followed as a reader does."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentix.oanix.jobs.store import JobDirectory, lock_holder
from tests.docs.blocks import read_blocks
from tests.docs.test_writing_a_namespace import OFFLINE_PIP, make_environment
from tests.docs.workbench import Workbench
from tests.oanix.job_processes import make_cache_home, wait_until
from tests.oanix.programs import CACHE, ROOT


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    """A directory beside the clone, a Python to install into, and a queue of its own."""
    programs = make_environment(tmp_path / "environment")
    command = programs / "agentix-oanix"
    command.write_text(f'#!/bin/sh\nexec {programs}/python -m agentix.oanix "$@"\n')
    command.chmod(0o755)
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "agentix").symlink_to(ROOT)
    zig = {name: str(CACHE / "zig") for name in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")}
    home = {"XDG_CACHE_HOME": str(make_cache_home()), "XDG_STATE_HOME": str(tmp_path / "state")}
    yield Workbench(tmp_path / "page", programs, {**zig, **home, **OFFLINE_PIP})
    manager = JobDirectory(tmp_path / "state/agentix-oanix/jobs").manager
    pid = lock_holder(manager)
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
    wait_until(lambda: lock_holder(manager) is None)


def test_the_page_shows_what_happens(bench: Workbench) -> None:
    bench.follow(read_blocks(ROOT / "docs" / "oanix-jobs.md"))
