"""Isolation: the root, the user, the limits and the filters that hold a worker, one by one."""

from __future__ import annotations

import os
import resource
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from agentix.agentserver.errors import KernelError
from agentix.agentserver.worker import syscalls
from agentix.agentserver.worker.handlers import Mitigation
from agentix.agentserver.worker.protocol import ForkServerConfig
from agentix.agentserver.worker.syscalls import call, prepare, system_call

__all__ = [
    "CHANNEL",
    "PROCESSES",
    "SCRATCH",
    "USERS",
    "Jail",
    "Mitigations",
    "Reach",
    "Step",
    "WorkerConfig",
    "build",
    "enter_process_namespace",
    "keep_only",
    "reach",
    "readable_paths",
    "remove_scratch",
    "take_over",
]


# Paths are strings here: the syscalls's calls take them, and pathlib would be imported for nothing.
# ruff: noqa: PTH103, PTH110, PTH112, PTH114, PTH115, PTH120, PTH100, PTH123, PTH211


SCRATCH = "/scratch"
"""Where a worker finds its scratch directory, in a root of its own."""

BASE = os.path.dirname(os.path.abspath(__file__))
"""A directory to build the root over, which hides nothing that is still needed."""

SYSTEM = (
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/lib",
    "/lib32",
    "/lib64",
    "/nix/store",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/local/lib",
    "/usr/share/zoneinfo",
)
"""What Python and extension modules need of the system."""

DEVICES = ("/dev/null", "/dev/random", "/dev/urandom", "/dev/zero")

OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR = 428, 429, 442
"""These numbers are the same on all machines."""

AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
AT_RECURSIVE = 0x8000
CLONE_TREE = 1 | os.O_CLOEXEC
FROM_DESCRIPTOR = 4
READ_ONLY = (1 | 2 | 4).to_bytes(8, sys.byteorder) + bytes(24)
"""`struct mount_attr`: read-only, no set-user-id, no devices."""

KEEP_DEVICES = (1 | 2).to_bytes(8, sys.byteorder) + bytes(24)

USERS = 4096
"""How many user ids workers take turns with."""


@dataclass(slots=True)
class Jail:
    """What the fork server has, and what it can therefore give to workers."""

    process_namespaces: bool = False
    """Each worker can be the first process of its own namespace."""
    processes: int = -1
    """A descriptor of the fork server's own namespace of processes, to return to after a fork."""
    user_namespace: bool = False
    """The fork server has its rights from a user namespace, in which there is one user."""
    own_root: bool = False
    """The root holds only what workers may read."""
    first_user: int = 0
    """The first of the user ids of workers; 0 where they stay with the fork server's."""
    no_users: str = ""
    """Why they do."""


def enter_process_namespace(jail: Jail) -> list[Mitigation]:
    """Let the next child be the first process of a namespace, as an ordinary user does it too."""
    name = "process namespace"
    try:
        call("unshare", syscalls.CLONE_NEWPID, about="CLONE_NEWPID")
    except KernelError:
        try:
            _enter_user_namespace()
            call("unshare", syscalls.CLONE_NEWPID, about="CLONE_NEWPID")
        except (KernelError, OSError) as error:
            return [Mitigation(name, False, str(error))]
        jail.user_namespace = True
    jail.process_namespaces = True
    return [Mitigation(name, True)]


