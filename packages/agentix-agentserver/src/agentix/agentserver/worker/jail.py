"""The jail: what the zygote puts around itself once, so that every worker is born in it.

Namespaces are made here and not in each worker because a network namespace costs a millisecond to
make and many to remove. Only what separates workers from one another is made for each of them.
"""

# Paths are strings here: the kernel's calls take them, and pathlib would be imported for nothing.
# ruff: noqa: PTH103, PTH110, PTH112, PTH114, PTH115, PTH120, PTH100, PTH123, PTH211

from __future__ import annotations

import os
import resource
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass

from agentix.agentserver.worker import kernel
from agentix.agentserver.worker.kernel import KernelError, call, system_call
from agentix.agentserver.worker.plan import Plan
from agentix.agentserver.worker.report import Measure

__all__ = [
    "SCRATCH",
    "USERS",
    "Jail",
    "build",
    "enter_process_namespace",
    "readable_paths",
    "remove_scratch",
]

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
    """What the zygote has, and what it can therefore give to workers."""

    process_namespaces: bool = False
    """Each worker can be the first process of its own namespace."""
    processes: int = -1
    """A descriptor of the zygote's own namespace of processes, to return to after a fork."""
    user_namespace: bool = False
    """The zygote has its rights from a user namespace, in which there is one user."""
    own_root: bool = False
    """The root holds only what workers may read."""
    first_user: int = 0
    """The first of the user ids of workers; 0 where they stay with the zygote's."""
    no_users: str = ""
    """Why they do."""


def enter_process_namespace(jail: Jail) -> list[Measure]:
    """Lets the next child be the first process of a namespace, as an ordinary user does it too."""
    name = "process namespace"
    try:
        call("unshare", kernel.CLONE_NEWPID, about="CLONE_NEWPID")
    except KernelError:
        try:
            _enter_user_namespace()
            call("unshare", kernel.CLONE_NEWPID, about="CLONE_NEWPID")
        except (KernelError, OSError) as error:
            return [Measure(name, False, str(error))]
        jail.user_namespace = True
    jail.process_namespaces = True
    return [Measure(name, True)]


def build(plan: Plan, jail: Jail) -> list[Measure]:
    """Builds what can be built of the jail around this process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if jail.process_namespaces:
        jail.processes = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    users = _free_users()
    measures = [
        _attempt("network namespace", lambda: _unshare(kernel.CLONE_NEWNET)),
        _attempt("IPC namespace", lambda: _unshare(kernel.CLONE_NEWIPC)),
        _attempt("own root", lambda: _enter_own_root(plan)),
    ]
    jail.own_root = measures[-1].applied
    jail.no_users = _no_users(plan, jail, users)
    jail.first_user = 0 if jail.no_users else users
    return measures


def _no_users(plan: Plan, jail: Jail, first: int) -> str:
    """Gives the reason why workers can not have user ids from `first`, if there is one."""
    if os.geteuid() != 0:
        return f"the organism runs as user {os.geteuid()}, who can not give others"
    if jail.user_namespace:
        return "a user namespace has one user"
    if first == 0:
        return "too few user ids are mapped into this user namespace"
    unreadable = _unreadable_for(first, [path for path in plan["path"] if os.path.lexists(path)])
    if unreadable:
        return f"user {first} could not read {unreadable}"
    return ""


def remove_scratch(plan: Plan, number: int) -> None:
    """Removes the scratch directory of a worker that had no root of its own."""
    shutil.rmtree(f"{plan['scratch']}/{number}", ignore_errors=True)


def readable_paths(plan: Plan) -> list[str]:
    """Gives what workers may read, without paths that lie below others."""
    wanted = [*SYSTEM, f"{sys.base_prefix}/lib", *plan["path"], *plan["readable"]]
    wanted += [os.path.realpath(path) for path in wanted]
    found: list[str] = []
    for path in sorted({path for path in wanted if path != "/" and os.path.exists(path)}):
        if not any(path.startswith(f"{parent}/") for parent in found):
            found.append(path)
    return found


def _attempt(name: str, step: Callable[[], str | None]) -> Measure:
    try:
        return Measure(name, True, step() or "")
    except (KernelError, OSError) as error:
        return Measure(name, False, str(error))


def _enter_user_namespace() -> None:
    user, group = os.geteuid(), os.getegid()
    call("unshare", kernel.CLONE_NEWUSER, about="CLONE_NEWUSER")
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
    """Gives the first of `USERS` ids near the end of this user namespace; 0 where it has few."""
    with open("/proc/self/uid_map") as mapping:
        ranges = [tuple(map(int, line.split())) for line in mapping]
    first, _, count = max(ranges, key=lambda found: found[2])
    end = min(first + count, 2**31)
    return end - 2 * USERS if count > 4 * USERS else 0


def _unreadable_for(user: int, paths: list[str]) -> str:
    """Gives the first path that a user can not read, as a child finds it who becomes that user."""
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


def _enter_own_root(plan: Plan) -> str:
    """Makes a root that holds only what workers may read, and moves into it."""
    _unshare(kernel.CLONE_NEWNS)
    call("mount", None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE, None, about="/, private")
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
    call("umount2", ".", kernel.MNT_DETACH, about="the former root")
    os.chdir("/")
    flags = kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_RDONLY | kernel.MS_NOSUID
    call("mount", None, "/", None, flags, None, about="/, read-only")
    return f"{len(paths)} paths, read-only"


def mount_tmpfs(path: str, options: str, flags: int) -> None:
    call("mount", "tmpfs", path, "tmpfs", flags, options, about=f"tmpfs, {path}")


def open_tree(path: str, attributes: bytes) -> int:
    """Gives a detached copy of what is mounted at and below a path."""
    flags = CLONE_TREE | AT_RECURSIVE
    tree = system_call(OPEN_TREE, f"open_tree({path})", AT_FDCWD, path, flags)
    flags = AT_EMPTY_PATH | AT_RECURSIVE
    about = f"mount_setattr({path})"
    system_call(MOUNT_SETATTR, about, tree, "", flags, attributes, len(attributes))
    return tree


def attach(tree: int, path: str, is_directory: bool) -> None:
    """Mounts a detached tree at a path, which is made."""
    if is_directory:
        os.makedirs(path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    system_call(MOVE_MOUNT, f"move_mount({path})", tree, "", AT_FDCWD, path, FROM_DESCRIPTOR)
    os.close(tree)


def _cover(path: str, is_directory: bool) -> None:
    """Lays nothing over what is hidden."""
    if is_directory:
        mount_tmpfs(path, "size=4k,mode=0555", kernel.MS_RDONLY)
    else:
        call("mount", "/dev/null", path, None, kernel.MS_BIND, None, about=path)
