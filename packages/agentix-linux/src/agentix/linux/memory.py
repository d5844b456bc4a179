"""How often the kernel has killed for want of memory, as a control group counts it (cgroups(7))."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

__all__ = ["OomKills"]

MOST_BYTES = 4096
"""More than the file of a counter holds."""


class OomKills:
    """The kills in the memory control group of a process, and of those below it in version 2.

    Args:
        descriptor: The open file that has a line `oom_kill COUNT`; `None` for no counter at all.
    """

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    @classmethod
    def of_process(cls, process: Path = Path("/proc/self")) -> "OomKills":
        """Find the counter of a process, which stays open.

        Args:
            process: The directory with `mountinfo` and `cgroup` (proc(5)).
        """
        for path in _candidates(process):
            with suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                if _count(descriptor) is not None:
                    return cls(descriptor)
                os.close(descriptor)
        return cls(None)

    def count(self) -> int:
        """Return how many processes were killed so far: none where nothing counts them."""
        if self._descriptor is None:
            return 0
        with suppress(OSError):
            return _count(self._descriptor) or 0
        return 0


def _count(descriptor: int) -> int | None:
    for line in os.pread(descriptor, MOST_BYTES, 0).splitlines():
        name, _, value = line.partition(b" ")
        if name == b"oom_kill" and value.isdigit():
            return int(value)
    return None


def _candidates(process: Path) -> Iterator[Path]:
    """Yield where the counter may be: a hybrid system mounts both versions."""
    try:
        groups = _groups((process / "cgroup").read_text(encoding="utf-8"))
        mounts = (process / "mountinfo").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for line in mounts:
        place, _, kind = line.partition(" - ")
        root, mount = place.split()[3:5]
        match kind.split(" "):
            case ["cgroup", _, options] if "memory" in options.split(","):
                controller, file = "memory", "memory.oom_control"
            case ["cgroup2", *_]:
                controller, file = "", "memory.events"
            case _:
                continue
        if controller in groups:
            # In a cgroup namespace both paths are relative to its root (cgroup_namespaces(7)).
            yield Path(mount) / os.path.relpath(groups[controller], root) / file


def _groups(text: str) -> dict[str, str]:
    """Return the path of the group by controller; that of version 2 has the name ""."""
    groups: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        groups |= dict.fromkeys(controllers.split(","), path)
    return groups
