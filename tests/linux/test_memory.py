"""The counter of kills for want of memory: of both versions of control groups."""

import subprocess
import sys
from pathlib import Path

import pytest

from agentix.linux.memory import OomKills
from tests.linux.memory_group import memory_group

OTHER_MOUNTS = """\
22 28 0:20 / /proc rw,nosuid - proc proc rw
30 23 0:26 / {root}/pids rw - cgroup cgroup rw,pids
"""
VERSION_1 = "31 23 0:27 {visible} {root}/memory rw - cgroup cgroup rw,memory\n"
VERSION_2 = "32 23 0:28 {visible} {root}/unified rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"

ONE = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"
TWO = "low 0\nhigh 0\nmax 12\noom 5\noom_kill 4\noom_group_kill 1\n"


def process(root: Path, groups: str, mounts: str, visible: str = "/") -> Path:
    """Make up the files that the kernel shows of a process."""
    directory = root / "process"
    directory.mkdir()
    (directory / "cgroup").write_text(groups)
    (directory / "mountinfo").write_text((OTHER_MOUNTS + mounts).format(root=root, visible=visible))
    return directory


def counter(root: Path, path: str, text: str) -> Path:
    file = root / path
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return file


GROUPS_1 = "9:name=systemd:/\n8:pids:/\n4:cpu,memory:/user/sandbox\n0::/\n"
GROUPS_2 = "0::/user/sandbox\n"


def test_version_1_is_counted_in_its_own_group(tmp_path: Path) -> None:
    file = counter(tmp_path, "memory/user/sandbox/memory.oom_control", ONE)
    kills = OomKills.of_process(process(tmp_path, GROUPS_1, VERSION_1))
    assert kills.count() == 3
    file.write_text(ONE.replace("oom_kill 3", "oom_kill 10"))
    assert kills.count() == 10


def test_version_2_is_counted_in_its_own_group(tmp_path: Path) -> None:
    counter(tmp_path, "unified/user/sandbox/memory.events", TWO)
    assert OomKills.of_process(process(tmp_path, GROUPS_2, VERSION_2)).count() == 4


def test_container_sees_its_own_group_as_the_root_of_the_mount(tmp_path: Path) -> None:
    counter(tmp_path, "memory/memory.oom_control", ONE)
    own = process(tmp_path, GROUPS_1, VERSION_1, visible="/user/sandbox")
    assert OomKills.of_process(own).count() == 3


def test_cgroup_namespace_has_its_own_root(tmp_path: Path) -> None:
    counter(tmp_path, "unified/memory.events", TWO)
    assert OomKills.of_process(process(tmp_path, "0::/\n", VERSION_2)).count() == 4


def test_hybrid_system_counts_where_the_controller_is(tmp_path: Path) -> None:
    counter(tmp_path, "unified/memory.events", "populated 1\n")
    counter(tmp_path, "memory/user/sandbox/memory.oom_control", ONE)
    own = process(tmp_path, GROUPS_1, VERSION_2 + VERSION_1)
    assert OomKills.of_process(own).count() == 3


@pytest.mark.parametrize(
    ("groups", "mounts"),
    [
        ("", ""),
        (GROUPS_1, ""),
        (GROUPS_2, VERSION_1),
        (GROUPS_1, VERSION_1),
        ("0::/..\n", VERSION_2),
    ],
)
def test_nothing_is_counted_without_a_counter(tmp_path: Path, groups: str, mounts: str) -> None:
    assert OomKills.of_process(process(tmp_path, groups, mounts)).count() == 0


def test_nothing_is_counted_without_proc(tmp_path: Path) -> None:
    assert OomKills.of_process(tmp_path / "absent").count() == 0


def test_counter_is_not_inherited(tmp_path: Path) -> None:
    counter(tmp_path, "unified/memory.events", TWO)
    kills = OomKills.of_process(process(tmp_path, "0::/\n", VERSION_2))
    command = "for each in /proc/self/fd/*; do readlink $each; done"
    seen = subprocess.run(
        ["sh", "-c", command], capture_output=True, close_fds=False, stdin=subprocess.DEVNULL
    )
    assert b"/dev/null" in seen.stdout
    assert b"memory.events" not in seen.stdout
    assert kills.count() == 4


PROGRAM = """
import os, subprocess, sys
from pathlib import Path
from agentix.linux.memory import OomKills
Path(sys.argv[1]).joinpath("cgroup.procs").write_text("0")
kills = OomKills.of_process()
before = kills.count()
ended = subprocess.run([sys.executable, "-c", "b'x' * 200_000_000"])
print(ended.returncode, kills.count() - before)
"""


def test_kill_of_the_kernel_is_counted() -> None:
    with memory_group(40_000_000) as group:
        program = [sys.executable, "-c", PROGRAM, str(group)]
        ended = subprocess.run(program, capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout == "-9 1\n"
