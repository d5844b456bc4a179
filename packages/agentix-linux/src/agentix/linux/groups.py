"""Control groups (cgroups(7)) that do not outlive their owner.

The owner names each group in a journal, in the directory of its sandbox, before it makes it. So
whoever finds that directory without its owner finds the groups too, wherever they are.
"""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

__all__ = ["note_group", "release_groups", "remove_group"]

JOURNAL = "groups"
"""The file in the directory of a sandbox that names its control groups, one a line."""

PATIENCE = 1.0
"""Seconds that the kernel may take to see the last process of a dead owner's group off."""

RETRY = 0.005
"""Seconds between two looks at a group that is in use; version 1 has no event for it."""


def note_group(directory: Path, group: Path) -> None:
    """Write down that a sandbox is about to have a group.

    Args:
        directory: The sandbox's own directory.
        group: The directory of the group.
    """
    with (directory / JOURNAL).open("a") as journal:
        journal.write(f"{group}\n")


def release_groups(directory: Path) -> None:
    """Remove the groups that were written down for a sandbox, and kill what is left in them.

    Args:
        directory: The sandbox's own directory.

    Raises:
        OSError: One of them is still in use.
    """
    try:
        noted = (directory / JOURNAL).read_text().splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return
    deadline = time.monotonic() + PATIENCE
    for group in map(Path, noted):
        while not remove_group(group):
            if time.monotonic() > deadline:
                raise TimeoutError(f"control group {group} is still in use")
            time.sleep(RETRY)


def remove_group(group: Path) -> bool:
    """Remove a group, or kill the processes in it.

    Returns:
        Whether it is gone; otherwise the kernel still has to see a process off.
    """
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        _kill_members(group)
        return False
    return True


def _kill_members(group: Path) -> None:
    for pid in _members(group):
        with suppress(OSError):
            process = os.pidfd_open(pid)
            try:
                # Before it was opened, the number may have gone to a process elsewhere.
                if pid in _members(group):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
            finally:
                os.close(process)


def _members(group: Path) -> list[int]:
    """Return the processes of a group; one that this pid namespace does not see is told as 0."""
    try:
        pids = map(int, (group / "cgroup.procs").read_text().split())
    except OSError:
        return []
    return [pid for pid in pids if pid > 0]
