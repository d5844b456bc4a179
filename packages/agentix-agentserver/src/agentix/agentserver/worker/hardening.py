"""Hardening: what a new worker does to itself before it reads a line of a handler's code."""

# Paths are strings here: the kernel's calls take them, and pathlib would be imported for nothing.
# ruff: noqa: PTH102, PTH208

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from agentix.agentserver.worker import kernel, landlock, seccomp
from agentix.agentserver.worker.jail import SCRATCH, Jail, readable_paths
from agentix.agentserver.worker.kernel import KernelError, call
from agentix.agentserver.worker.plan import Plan
from agentix.agentserver.worker.report import Measure

__all__ = ["CHANNEL", "Birth", "Reach", "harden", "keep_only", "reach"]

CHANNEL = 3
"""The descriptor of the socket to the pump in a worker."""


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


def reach(plan: Plan) -> Reach:
    """Works out once what all workers may read."""
    paths = tuple(readable_paths(plan))
    hidden = (os.path.realpath(path) for path in plan["hidden"])
    return Reach(paths, tuple(path for path in hidden if _is_below(path, paths)))


def _is_below(path: str, parents: tuple[str, ...]) -> bool:
    return any(path == parent or path.startswith(f"{parent}/") for parent in parents)


def keep_only(channel: int, output: int) -> None:
    """Lets go of every descriptor but the socket to the pump and the pipe to the log."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.dup2(channel, CHANNEL)
    os.closerange(CHANNEL + 1, os.sysconf("SC_OPEN_MAX"))


def harden(birth: Birth) -> list[Measure]:
    """Applies all that this machine allows, and says what it did not allow."""
    return [_attempt(name, step, birth) for name, step in STEPS]


def _attempt(name: str, step: Callable[[Birth], str | None], birth: Birth) -> Measure:
    try:
        return Measure(name, True, step(birth) or "")
    except (KernelError, OSError, ValueError) as error:
        return Measure(name, False, str(error))


def _scratch(birth: Birth) -> str:
    """Gives a worker a directory of its own, in memory where it has a root of its own."""
    if birth.jail.own_root:
        call("unshare", kernel.CLONE_NEWNS, about="CLONE_NEWNS")
        size = max(birth.plan["file_size"], resource.getpagesize())  # 0 would be no bound
        options = f"size={size},nr_inodes=4096,mode=0700"
        if birth.user:
            options += f",uid={birth.user},gid={birth.user}"
        flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
        call("mount", "tmpfs", SCRATCH, "tmpfs", flags, options, about=f"tmpfs, {SCRATCH}")
        os.chdir(SCRATCH)
        return f"{size} bytes in memory"
    os.mkdir(birth.scratch, 0o700)
    if birth.user:
        os.chown(birth.scratch, birth.user, birth.user)
    os.chdir(birth.scratch)
    return "a directory on disk, of no bounded size"


def _limits(birth: Birth) -> str:
    plan = birth.plan
    limits = {
        resource.RLIMIT_AS: plan["memory"],
        resource.RLIMIT_CPU: plan["cpu"],
        resource.RLIMIT_NOFILE: plan["open_files"],
        resource.RLIMIT_FSIZE: plan["file_size"],
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    for limit, value in limits.items():
        resource.setrlimit(limit, (value, value))
    return "memory, processor, open files, file size"


def _processes(birth: Birth) -> str:
    """Bounds processes and threads, which the kernel counts by user and user namespace."""
    if not birth.user:
        if os.getuid() == 0:
            raise KernelError("the kernel does not bound root")
        call("unshare", kernel.CLONE_NEWUSER, about="CLONE_NEWUSER")
    most = birth.plan["processes"]
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    birth.jail.bounded_processes = True
    return f"{most}"


def _user(birth: Birth) -> str:
    if not birth.user:
        raise KernelError("no user id to give")
    os.setgroups([])
    os.setresgid(birth.user, birth.user, birth.user)
    os.setresuid(birth.user, birth.user, birth.user)
    return ""


def _capabilities(birth: Birth) -> None:
    kernel.drop_capabilities()


def _privileges(birth: Birth) -> None:
    call("prctl", kernel.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, about="PR_SET_NO_NEW_PRIVS")


def _not_dumpable(birth: Birth) -> None:
    call("prctl", kernel.PR_SET_DUMPABLE, 0, 0, 0, 0, about="PR_SET_DUMPABLE")


def _die_with_parent(birth: Birth) -> None:
    kernel.die_with_parent()


def _landlock(birth: Birth) -> str:
    landlock.restrict(_accesses(birth))
    return f"version {landlock.version()}"


def _accesses(birth: Birth) -> Iterator[landlock.Access]:
    """Gives what a worker may open: its path and the system's libraries, and its scratch."""
    yield SCRATCH if birth.jail.own_root else birth.scratch, landlock.SCRATCH
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


def _filter(birth: Birth) -> str:
    """Refuses calls that no handler needs, and new processes where nothing else would end them."""
    may_fork = birth.jail.process_namespaces and birth.jail.bounded_processes
    seccomp.install(seccomp.worker_filter(may_fork))
    return "" if may_fork else "a worker makes threads, and no processes"


STEPS: tuple[tuple[str, Callable[[Birth], str | None]], ...] = (
    ("scratch directory", _scratch),
    ("limits", _limits),
    ("limit of processes", _processes),
    ("own user id", _user),
    ("no capabilities", _capabilities),
    ("no new privileges", _privileges),
    ("not dumpable", _not_dumpable),
    ("ends with the zygote", _die_with_parent),
    ("Landlock", _landlock),
    ("system call filter", _filter),
)
"""What is applied, in this order: each step needs rights that a later one gives up."""
