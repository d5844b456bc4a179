"""Limits: what a sandbox may use of the machine, enforced by control groups (cgroups(7))."""

import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agentix.deployment import DEFAULT_PIDS, SandboxConfig, default_memory
from agentix.errors import DeploymentError, UsageError
from agentix.linux.groups import note_group, remove_group

__all__ = ["Groups", "Limits", "host_memory", "lasting_memory", "make_groups", "remove_groups"]

CPU_PERIOD = 100_000
"""Microseconds over which processor time is shared out."""

INIT_PROCESSES = 1
"""Processes of ours in the group that a limit on processes does not mean: pid 1."""

REMOVAL_PATIENCE = 5.0
"""Seconds that the kernel may take to see the last process of a group off."""


RUNTIME_MEMORY = 48 * 1024 * 1024
"""Bytes for a runtime (28 MB), a few namespaces and a command."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one sandbox; `None` where there is none."""

    memory: int | None = None
    """Bytes, swap included."""
    cpus: float | None = None
    """Processors' worth of time."""
    pids: int | None = None
    """Processes and threads."""
    defaults: frozenset[str] = frozenset()
    """The controllers whose limits nobody asked for; one that cannot be enforced is left out."""

    @classmethod
    def of(cls, config: SandboxConfig, host: int) -> "Limits":
        """Return the limits that a configuration asks for.

        Args:
            config: The configuration.
            host: The memory of the host in bytes.
        """
        given = {"memory": config.memory, "pids": config.pids}
        return cls(
            memory=default_memory(host) if config.memory == "default" else config.memory,
            cpus=config.cpus,
            pids=DEFAULT_PIDS if config.pids == "default" else config.pids,
            defaults=frozenset(name for name, limit in given.items() if limit == "default"),
        )

    def by_controller(self, version: int) -> Mapping[str, Mapping[str, str]]:
        """Return for each controller the files to write, in order, for cgroup version 1 or 2."""
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
class Groups:
    """The control groups of one sandbox."""

    directories: tuple[Path, ...] = ()
    """Where they are, for `cgroup.procs`."""
    refused: tuple[str, ...] = ()
    """Why defaults are not enforced, one message for each."""


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

    def upwards(self) -> Iterator[Path]:
        """Yield this process's own group, then each one above it."""
        yield self.own
        for parent in self.own.parents:
            if parent.is_relative_to(self.mount):
                yield parent


def hierarchies(process: Path = Path("/proc/self")) -> Iterator[Hierarchy]:
    """Yield the cgroup hierarchies of this process that it can see.

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
            inside = os.path.relpath(path, root)
            # A mount may show groups below another one than that of this process.
            if inside.startswith(".."):
                continue
            if controllers <= named and bool(controllers) == (version == 1):
                yield Hierarchy(version, controllers, Path(mount), Path(mount) / inside)


def _own_groups(process: Path) -> Mapping[frozenset[str], str]:
    """Return the path of this process's group by controllers; none of them for version 2."""
    groups: dict[frozenset[str], str] = {}
    for line in (process / "cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        groups[frozenset(filter(None, names.split(",")))] = path
    return groups


def host_memory() -> int:
    """Return the bytes of memory that this process may use at most: a container has less."""
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for hierarchy in hierarchies():
        if hierarchy.version == 2 or "memory" in hierarchy.controllers:
            name = "memory.max" if hierarchy.version == 2 else "memory.limit_in_bytes"
            sizes += _sizes(group / name for group in hierarchy.upwards())
    return min(sizes)


def _sizes(files: Iterable[Path]) -> Iterator[int]:
    for file in files:
        # There is none in the root, and `max` in others.
        with suppress(OSError, ValueError):
            yield int(file.read_text())


def lasting_memory(limit: int) -> int:
    """Return how many bytes may be taken by what no end of a process frees.

    Args:
        limit: The bytes of memory that the sandbox has.

    Returns:
        Half of it, or less where the runtime would have too little besides.
    """
    return min(limit // 2, max(limit - RUNTIME_MEMORY, limit // 8))


def make_groups(name: str, limits: Limits, directory: Path) -> Groups:
    """Make the control groups that enforce limits.

    Args:
        name: The name of the new groups.
        limits: What to enforce.
        directory: The sandbox's own, in which they are written down before they are made.

    Raises:
        UsageError: A limit that was asked for cannot be enforced on this machine by this user.
    """
    directories: list[Path] = []
    refused: list[str] = []
    try:
        for controller in limits.by_controller(1):
            try:
                directories.append(_make_group(name, controller, limits, directory))
            except UsageError as error:
                if controller not in limits.defaults:
                    raise
                refused.append(str(error))
    except BaseException:
        for group in directories:
            with suppress(OSError):
                group.rmdir()
        raise
    return Groups(tuple(dict.fromkeys(directories)), tuple(refused))


def _make_group(name: str, controller: str, limits: Limits, directory: Path) -> Path:
    reasons: list[str] = []
    for hierarchy in hierarchies():
        if hierarchy.version == 1 and controller not in hierarchy.controllers:
            continue
        # Only version 2 forbids groups below one that has processes (cgroups(7)).
        parents = hierarchy.upwards() if hierarchy.version == 2 else [hierarchy.own]
        for parent in parents:
            note_group(directory, parent / name)
            try:
                return _limited(parent / name, controller, hierarchy.version, limits)
            except OSError as error:
                reasons.append(f"{error.filename}: {error.strerror}")
    raise UsageError(
        f"the limit on {controller} cannot be enforced here"
        f" ({'; '.join(reasons) or 'no cgroup hierarchy has that controller'})."
        " Run as root or in a delegated cgroup, or ask for no limit"
    )


def _limited(group: Path, controller: str, version: int, limits: Limits) -> Path:
    """Make one group, or take the one made for another controller, and write its limit."""
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
    """Let the children of a version 2 group have a controller."""
    enabled = parent / "cgroup.subtree_control"
    if controller not in enabled.read_text().split():
        enabled.write_text(f"+{controller}")


async def remove_groups(groups: Groups) -> None:
    """Remove control groups, and kill what is left in them.

    Raises:
        DeploymentError: The kernel still counts a process in one of them.
    """
    try:
        async with asyncio.timeout(REMOVAL_PATIENCE):
            for group in groups.directories:
                # The kernel gives no event for a version 1 group.
                while not remove_group(group):  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
    except TimeoutError as error:
        raise DeploymentError(f"control group {group} is still in use") from error
