"""Hardening: what holds a new worker before it reads a line of a handler's code.

The zygote makes everything ready before it forks, because each page of memory that a worker writes
to, be it for a counter of references, is copied for it.
"""

# Paths are strings here: the kernel's calls take them, and pathlib would be imported for nothing.
# ruff: noqa: PTH102, PTH208

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from agentix.agentserver.worker import kernel, landlock, seccomp
from agentix.agentserver.worker.jail import SCRATCH, Jail, readable_paths
from agentix.agentserver.worker.kernel import KernelError, prepare
from agentix.agentserver.worker.plan import Plan

__all__ = [
    "CHANNEL",
    "PROCESSES",
    "Birth",
    "Harness",
    "Reach",
    "Step",
    "keep_only",
    "reach",
    "take_over",
]

CHANNEL = 3
"""The descriptor of the socket to the pump in a worker."""

PROCESSES = "limit of processes"
"""The measure without which nothing bounds how many processes a worker makes."""

Act = Callable[[], object]
"""Something to be done in a worker, which takes a call and nothing else."""


@dataclass(frozen=True, slots=True)
class Reach:
    """What workers may read, with every link followed."""

    paths: tuple[str, ...]
    """Directories and files, with all below them."""
    hidden: tuple[str, ...]
    """What is excepted from that."""


@dataclass(frozen=True, slots=True)
class Birth:
    """What a worker is born with."""

    plan: Plan
    """What it is to be like."""
    jail: Jail
    """What the zygote has."""
    reach: Reach
    """What it may read."""
    user: int
    """Its user id; 0 where it stays with the zygote's."""
    scratch: str
    """Its scratch directory."""
    bounded: bool
    """The kernel counts its processes."""


@dataclass(frozen=True, slots=True)
class Step:
    """One measure, ready to be taken by a worker."""

    name: str
    """The name of the measure."""
    acts: Sequence[Act] = ()
    """What is to be done, in this order."""
    detail: str = ""
    """How it then holds."""
    failure: str = ""
    """Why it can not be taken; empty where it can."""


def reach(plan: Plan) -> Reach:
    """Works out once what all workers may read."""
    paths = tuple(readable_paths(plan))
    hidden = (os.path.realpath(path) for path in plan["hidden"])
    return Reach(paths, tuple(path for path in hidden if _is_below(path, paths)))


def _is_below(path: str, parents: tuple[str, ...]) -> bool:
    return any(path == parent or path.startswith(f"{parent}/") for parent in parents)


def take_over(channel: int, output: int, wakers: Sequence[tuple[int, int]]) -> None:
    """Puts the descriptors of a worker where it looks for them.

    Args:
        channel: The socket to the pump.
        output: The pipe to the log.
        wakers: What wakes its event loop: each descriptor that the worker is to have of its own,
            and the one of the zygote's that it takes the place of.
    """
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.dup2(channel, CHANNEL)
    for own, place in wakers:
        os.dup2(own, place)


def keep_only(descriptors: Sequence[int], end: int) -> None:
    """Lets go of every descriptor but the first ones and some others.

    Args:
        descriptors: The others, in their order.
        end: What every descriptor is below.
    """
    start = CHANNEL + 1
    for descriptor in descriptors:
        os.closerange(start, descriptor)
        start = descriptor + 1
    os.closerange(start, end)


