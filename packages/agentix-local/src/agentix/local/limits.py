"""Limits: what a sandbox may use of the machine, enforced by control groups (cgroups(7))."""

import asyncio
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agentix.deployment import SandboxConfig
from agentix.errors import DeploymentError, UsageError

__all__ = ["Limits", "make_groups", "remove_groups"]

CPU_PERIOD = 100_000
"""Microseconds over which processor time is shared out."""

INIT_PROCESSES = 1
"""Processes of ours in the group that a limit on processes does not mean: pid 1."""

REMOVAL_PATIENCE = 5.0
"""Seconds that the kernel may take to see the last process of a group off."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one sandbox; `None` where there is none."""

    memory: int | None = None
    """Bytes, swap included."""
    cpus: float | None = None
    """Processors' worth of time."""
    pids: int | None = None
    """Processes and threads."""

    @classmethod
    def of(cls, config: SandboxConfig) -> "Limits":
        """Gives the limits that a configuration asks for."""
        return cls(config.memory, config.cpus, config.pids)

    def by_controller(self, version: int) -> Mapping[str, Mapping[str, str]]:
        """Gives for each controller the files to write, in order, for cgroup version 1 or 2."""
        wanted: dict[str, dict[str, str]] = {}
        if self.memory is not None:
            wanted["memory"] = _memory_files(self.memory, version)
        if self.cpus is not None:
            quota = max(1000, round(self.cpus * CPU_PERIOD))
            wanted["cpu"] = (
                {"cpu.max": f"{quota} {CPU_PERIOD}"}
                if version == 2
                else {"cpu.cfs_period_us": str(CPU_PERIOD), "cpu.cfs_quota_us": str(quota)}
            )
        if self.pids is not None:
            wanted["pids"] = {"pids.max": str(self.pids + INIT_PROCESSES)}
        return wanted


def _memory_files(size: int, version: int) -> dict[str, str]:
    if version == 2:
        return {"memory.max": str(size), "memory.swap.max": "0"}
    return {"memory.limit_in_bytes": str(size), "memory.memsw.limit_in_bytes": str(size)}


OPTIONAL_FILES = {"memory.swap.max", "memory.memsw.limit_in_bytes"}
"""Absent where the kernel does not account for swap."""


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted cgroup hierarchy, seen from this process."""

    version: int
    """1 or 2."""
    controllers: frozenset[str]
    """The controllers of a version 1 hierarchy; empty for version 2."""
    mount: Path
    """Where it is mounted."""
    own: Path
    """The directory of this process's own group."""


def hierarchies(process: Path = Path("/proc/self")) -> Iterator[Hierarchy]:
    """Gives the cgroup hierarchies of this process that it can see.

    Args:
        process: The directory with `mountinfo` and `cgroup` (proc(5)).
    """
    groups = _own_groups(process)
    for line in (process / "mountinfo").read_text().splitlines():
        place, _, kind = line.partition(" - ")
        root, mount = place.split()[3:5]
        filesystem, _, options = kind.split(" ", 2)
        if filesystem not in ("cgroup", "cgroup2"):
            continue
        version = 2 if filesystem == "cgroup2" else 1
        named = set(options.split(",")) if version == 1 else set()
        for controllers, path in groups.items():
            if controllers <= named and bool(controllers) == (version == 1):
                own = Path(mount) / os.path.relpath(path, root)
                yield Hierarchy(version, controllers, Path(mount), own)


def _own_groups(process: Path) -> Mapping[frozenset[str], str]:
    """Gives the path of this process's group by controllers; none of them for version 2."""
    groups: dict[frozenset[str], str] = {}
    for line in (process / "cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        groups[frozenset(filter(None, names.split(",")))] = path
    return groups


def make_groups(name: str, limits: Limits) -> list[Path]:
    """Makes the control groups that enforce limits.

    Args:
        name: The name of the new groups.
        limits: What to enforce.

    Returns:
        The directories of the groups, for `cgroup.procs` and for `remove_groups`.

    Raises:
        UsageError: A limit can not be enforced on this machine by this user.
    """
    groups: list[Path] = []
    try:
        for controller in limits.by_controller(1):
            groups.append(_make_group(name, controller, limits))  # noqa: PERF401 - one may fail
    except BaseException:
        for group in groups:
            with suppress(OSError):
                group.rmdir()
        raise
    return list(dict.fromkeys(groups))


def _make_group(name: str, controller: str, limits: Limits) -> Path:
    reasons: list[str] = []
    for hierarchy in hierarchies():
        if hierarchy.version == 1 and controller not in hierarchy.controllers:
            continue
        for parent in _parents(hierarchy):
            try:
                return _limited(parent / name, controller, hierarchy.version, limits)
            except OSError as error:
                reasons.append(f"{error.filename}: {error.strerror}")
    raise UsageError(
        f"the limit on {controller} can not be enforced here"
        f" ({'; '.join(reasons) or 'no cgroup hierarchy has that controller'})."
        " Run as root or in a delegated cgroup, or ask for no limit"
    )


def _parents(hierarchy: Hierarchy) -> Iterator[Path]:
    """Gives where a group may be made: our own group first, then each one above it."""
    yield hierarchy.own
    if hierarchy.version == 2:
        for parent in hierarchy.own.parents:
            if parent.is_relative_to(hierarchy.mount):
                yield parent


def _limited(group: Path, controller: str, version: int, limits: Limits) -> Path:
    """Makes one group, or takes the one made for another controller, and writes its limit."""
    made = not group.exists()
    group.mkdir(exist_ok=True)
    try:
        if version == 2:
            _enable(group.parent, controller)
        for file, text in limits.by_controller(version)[controller].items():
            if file in OPTIONAL_FILES and not (group / file).exists():
                continue
            (group / file).write_text(text)
    except OSError:
        if made:
            group.rmdir()
        raise
    return group


def _enable(parent: Path, controller: str) -> None:
    """Lets the children of a version 2 group have a controller."""
    enabled = parent / "cgroup.subtree_control"
    if controller not in enabled.read_text().split():
        enabled.write_text(f"+{controller}")


async def remove_groups(groups: list[Path]) -> None:
    """Removes control groups whose processes have ended.

    Raises:
        DeploymentError: The kernel still counts a process in one of them.
    """
    try:
        async with asyncio.timeout(REMOVAL_PATIENCE):
            for group in groups:
                # The kernel gives no event for a version 1 group.
                while not _removed(group):  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
    except TimeoutError as error:
        raise DeploymentError(f"control group {group} is still in use") from error


def _removed(group: Path) -> bool:
    """Removes a group, or tells that it is busy yet."""
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
