"""Which process owns a sandbox, and whether that process still lives."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

__all__ = ["Owner"]

PROC = Path("/proc")
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Owner:
    """A process, told apart from every other that has had or will have its pid."""

    boot: str
    """The boot of the host (`/proc/sys/kernel/random/boot_id`)."""
    pid_namespace: str
    """The inode of the pid namespace that `pid` counts in."""
    pid: int
    """The process id."""
    started: str
    """When the process started, in clock ticks since boot (proc(5), stat, field 22)."""

    @classmethod
    def current(cls) -> Self:
        """Describe this process; without `/proc`, as one that cannot be looked up."""
        pid = os.getpid()
        started = _start_time(pid)
        if started is None:
            return cls(UNKNOWN, UNKNOWN, pid, UNKNOWN)
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        return cls(boot, _pid_namespace(), pid, started)

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read what `str()` of an owner returned, or return `None` for anything else."""
        match text.split("/"):
            case [boot, pid_namespace, pid, started] if pid.isascii() and pid.isdigit():
                return cls(boot, pid_namespace, int(pid), started)
        return None

    def __str__(self) -> str:
        return f"{self.boot}/{self.pid_namespace}/{self.pid}/{self.started}"

    def lives(self) -> bool | None:
        """Return whether the process lives.

        Returns:
            `None` where it cannot be looked up from here: on another host, of another boot (which
            another host may have), in another pid namespace, or hidden (proc(5), hidepid).
        """
        here = Owner.current()
        if UNKNOWN in (here.boot, self.boot):
            return None
        if (self.boot, self.pid_namespace) != (here.boot, here.pid_namespace):
            return None
        started = _start_time(self.pid)
        if started is None and _is_hidden(self.pid):
            return None
        return started == self.started


def _is_hidden(pid: int) -> bool:
    """Return whether there is a process of another user by this number."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except ProcessLookupError:
        pass
    return False


def _start_time(pid: int) -> str | None:
    """Return the start time of a process, or `None` where there is none or only its zombie."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    state, started = fields[0], fields[19]
    return None if state in ("Z", "X") else started


def _pid_namespace() -> str:
    return str((PROC / "self/ns/pid").stat().st_ino)