class Harness:
    """All measures for one worker: the zygote makes them ready, and the worker puts them on.

    Args:
        birth: What the worker is born with.
    """

    def __init__(self, birth: Birth) -> None:
        self._ruleset: landlock.Ruleset | None = None
        self.steps = tuple(self._ready(name, make, birth) for name, make in STEPS)
        """The measures, in this order: each needs rights that a later one gives up."""

    def put_on(self) -> dict[str, str]:
        """Takes, in a worker, all measures that this machine allows.

        Returns:
            The names of the others, and why it does not.
        """
        failures = {}
        for step in self.steps:
            try:
                for act in step.acts:
                    act()
            except (KernelError, OSError, ValueError) as error:
                failures[step.name] = str(error)
            if step.failure:
                failures[step.name] = step.failure
        return failures

    def close(self) -> None:
        """Lets go of what was made ready, in the zygote."""
        if self._ruleset is not None:
            self._ruleset.close()

    def _ready(self, name: str, make: Make, birth: Birth) -> Step:
        try:
            detail, acts = make(self, birth)
        except (KernelError, OSError, ValueError) as error:
            return Step(name, failure=str(error))
        return Step(name, acts, detail)

    def _scratch(self, birth: Birth) -> Made:
        """Gives a worker a directory of its own, in memory where it has a root of its own."""
        if birth.jail.own_root:
            size = max(birth.plan["file_size"], resource.getpagesize())  # 0 would be no bound
            options = f"size={size},nr_inodes=4096,mode=0700"
            if birth.user:
                options += f",uid={birth.user},gid={birth.user}"
            flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
            about = f"tmpfs, {SCRATCH}"
            return f"{size} bytes in memory", [
                prepare("unshare", kernel.CLONE_NEWNS, about="CLONE_NEWNS"),
                prepare("mount", "tmpfs", SCRATCH, "tmpfs", flags, options, about=about),
                partial(os.chdir, SCRATCH),
            ]
        os.mkdir(birth.scratch, 0o700)
        if birth.user:
            os.chown(birth.scratch, birth.user, birth.user)
        return "a directory on disk, of no bounded size", [partial(os.chdir, birth.scratch)]

    def _limits(self, birth: Birth) -> Made:
        plan = birth.plan
        limits = {
            resource.RLIMIT_AS: plan["memory"],
            resource.RLIMIT_CPU: plan["cpu"],
            resource.RLIMIT_NOFILE: plan["open_files"],
            resource.RLIMIT_FSIZE: plan["file_size"],
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_MSGQUEUE: 0,
        }
        return "memory, processor, open files, file size", [
            _limit(kind, value) for kind, value in limits.items()
        ]

    def _processes(self, birth: Birth) -> Made:
        """Bounds processes and threads, which the kernel counts by user and user namespace."""
        most = birth.plan["processes"]
        acts: list[Act] = [_limit(resource.RLIMIT_NPROC, most)]
        if not birth.user:
            if os.getuid() == 0:
                raise KernelError("the kernel does not bound root")
            acts.insert(0, prepare("unshare", kernel.CLONE_NEWUSER, about="CLONE_NEWUSER"))
        return f"{most}", acts

    def _user(self, birth: Birth) -> Made:
        user = birth.user
        if not user:
            raise KernelError(birth.jail.no_users)
        return "", [
            partial(os.setgroups, []),
            partial(os.setresgid, user, user, user),
            partial(os.setresuid, user, user, user),
        ]

    def _capabilities(self, birth: Birth) -> Made:
        return "", [kernel.prepare_capabilities()]

    def _privileges(self, birth: Birth) -> Made:
        return "", [_control(kernel.PR_SET_NO_NEW_PRIVS, 1, "PR_SET_NO_NEW_PRIVS")]

    def _not_dumpable(self, birth: Birth) -> Made:
        return "", [_control(kernel.PR_SET_DUMPABLE, 0, "PR_SET_DUMPABLE")]

    def _die_with_parent(self, birth: Birth) -> Made:
        return "", [kernel.prepare_death()]

    def _landlock(self, birth: Birth) -> Made:
        """Makes the rules; a directory in memory can be named in one when it is there."""
        rules = self._ruleset = landlock.Ruleset()
        for path, rights in _accesses(birth):
            rules.allow(path, rights)
        acts: list[Act] = [rules.prepare()]
        if birth.jail.own_root:
            acts.insert(0, partial(rules.allow, SCRATCH, landlock.SCRATCH))
        else:
            rules.allow(birth.scratch, landlock.SCRATCH)
        return f"version {landlock.version()}", acts

    def _filter(self, birth: Birth) -> Made:
        """Refuses what no handler needs, and new processes where nothing else would end them."""
        may_fork = birth.jail.process_namespaces and birth.bounded
        detail = "" if may_fork else "a worker makes threads, and no processes"
        return detail, [seccomp.prepare_filter(seccomp.worker_filter(may_fork))]


Made = tuple[str, Sequence[Act]]
"""How a measure holds, and what is to be done for it."""

Make = Callable[[Harness, Birth], Made]

STEPS: tuple[tuple[str, Make], ...] = (
    ("scratch directory", Harness._scratch),
    ("limits", Harness._limits),
    (PROCESSES, Harness._processes),
    ("own user id", Harness._user),
    ("no capabilities", Harness._capabilities),
    ("no new privileges", Harness._privileges),
    ("not dumpable", Harness._not_dumpable),
    ("ends with the zygote", Harness._die_with_parent),
    ("Landlock", Harness._landlock),
    ("system call filter", Harness._filter),
)


def _limit(kind: int, value: int) -> Act:
    return partial(resource.setrlimit, kind, (value, value))


def _control(option: int, value: int, about: str) -> Act:
    return prepare("prctl", option, value, 0, 0, 0, about=about)


def _accesses(birth: Birth) -> Iterator[landlock.Access]:
    """Gives what a worker may open beside its scratch: its path and the system's libraries."""
    for device in ("/dev/null", "/dev/zero"):
        yield device, landlock.READ_FILE | landlock.WRITE_FILE
    for device in ("/dev/random", "/dev/urandom"):
        yield device, landlock.READ_FILE
    for path in ("/",) if birth.jail.own_root else birth.reach.paths:
        yield from _around(path, birth.reach.hidden)


def _around(path: str, hidden: tuple[str, ...]) -> Iterator[landlock.Access]:
    """Gives the parts of a path that are not hidden.

    A right on a directory holds for all below it, so one with something hidden gets none, and
    its entries get theirs. That also hides a file that replaces a hidden one.
    """
    real = os.path.realpath(path)
    if real in hidden:
        return
    if not any(secret.startswith(real.rstrip("/") + "/") for secret in hidden):
        yield path, landlock.READING
        return
    yield path, landlock.READ_DIR
    for entry in _entries(path):
        yield from _around(f"{path.rstrip('/')}/{entry}", hidden)


def _entries(path: str) -> list[str]:
    """Lists a directory, which to one who may not has nothing."""
    try:
        return os.listdir(path)
    except OSError:
        return []