def build(plan: ForkServerConfig, jail: Jail) -> list[Mitigation]:
    """Build what can be built of the jail around this process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if jail.process_namespaces:
        jail.processes = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    users = _free_users()
    measures = [
        _attempt("network namespace", lambda: _unshare(syscalls.CLONE_NEWNET)),
        _attempt("IPC namespace", lambda: _unshare(syscalls.CLONE_NEWIPC)),
        _attempt("own root", lambda: _enter_own_root(plan)),
    ]
    jail.own_root = measures[-1].applied
    jail.no_users = _no_users(plan, jail, users)
    jail.first_user = 0 if jail.no_users else users
    return measures


def _no_users(plan: ForkServerConfig, jail: Jail, first: int) -> str:
    """Return the reason why workers cannot have user ids from `first`, if there is one."""
    if os.geteuid() != 0:
        return f"the organism runs as user {os.geteuid()}, who cannot give others"
    if jail.user_namespace:
        return "a user namespace has one user"
    if first == 0:
        return "too few user ids are mapped into this user namespace"
    unreadable = _unreadable_for(first, [path for path in plan["path"] if os.path.lexists(path)])
    if unreadable:
        return f"user {first} could not read {unreadable}"
    return ""


def remove_scratch(plan: ForkServerConfig, number: int) -> None:
    """Remove the scratch directory of a worker that had no root of its own."""
    shutil.rmtree(f"{plan['scratch']}/{number}", ignore_errors=True)


def readable_paths(plan: ForkServerConfig) -> list[str]:
    """Return what workers may read, without paths that lie below others."""
    wanted = [*SYSTEM, f"{sys.base_prefix}/lib", *plan["path"], *plan["readable"]]
    wanted += [os.path.realpath(path) for path in wanted]
    found: list[str] = []
    for path in sorted({path for path in wanted if path != "/" and os.path.exists(path)}):
        if not any(path.startswith(f"{parent}/") for parent in found):
            found.append(path)
    return found


def _attempt(name: str, step: Callable[[], str | None]) -> Mitigation:
    try:
        return Mitigation(name, True, step() or "")
    except (KernelError, OSError) as error:
        return Mitigation(name, False, str(error))


def _enter_user_namespace() -> None:
    user, group = os.geteuid(), os.getegid()
    call("unshare", syscalls.CLONE_NEWUSER, about="CLONE_NEWUSER")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        descriptor = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
        os.write(descriptor, text.encode())
        os.close(descriptor)


def _unshare(flag: int) -> None:
    call("unshare", flag, about=hex(flag))


def _free_users() -> int:
    """Return the first of `USERS` ids near the end of this user namespace; 0 where it has few."""
    with open("/proc/self/uid_map") as mapping:
        ranges = [tuple(map(int, line.split())) for line in mapping]
    first, _, count = max(ranges, key=lambda found: found[2])
    end = min(first + count, 2**31)
    return end - 2 * USERS if count > 4 * USERS else 0


def _unreadable_for(user: int, paths: list[str]) -> str:
    """Return the first path that a user cannot read, as a child finds it who becomes that user."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            missing = [path for path in paths if not os.access(path, os.R_OK)]
            os.write(writer, missing[0].encode() if missing else b"")
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    answer = os.read(reader, 4096).decode()
    os.close(reader)
    return answer


def _enter_own_root(plan: ForkServerConfig) -> str:
    """Make a root that holds only what workers may read, and move into it."""
    _unshare(syscalls.CLONE_NEWNS)
    call("mount", None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE, None, about="/, private")
    paths = readable_paths(plan)
    trees = [(path, open_tree(path, READ_ONLY)) for path in paths if not os.path.islink(path)]
    trees += [(path, open_tree(path, KEEP_DEVICES)) for path in DEVICES]
    links = [(path, os.readlink(path)) for path in paths if os.path.islink(path)]
    hidden = [path for path in map(os.path.realpath, plan["hidden"]) if os.path.exists(path)]
    kinds = {path: os.path.isdir(path) for path, _ in trees}
    covers = [(path, os.path.isdir(path)) for path in hidden]
    mount_tmpfs(BASE, "mode=0755", 0)
    for path, tree in trees:
        attach(tree, BASE + path, kinds[path])
    for path, target in links:
        os.makedirs(os.path.dirname(BASE + path), exist_ok=True)
        os.symlink(target, BASE + path)
    os.makedirs(BASE + SCRATCH, exist_ok=True)
    for path, is_directory in covers:
        if os.path.exists(BASE + path):
            _cover(BASE + path, is_directory)
    os.chdir(BASE)
    call("pivot_root", ".", ".", about=BASE)
    call("umount2", ".", syscalls.MNT_DETACH, about="the former root")
    os.chdir("/")
    flags = syscalls.MS_BIND | syscalls.MS_REMOUNT | syscalls.MS_RDONLY | syscalls.MS_NOSUID
    call("mount", None, "/", None, flags, None, about="/, read-only")
    return f"{len(paths)} paths, read-only"


def mount_tmpfs(path: str, options: str, flags: int) -> None:
    call("mount", "tmpfs", path, "tmpfs", flags, options, about=f"tmpfs, {path}")


def open_tree(path: str, attributes: bytes) -> int:
    """Return a detached copy of what is mounted at and below a path."""
    flags = CLONE_TREE | AT_RECURSIVE
    tree = system_call(OPEN_TREE, f"open_tree({path})", AT_FDCWD, path, flags)
    flags = AT_EMPTY_PATH | AT_RECURSIVE
    about = f"mount_setattr({path})"
    system_call(MOUNT_SETATTR, about, tree, "", flags, attributes, len(attributes))
    return tree


