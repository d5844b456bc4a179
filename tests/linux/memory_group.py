"""A control group that limits memory, of whichever version this machine has."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.runtime.serving import wait_until

FIRST = Path("/sys/fs/cgroup/memory")
SECOND = Path("/sys/fs/cgroup")


@contextmanager
def memory_group(size: int) -> Iterator[Path]:
    """Make a group whose processes may use so many bytes together; remove it once it is empty."""
    if os.geteuid() != 0:
        pytest.skip("only root makes a control group")
    group, limits = _described(size)
    group.mkdir()
    try:
        for name, value in limits.items():
            if (group / name).exists():  # swap is limited where the kernel accounts for it
                (group / name).write_text(value)
        yield group
    finally:
        wait_until(lambda: _removed(group))


def _removed(group: Path) -> bool:
    """Remove a group, or end what is left in it."""
    for pid in (group / "cgroup.procs").read_text().split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    with suppress(OSError):
        group.rmdir()
    return not group.exists()


def _described(size: int) -> tuple[Path, dict[str, str]]:
    name = f"agentix-test-{os.getpid()}"
    if (FIRST / "memory.limit_in_bytes").exists():
        files = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
        return FIRST / name, dict.fromkeys(files, str(size))
    if "memory" in (SECOND / "cgroup.subtree_control").read_text().split():
        return SECOND / name, {"memory.max": str(size), "memory.swap.max": "0"}
    pytest.skip("this machine has no memory control groups")
