"""Control groups that dead owners left."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentix.linux.groups import note_group, release_groups, remove_group
from agentix.local.limits import hierarchies

DEADLINE = 10


@pytest.fixture
def group() -> Iterator[Path]:
    """Yield a real control group; the test is skipped by name where none can be made."""
    found = next((one for one in hierarchies() if one.controllers & {"pids"}), None)
    found = found or next(hierarchies(), None)
    if found is None:
        pytest.skip("no cgroup hierarchy is mounted")
    group = found.own / f"agentix-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    yield group
    if group.exists():
        group.rmdir()


def test_group_of_a_dead_owner_is_removed_with_its_processes(group: Path, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "1000"]) as member:
        (group / "cgroup.procs").write_text(str(member.pid))
        note_group(tmp_path, group)
        release_groups(tmp_path)
        assert member.wait(DEADLINE) == -9
    assert not group.exists()


def test_group_is_not_gone_while_it_has_a_process(group: Path) -> None:
    with subprocess.Popen(["sleep", "1000"]) as member:
        (group / "cgroup.procs").write_text(str(member.pid))
        gone = remove_group(group)
        assert member.wait(DEADLINE) == -9
    assert not gone
    assert remove_group(group)


def test_groups_that_were_never_made_count_as_removed(tmp_path: Path) -> None:
    note_group(tmp_path, tmp_path / "one")
    note_group(tmp_path, tmp_path / "two")
    release_groups(tmp_path)
    assert remove_group(tmp_path / "one")


def test_directory_without_a_journal(tmp_path: Path) -> None:
    release_groups(tmp_path)
    (tmp_path / "file").touch()
    release_groups(tmp_path / "file")
    assert os.listdir(tmp_path) == ["file"]