def attach(tree: int, path: str, is_directory: bool) -> None:
    """Mount a detached tree at a path, which is made."""
    if is_directory:
        os.makedirs(path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    system_call(MOVE_MOUNT, f"move_mount({path})", tree, "", AT_FDCWD, path, FROM_DESCRIPTOR)
    os.close(tree)


def _cover(path: str, is_directory: bool) -> None:
    """Lay nothing over what is hidden."""
    if is_directory:
        mount_tmpfs(path, "size=4k,mode=0555", syscalls.MS_RDONLY)
    else:
        call("mount", "/dev/null", path, None, syscalls.MS_BIND, None, about=path)


# Paths are strings here: the syscalls's calls take them, and pathlib would be imported for nothing.
# ruff: noqa: PTH102, PTH208


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
class WorkerConfig:
    """What a worker is born with."""

    plan: ForkServerConfig
    """What it is to be like."""
    jail: Jail
    """What the fork server has."""
    reach: Reach
    """What it may read."""
    user: int
    """Its user id; 0 where it stays with the fork server's."""
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
    """Why it cannot be taken; empty where it can."""


def reach(plan: ForkServerConfig) -> Reach:
    """Work out once what all workers may read."""
    paths = tuple(readable_paths(plan))
    hidden = (os.path.realpath(path) for path in plan["hidden"])
    return Reach(paths, tuple(path for path in hidden if _is_below(path, paths)))


def _is_below(path: str, parents: tuple[str, ...]) -> bool:
    return any(path == parent or path.startswith(f"{parent}/") for parent in parents)


def take_over(channel: int, output: int, wakers: Sequence[tuple[int, int]]) -> None:
    """Put the descriptors of a worker where it looks for them.

    Args:
        channel: The socket to the pump.
        output: The pipe to the log.
        wakers: What wakes its event loop: each descriptor that the worker is to have of its own,
            and the one of the fork server's that it takes the place of.
    """
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.dup2(channel, CHANNEL)
    for own, place in wakers:
        os.dup2(own, place)


def keep_only(descriptors: Sequence[int], end: int) -> None:
    """Let go of every descriptor but the first ones and some others.

    Args:
        descriptors: The others, in their order.
        end: What every descriptor is below.
    """
    start = CHANNEL + 1
    for descriptor in descriptors:
        os.closerange(start, descriptor)
        start = descriptor + 1
    os.closerange(start, end)


class Mitigations:
    """All measures for one worker: the fork server makes them ready, and the worker puts them on.

    Args:
        birth: What the worker is born with.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._ruleset: syscalls.Ruleset | None = None
        self.steps = tuple(self._ready(name, make, config) for name, make in STEPS)
        """The measures, in this order: each needs rights that a later one gives up."""

    def apply(self) -> dict[str, str]:
        """Take, in a worker, all measures that this machine allows.

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
        """Let go of what was made ready, in the fork server."""
        if self._ruleset is not None:
            self._ruleset.close()

    def _ready(self, name: str, make: Make, config: WorkerConfig) -> Step:
        try:
            detail, acts = make(self, config)
        except (KernelError, OSError, ValueError) as error:
            return Step(name, failure=str(error))
        return Step(name, acts, detail)

    def _scratch(self, config: WorkerConfig) -> Made:
        """Return a worker a directory of its own, in memory where it has a root of its own."""
        if config.jail.own_root:
            size = max(config.plan["file_size"], resource.getpagesize())  # 0 would be no bound
            options = f"size={size},nr_inodes=4096,mode=0700"
            if config.user:
                options += f",uid={config.user},gid={config.user}"
            flags = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
            about = f"tmpfs, {SCRATCH}"
            return f"{size} bytes in memory", [
                prepare("unshare", syscalls.CLONE_NEWNS, about="CLONE_NEWNS"),
                prepare("mount", "tmpfs", SCRATCH, "tmpfs", flags, options, about=about),
                partial(os.chdir, SCRATCH),
            ]
        os.mkdir(config.scratch, 0o700)
        if config.user:
            os.chown(config.scratch, config.user, config.user)
        return "a directory on disk, of no bounded size", [partial(os.chdir, config.scratch)]

    def _limits(self, config: WorkerConfig) -> Made:
        plan = config.plan
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

    def _processes(self, config: WorkerConfig) -> Made:
        """Bound processes and threads, which the kernel counts by user and user namespace."""
        most = config.plan["processes"]
        acts: list[Act] = [_limit(resource.RLIMIT_NPROC, most)]
        if not config.user:
            if os.getuid() == 0:
                raise KernelError("the kernel does not bound root")
            acts.insert(0, prepare("unshare", syscalls.CLONE_NEWUSER, about="CLONE_NEWUSER"))
        return f"{most}", acts

    def _user(self, config: WorkerConfig) -> Made:
        user = config.user
        if not user:
            raise KernelError(config.jail.no_users)
        return "", [
            partial(os.setgroups, []),
            partial(os.setresgid, user, user, user),
            partial(os.setresuid, user, user, user),
        ]

    def _capabilities(self, config: WorkerConfig) -> Made:
        return "", [syscalls.prepare_capabilities()]

    def _privileges(self, config: WorkerConfig) -> Made:
        return "", [_control(syscalls.PR_SET_NO_NEW_PRIVS, 1, "PR_SET_NO_NEW_PRIVS")]

    def _not_dumpable(self, config: WorkerConfig) -> Made:
        return "", [_control(syscalls.PR_SET_DUMPABLE, 0, "PR_SET_DUMPABLE")]

    def _die_with_parent(self, config: WorkerConfig) -> Made:
        return "", [syscalls.prepare_death()]

    def _landlock(self, config: WorkerConfig) -> Made:
        """Make the rules; a directory in memory can be named in one when it is there."""
        rules = self._ruleset = syscalls.Ruleset()
        for path, rights in _accesses(config):
            rules.allow(path, rights)
        acts: list[Act] = [rules.prepare()]
        if config.jail.own_root:
            acts.insert(0, partial(rules.allow, SCRATCH, syscalls.SCRATCH))
        else:
            rules.allow(config.scratch, syscalls.SCRATCH)
        return f"version {syscalls.version()}", acts

    def _filter(self, config: WorkerConfig) -> Made:
        """Refuse what no handler needs, and new processes where nothing else would end them."""
        may_fork = config.jail.process_namespaces and config.bounded
        detail = "" if may_fork else "a worker makes threads, and no processes"
        return detail, [syscalls.prepare_filter(syscalls.worker_filter(may_fork))]


Made = tuple[str, Sequence[Act]]
"""How a measure holds, and what is to be done for it."""

Make = Callable[[Mitigations, WorkerConfig], Made]

STEPS: tuple[tuple[str, Make], ...] = (
    ("scratch directory", Mitigations._scratch),
    ("limits", Mitigations._limits),
    (PROCESSES, Mitigations._processes),
    ("own user id", Mitigations._user),
    ("no capabilities", Mitigations._capabilities),
    ("no new privileges", Mitigations._privileges),
    ("not dumpable", Mitigations._not_dumpable),
    ("ends with the fork server", Mitigations._die_with_parent),
    ("Landlock", Mitigations._landlock),
    ("system call filter", Mitigations._filter),
)


def _limit(kind: int, value: int) -> Act:
    return partial(resource.setrlimit, kind, (value, value))


def _control(option: int, value: int, about: str) -> Act:
    return prepare("prctl", option, value, 0, 0, 0, about=about)


def _accesses(config: WorkerConfig) -> Iterator[syscalls.Access]:
    """Return what a worker may open beside its scratch: its path and the system's libraries."""
    for device in ("/dev/null", "/dev/zero"):
        yield device, syscalls.READ_FILE | syscalls.WRITE_FILE
    for device in ("/dev/random", "/dev/urandom"):
        yield device, syscalls.READ_FILE
    for path in ("/",) if config.jail.own_root else config.reach.paths:
        yield from _around(path, config.reach.hidden)


def _around(path: str, hidden: tuple[str, ...]) -> Iterator[syscalls.Access]:
    """Return the parts of a path that are not hidden.

    A right on a directory holds for all below it, so one with something hidden gets none, and
    its entries get theirs. That also hides a file that replaces a hidden one.
    """
    real = os.path.realpath(path)
    if real in hidden:
        return
    if not any(secret.startswith(real.rstrip("/") + "/") for secret in hidden):
        yield path, syscalls.READING
        return
    yield path, syscalls.READ_DIR
    for entry in _entries(path):
        yield from _around(f"{path.rstrip('/')}/{entry}", hidden)


def _entries(path: str) -> list[str]:
    """List a directory, which to one who may not has nothing."""
    try:
        return os.listdir(path)
    except OSError:
        return []
