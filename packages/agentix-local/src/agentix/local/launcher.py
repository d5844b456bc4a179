"""The launcher: gives one sandbox its namespaces and its root, starts its runtime, and guards it.

It runs as a script of its own, `python -I -S launcher.py OWNER`, reads a `Plan` from standard
input, and then holds that pipe as the *lease* of the sandbox:

    owner ── lease ──► launcher ──► init (pid 1 of the sandbox) ──► runtime

The launcher stays outside of the sandbox, where nothing inside can reach it. When the lease ends,
or the owner does, it kills pid 1, which makes the kernel kill all that lives in the sandbox, and
removes what the sandbox had on the host. Pid 1 reaps orphans, passes SIGTERM on to the runtime and
ends as the runtime does. It dies with the launcher.

The owner's listening socket goes the same way, and each hands it on without keeping it: once the
runtime has ended, connecting is refused.

Everything here is on the way of a sandbox's start, so it imports only what starts fast, and calls
the kernel itself (open_tree(2), mount_setattr(2), pivot_root(2), user_namespaces(7)).
"""

# Importing pathlib or contextlib would double the time until the sandbox starts.
# ruff: noqa: PTH101, PTH102, PTH103, PTH108, PTH112, PTH113, PTH114, PTH115, PTH118, PTH120
# ruff: noqa: PTH123, PTH208, PTH211, S108, SIM105

from __future__ import annotations

import ctypes
import errno
import marshal
import os
import select
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from agentix.local.plan import Plan

__all__ = ["INNER_SOCKET", "LISTENER", "REFUSED", "REFUSED_PREFIX", "main"]

INNER_SOCKET = "/nix/agentix.sock"
"""Where programs in the sandbox reach the runtime, as functions of one namespace call another: the
one inode that the runtime listens on, below a directory that nobody in there can change."""

REFUSED = 125
"""The exit code of a launcher whose kernel refused a call."""

REFUSED_PREFIX = "agentix-launcher: refused: "
"""How the line starts that names the refused call."""

LISTENER = 3
"""The descriptor of the listening socket in the runtime."""

LAUNCHER = 4
"""The descriptor of a pipe in init whose other end only the launcher has."""

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MNT_DETACH = 2

AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
AT_RECURSIVE = 0x8000
OPEN_TREE_CLONE = 1
OPEN_TREE_CLOEXEC = os.O_CLOEXEC
MOVE_MOUNT_F_EMPTY_PATH = 4
MOUNT_ATTR_RDONLY = 1
MOUNT_ATTR_NOSUID = 2
MOUNT_ATTR_NODEV = 4
MOUNT_ATTR_NOEXEC = 8

SYSTEM_CALLS = {"open_tree": 428, "move_mount": 429, "mount_setattr": 442}
"""Calls without a function in every C library; these numbers are the same on all machines."""

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_CAPBSET_READ = 23
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4

KEYCTL = {"aarch64": 219, "riscv64": 219, "x86_64": 250}
"""The number of keyctl(2), which no C library has, on each machine."""

KEYCTL_JOIN_SESSION_KEYRING = 1

RLIMIT_CORE = 4

CAPABILITY_VERSION_3 = 0x20080522
KEPT_CAPABILITIES = {
    0,  # CHOWN
    1,  # DAC_OVERRIDE
    3,  # FOWNER
    4,  # FSETID
    5,  # KILL
    6,  # SETGID
    7,  # SETUID
    10,  # NET_BIND_SERVICE
    18,  # SYS_CHROOT
    31,  # SETFCAP
}
"""What the root of a task image needs to install and run software, as in a container."""

OWN_DIRECTORIES = {"dev", "mnt", "nix", "proc", "run", "sys", "tmp", "workspace"}
"""Top directories that are the sandbox's own, whatever the task image has there."""

SCRATCH = (
    ("workspace", "workspace", 0o777),
    ("tmp", "tmp", 0o1777),
    ("run", "run", 0o755),
    ("var-tmp", "var/tmp", 0o1777),
    ("shm", "dev/shm", 0o1777),
)
"""What the sandbox may write: the name in its one file system, the place, and the mode."""

SYSTEM_V_SHARE = 1 / 8
"""The part of lasting memory that is for System V shared memory; the rest is for files."""

BYTES_PER_INODE = 8192
"""Bytes of files for each inode. An empty file takes 1 KiB of the kernel's memory, which counts."""

SYSTEM_V_LIMITS = (("msgmni", "64"), ("sem", "250 32000 32 128"))
"""At most 1 MiB of messages and 2 MiB of semaphores (proc(5)); by default these are gigabytes."""

FIXED = "size=16m,nr_inodes=64k,mode=0755"
"""Options of the file systems that are read-only once they are made."""

DEVICES = ("full", "null", "random", "tty", "urandom", "zero")

READ_ONLY_IN_PROC = ("bus", "fs", "irq", "sys", "sysrq-trigger")
MASKED = (
    "proc/acpi",
    "proc/asound",
    "proc/kcore",
    "proc/keys",
    "proc/latency_stats",
    "proc/sched_debug",
    "proc/scsi",
    "proc/timer_list",
    "sys/devices/virtual/powercap",
    "sys/firmware",
    "sys/fs/bpf",
    "sys/kernel/debug",
    "sys/kernel/tracing",
)
"""What speaks of the host, or to it; container engines hide the same."""

LIBC = ctypes.CDLL(None, use_errno=True)


class RefusedError(Exception):
    """The kernel refused a call that the sandbox needs."""


def call(name: str, *arguments: object, about: str = "") -> int:
    """Call the kernel.

    Raises:
        RefusedError: It gave an error; the message names the call, its object, and the error.
    """
    if name in SYSTEM_CALLS:
        number = ctypes.c_long(SYSTEM_CALLS[name])
        result: int = LIBC.syscall(number, *map(_as_argument, arguments))
    else:
        result = getattr(LIBC, name)(*map(_as_argument, arguments))
    if result < 0:
        code = ctypes.get_errno()
        symbol = errno.errorcode.get(code, str(code))
        raise RefusedError(f"{name}({about}): {symbol} ({os.strerror(code)})")
    return result


def _as_argument(value: object) -> object:
    """Give every integer the width of a register, and text as bytes."""
    match value:
        case str():
            return os.fsencode(value)
        case int():
            return ctypes.c_long(value)
        case _:
            return value


class MountAttributes(ctypes.Structure):
    """`struct mount_attr` of mount_setattr(2)."""

    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


class CapabilityHeader(ctypes.Structure):
    """`struct __user_cap_header_struct` of capset(2)."""

    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class CapabilityData(ctypes.Structure):
    """`struct __user_cap_data_struct` of capset(2)."""

    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def main() -> NoReturn:
    """Read a plan, run its sandbox to the end, clean up, and exit as its runtime did."""
    owner = _watch_owner(int(sys.argv[1]))
    plan: Plan = marshal.load(sys.stdin.buffer)  # noqa: S302 - written by the owner's own process
    call("prctl", PR_SET_PDEATHSIG, 0, 0, 0, 0)
    try:
        init = _fork_init(plan)
    except RefusedError as refused:
        _report(refused)
        _remove_traces(plan)
        os._exit(REFUSED)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(init, signal.SIGTERM))
    status = _guard(init, owner)
    _kill_descendants()
    _remove_traces(plan)
    os._exit(_exit_code(status))


def _watch_owner(pid: int) -> int:
    """Return a descriptor of the owner, and die with it until its plan is here.

    A child that the owner forked may keep the pipe open for ever without writing to it.
    """
    call("prctl", PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != pid:
        os._exit(REFUSED)
    return os.pidfd_open(pid)


def _report(refused: RefusedError) -> None:
    os.write(2, f"{REFUSED_PREFIX}{refused}\n".encode())


def _exit_code(status: int) -> int:
    """Return a wait status as a shell does: 128 and the signal's number for a signal."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _fork_init(plan: Plan) -> int:
    """Start the process that becomes pid 1 of the sandbox, and return its pid here."""
    if plan["isolated"]:
        _enter_pid_namespace()
    # From here on this process and init hold the token, in memory that nobody else may read.
    call("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0, about="PR_SET_DUMPABLE")
    call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    launcher, alive = os.pipe()
    init = os.fork()
    if init == 0:
        os.close(alive)
        _be_init(plan, launcher)
    os.close(launcher)
    os.close(plan["listener"])
    try:
        # The kernel takes milliseconds to move a process, in which init makes the root.
        for directory in plan["cgroups"]:
            _write(f"{directory}/cgroup.procs", str(init))
    except RefusedError:
        os.kill(init, signal.SIGKILL)
        os.waitpid(init, 0)
        raise
    try:
        os.write(alive, b"\0")
    except BrokenPipeError:
        pass  # it has ended already, and said why
    return init


def _enter_pid_namespace() -> None:
    """Let the next child be pid 1: directly as root, otherwise as root of a user namespace."""
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        try:
            call("unshare", CLONE_NEWPID)
        except RefusedError:
            pass  # a root without SYS_ADMIN goes the way of an ordinary user
        else:
            _leave_groups()
            return
    call("unshare", CLONE_NEWUSER, about="CLONE_NEWUSER")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"0 {user} 1"),
        ("gid_map", f"0 {group} 1"),
    ):
        _write(f"/proc/self/{name}", text)
    call("unshare", CLONE_NEWPID, about="CLONE_NEWPID")


def _leave_groups() -> None:
    try:
        os.setgroups([])
    except PermissionError:
        pass  # the root of a user namespace may have been denied it, as setgroups tells in proc(5)


def _write(path: str, text: str) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        raise RefusedError(f"write({path}, {text!r}): {error.strerror}") from error


def _guard(init: int, owner: int) -> int:
    """Wait for the end of the sandbox, and end it when the lease or the owner ends."""
    watched = select.poll()
    end = os.pidfd_open(init)
    watched.register(end, select.POLLIN)
    watched.register(owner, select.POLLIN)
    watched.register(sys.stdin.fileno(), 0)
    ready = {descriptor for descriptor, _ in watched.poll()}
    if end not in ready:
        signal.pidfd_send_signal(end, signal.SIGKILL)
    return os.waitpid(init, 0)[1]


def _kill_descendants() -> None:
    """End what outlives pid 1 where there is no pid namespace: its orphans are handed to us."""
    while True:
        with open(f"/proc/self/task/{os.getpid()}/children") as children:
            for child in children.read().split():
                os.kill(int(child), signal.SIGKILL)
        try:
            os.wait()
        except ChildProcessError:
            return


def _remove_traces(plan: Plan) -> None:
    """Remove what the sandbox has on the host; the owner, who may be gone, does so too."""
    for parent, directories, _ in os.walk(plan["control"]):
        for name in directories:
            if not os.path.islink(f"{parent}/{name}"):
                _without_error(_open_up, f"{parent}/{name}")
    for parent, directories, files in os.walk(plan["control"], topdown=False):
        for name in files:
            _without_error(os.unlink, f"{parent}/{name}")
        for name in directories:
            _without_error(os.rmdir, f"{parent}/{name}")
            _without_error(os.unlink, f"{parent}/{name}")
    for directory in (plan["control"], *plan["cgroups"]):
        _without_error(os.rmdir, directory)


def _open_up(directory: str) -> None:
    """Let an ordinary user remove what is in a directory that was made read-only."""
    os.chmod(directory, 0o700)


def _without_error(remove: Callable[[str], None], path: str) -> None:
    try:
        remove(path)
    except OSError:
        pass


def _be_init(plan: Plan, launcher: int) -> NoReturn:
    """Become pid 1: make the sandbox, start the runtime in it, and reap until that ends."""
    init = os.getpid()
    try:
        call("prctl", PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        _keep_descriptors(plan["listener"], launcher)
        os.umask(0o022)
        if plan["isolated"]:
            _isolate(plan)
        else:
            call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        os.chdir(plan["directory"])
        _put_token(plan)
        _await_launcher()
        runtime = os.fork()
    except RefusedError as refused:
        _report(refused)
        os._exit(REFUSED)
    except OSError as error:
        _report(RefusedError(str(error)))
        os._exit(REFUSED)
    if runtime == 0:
        _execute(plan, init)
    os.close(LISTENER)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(runtime, signal.SIGTERM))
    while True:
        child, status = os.wait()
        if child == runtime:
            os._exit(_exit_code(status))


def _keep_descriptors(listener: int, launcher: int) -> None:
    """Close all descriptors but output, the listening socket and the pipe of the launcher."""
    kept = os.dup(listener), os.dup(launcher), os.open("/dev/null", os.O_RDONLY)
    for descriptor, number in zip(kept, (LISTENER, LAUNCHER, 0), strict=True):
        os.dup2(descriptor, number)
    os.closerange(LAUNCHER + 1, os.sysconf("SC_OPEN_MAX"))


def _await_launcher() -> None:
    """Wait until the launcher has put this process into its control groups.

    A launcher that ended before the kernel was told to kill this process with it shows here too.
    """
    if not os.read(LAUNCHER, 1):
        os._exit(REFUSED)
    os.close(LAUNCHER)


def _put_token(plan: Plan) -> None:
    """Write the token where only the runtime finds it, which removes it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(plan["token_file"], flags, 0o600)
    os.write(descriptor, plan["token"].encode())
    os.close(descriptor)


def _execute(plan: Plan, init: int) -> NoReturn:
    """Become the runtime."""
    command = plan["command"]
    try:
        if not plan["isolated"]:
            call("prctl", PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            if os.getppid() != init:
                os._exit(REFUSED)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        os.execve(command[0], command, plan["environment"])  # noqa: S606 - it has no arguments
    except OSError as error:
        os.write(2, f"agentix-launcher: {command[0]}: {error.strerror}\n".encode())
    os._exit(127)


def _isolate(plan: Plan) -> None:
    flags = CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS
    call("unshare", flags, about="CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS")
    call("sethostname", plan["hostname"], len(plan["hostname"]), about=plan["hostname"])
    _leave_keyring()
    _forbid_core_dumps()
    if plan["private_network"]:
        call("unshare", CLONE_NEWNET, about="CLONE_NEWNET")
        _raise_loopback()
    _build_root(plan)
    _drop_privileges()


def _leave_keyring() -> None:
    """Join a session keyring of its own: keys(7) of the owner's are readable by whoever has it."""
    number = KEYCTL.get(os.uname().machine)
    if number is None:
        return
    joined = LIBC.syscall(ctypes.c_long(number), KEYCTL_JOIN_SESSION_KEYRING, None)
    # Any other error is that of a kernel that gives no keys to this process, nor to its children.
    if joined < 0 and ctypes.get_errno() == errno.EDQUOT:
        about = "KEYCTL_JOIN_SESSION_KEYRING"
        raise RefusedError(f"keyctl({about}): EDQUOT (see maxkeys in /proc/sys/kernel/keys)")


def _forbid_core_dumps() -> None:
    """Keep crashes from the host's disk, on which a program that takes core dumps puts them.

    Such a program is started outside of the sandbox whatever the limit, but for the limit of 1
    (`do_coredump` of the kernel; core(5)).
    """
    limit = (ctypes.c_ulong * 2)(1, 1)
    call("setrlimit", RLIMIT_CORE, ctypes.byref(limit), about="RLIMIT_CORE")


def _raise_loopback() -> None:
    """Set the interface `lo` up (netdevice(7): SIOCSIFFLAGS with IFF_UP)."""
    descriptor = call("socket", 2, 2 | os.O_CLOEXEC, 0, about="AF_INET")
    request = b"lo".ljust(16, b"\0") + (1).to_bytes(2, sys.byteorder)
    call("ioctl", descriptor, 0x8914, request.ljust(40, b"\0"), about="SIOCSIFFLAGS, lo")
    os.close(descriptor)


def _build_root(plan: Plan) -> None:
    """Make the root of the sandbox and move into it.

    Sources are opened as detached mounts first, before anything covers their paths.
    """
    call("mount", None, "/", None, MS_REC | MS_PRIVATE, None, about="/, MS_REC | MS_PRIVATE")
    sources = _open_sources(plan)
    names = _open_name_service(plan)
    image = [] if plan["writable"] else _open_image(plan["image"])
    base = _make_scratch(plan)
    root = _lay_over(plan, base) if plan["writable"] else _lay_read_only(image, base)
    _mount_own_directories(root, base)
    for name, tree in sources:
        _attach(tree, f"{root}/{name}")
    _link_store(root, plan)
    _fill_dev(root, base)
    for name in ("mnt", "nix", "dev"):
        _set_attributes(AT_FDCWD, f"{root}/{name}", 0, READ_ONLY, f"/{name}")
    _fill_proc_and_sys(root, plan)
    _attach_name_service(root, names)
    _hide(root, plan["hidden"])
    _enter(root)
    attributes = READ_ONLY & ~MOUNT_ATTR_RDONLY if plan["writable"] else READ_ONLY
    _set_attributes(AT_FDCWD, "/", 0, attributes, "/")


def _open_sources(plan: Plan) -> list[tuple[str, tuple[int, bool]]]:
    """Open what goes into the sandbox's own directories, by its path there."""
    return [
        *((f"mnt/{name}", _open_tree(source)) for name, source in plan["mounts"]),
        *((path.lstrip("/"), _open_tree(path)) for path in plan["host_paths"]),
        (INNER_SOCKET.lstrip("/"), _open_tree(plan["socket"], READ_ONLY | MOUNT_ATTR_NOEXEC)),
    ]


def _make_scratch(plan: Plan) -> str:
    """Make the one file system that holds all that the sandbox writes, and return where it is.

    Its pages count against the memory of the sandbox, and no end of a process frees them. So it is
    full before that memory is, and who fills it reads ENOSPC.
    """
    base = plan["control"]
    size = int(plan["lasting_memory"] * (1 - SYSTEM_V_SHARE))
    _mount_tmpfs(base, f"size={size},nr_inodes={size // BYTES_PER_INODE},mode=0700")
    for name, _, mode in SCRATCH:
        os.mkdir(f"{base}/{name}")
        os.chmod(f"{base}/{name}", mode)
    for name in ("upper", "work", "root"):
        os.mkdir(f"{base}/{name}")
    return base


def _lay_read_only(image: list[tuple[str, tuple[int, bool] | str]], base: str) -> str:
    """Return a tmpfs into which each top entry of the task image is bound.

    A read-only task image cannot take mount points, and the host's root has other mounts in it.
    """
    root = f"{base}/root"
    _mount_tmpfs(root, FIXED)
    for name, tree in image:
        _attach(tree, f"{root}/{name}")
    return root


def _lay_over(plan: Plan, base: str) -> str:
    """Return the task image under a layer of the scratch file system that takes all changes."""
    lower = plan["image"]
    for character in ("\\", ":", ","):
        lower = lower.replace(character, f"\\{character}")
    options = f"lowerdir={lower},upperdir={base}/upper,workdir={base}/work"
    if _in_user_namespace():
        options += ",userxattr"
    about = f"overlay, {plan['image']}"
    call("mount", "overlay", f"{base}/root", "overlay", MS_NOSUID | MS_NODEV, options, about=about)
    return f"{base}/root"


def _in_user_namespace() -> bool:
    with open("/proc/self/uid_map") as mapping:
        return mapping.read().split() != ["0", "0", "4294967295"]


def _mount_own_directories(root: str, base: str) -> None:
    """Make the directories that are the sandbox's own, whatever the task image has there."""
    for name in OWN_DIRECTORIES:
        if os.path.islink(f"{root}/{name}"):
            os.unlink(f"{root}/{name}")
        os.makedirs(f"{root}/{name}", exist_ok=True)
    for name in ("mnt", "nix"):
        _mount_tmpfs(f"{root}/{name}", FIXED)
    for name, place, _ in SCRATCH:
        if place != "dev/shm" and _is_directory(f"{root}/{place}"):
            _attach(_open_tree(f"{base}/{name}", WRITABLE), f"{root}/{place}")
    _make_home(root)


def _is_directory(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _mount_tmpfs(target: str, options: str, flags: int = MS_NOSUID | MS_NODEV) -> None:
    call("mount", "tmpfs", target, "tmpfs", flags, options, about=f"tmpfs, {target}")


WRITABLE = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV
READ_ONLY = MOUNT_ATTR_RDONLY | WRITABLE


def _open_tree(source: str, attributes: int = READ_ONLY) -> tuple[int, bool]:
    """Clone the mounts at and below a path, with `attributes` on each of them.

    Returns:
        The detached mounts, and whether their root is a directory.
    """
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE
    tree = call("open_tree", AT_FDCWD, source, flags, about=source)
    _set_attributes(tree, "", AT_EMPTY_PATH | AT_RECURSIVE, attributes, source)
    return tree, os.path.isdir(source)


def _set_attributes(descriptor: int, path: str, flags: int, attributes: int, about: str) -> None:
    wanted = MountAttributes(attributes, 0, MS_PRIVATE, 0)
    size = ctypes.sizeof(wanted)
    call("mount_setattr", descriptor, path, flags, ctypes.byref(wanted), size, about=about)


def _attach(tree: tuple[int, bool] | str, target: str) -> None:
    """Put a detached tree at a path, which is made where it is missing; or make a link."""
    if isinstance(tree, str):
        os.symlink(tree, target)
        return
    descriptor, directory = tree
    if not os.path.lexists(target):
        os.makedirs(target if directory else os.path.dirname(target), exist_ok=True)
        if not directory:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    call("move_mount", descriptor, "", AT_FDCWD, target, MOVE_MOUNT_F_EMPTY_PATH, about=target)
    os.close(descriptor)


def _open_image(image: str) -> list[tuple[str, tuple[int, bool] | str]]:
    """Open each top entry of the task image; links are given as their text."""
    found: list[tuple[str, tuple[int, bool] | str]] = []
    with os.scandir(image) as entries:
        for entry in entries:
            if entry.name in OWN_DIRECTORIES:
                continue
            if entry.is_symlink():
                found.append((entry.name, os.readlink(entry.path)))
            elif entry.is_dir() or entry.is_file():
                found.append((entry.name, _open_tree(entry.path)))
    return found


def _make_home(root: str) -> None:
    """Make a home that anyone may write, because that of the task image is read-only."""
    os.mkdir(f"{root}/tmp/home")
    os.chmod(f"{root}/tmp/home", 0o777)  # noqa: S103 - commands may run as any user


def _link_store(root: str, plan: Plan) -> None:
    """Make the symlink forest: every store path of every mount, by its name in /nix/store."""
    os.mkdir(f"{root}/nix/store")
    for name, _ in plan["mounts"]:
        if not os.path.isdir(f"{root}/mnt/{name}/store"):
            continue
        for path in os.listdir(f"{root}/mnt/{name}/store"):
            target = f"{root}/nix/store/{path}"
            if not os.path.lexists(target):
                os.symlink(f"/mnt/{name}/store/{path}", target)


def _fill_dev(root: str, base: str) -> None:
    devices = [
        (name, _open_tree(f"/dev/{name}", MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID))
        for name in DEVICES
    ]
    _mount_tmpfs(f"{root}/dev", FIXED)
    for name, tree in devices:
        _attach(tree, f"{root}/dev/{name}")
    _attach(_open_tree(f"{base}/shm", WRITABLE), f"{root}/dev/shm")
    os.mkdir(f"{root}/dev/pts")
    options = "newinstance,ptmxmode=0666,mode=0620"
    call(
        "mount",
        "devpts",
        f"{root}/dev/pts",
        "devpts",
        MS_NOSUID | MS_NOEXEC,
        options,
        about="devpts",
    )
    os.symlink("pts/ptmx", f"{root}/dev/ptmx")
    os.symlink("/proc/self/fd", f"{root}/dev/fd")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{number}", f"{root}/dev/{name}")


def _fill_proc_and_sys(root: str, plan: Plan) -> None:
    """Mount /proc and /sys, without what speaks to the host's kernel."""
    flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
    call("mount", "proc", f"{root}/proc", "proc", flags, None, about="proc, /proc")
    shared = int(plan["lasting_memory"] * SYSTEM_V_SHARE)
    _limit_system_v(f"{root}/proc/sys/kernel", shared // os.sysconf("SC_PAGE_SIZE"))
    _attach(_open_tree("/sys", READ_ONLY | MOUNT_ATTR_NOEXEC), f"{root}/sys")
    for name in READ_ONLY_IN_PROC:
        path = f"{root}/proc/{name}"
        if os.path.lexists(path):
            _attach(_open_tree(path, READ_ONLY | MOUNT_ATTR_NOEXEC), path)
    for name in MASKED:
        path = f"{root}/{name}"
        if os.path.isdir(path):
            _mount_tmpfs(path, "size=4k,mode=0555", flags | MS_RDONLY)
        elif os.path.lexists(path):
            _attach(_open_tree("/dev/null", MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID), path)


def _limit_system_v(directory: str, pages: int) -> None:
    """Bound the System V objects of the sandbox, which no end of a process frees (sysvipc(7))."""
    for name, text in (("shmall", str(pages)), *SYSTEM_V_LIMITS):
        try:
            _write(f"{directory}/{name}", text)
        except RefusedError:
            pass  # before Linux 6.9 only the host's root may, though they are the sandbox's own


def _hide(root: str, path: str) -> None:
    """Cover a directory of the task image, where it shows."""
    if path and os.path.isdir(f"{root}{path}"):
        _mount_tmpfs(f"{root}{path}", "size=4k,mode=0555", MS_NOSUID | MS_NODEV | MS_RDONLY)


NAME_SERVICE = ("etc/hosts", "etc/resolv.conf")


def _open_name_service(plan: Plan) -> list[tuple[str, tuple[int, bool]]]:
    """Open the host's files for the resolver, for a sandbox on the host's network."""
    if plan["private_network"]:
        return []
    paths = [(name, os.path.realpath(f"/{name}")) for name in NAME_SERVICE]
    return [(name, _open_tree(path)) for name, path in paths if os.path.isfile(path)]


def _attach_name_service(root: str, files: list[tuple[str, tuple[int, bool]]]) -> None:
    """Put them over those of the task image, also where these are links into /run."""
    for name, tree in files:
        target = f"{root}/{name}"
        if os.path.islink(target):
            link = os.path.normpath(os.path.join("/etc", os.readlink(target)))
            target = root + link if link.startswith("/run/") else ""
        elif not os.path.isfile(target):
            target = ""
        if target:
            _attach(tree, target)
        else:
            os.close(tree[0])


def _enter(root: str) -> None:
    """Make `root` the root, and let go of the host's."""
    os.chdir(root)
    call("pivot_root", ".", ".", about=root)
    call("umount2", ".", MNT_DETACH, about="the host's root")
    os.chdir("/")


def _drop_privileges() -> None:
    """Keep the capabilities that a task image needs; no program can gain another."""
    call("prctl", PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0, about="PR_CAP_AMBIENT")
    for number in range(64):
        kept = number in KEPT_CAPABILITIES
        if not kept and LIBC.prctl(PR_CAPBSET_READ, number, 0, 0, 0) == 1:
            call("prctl", PR_CAPBSET_DROP, number, 0, 0, 0, about="PR_CAPBSET_DROP")
    header = CapabilityHeader(CAPABILITY_VERSION_3, 0)
    data = (CapabilityData * 2)()
    mask = sum(1 << number for number in KEPT_CAPABILITIES) & _permitted()
    data[0] = CapabilityData(mask, mask, 0)
    call("capset", ctypes.byref(header), ctypes.byref(data), about="capset")
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, about="PR_SET_NO_NEW_PRIVS")


def _permitted() -> int:
    """Return the capabilities that this process holds, as the low 32 bits of the mask."""
    header = CapabilityHeader(CAPABILITY_VERSION_3, 0)
    data = (CapabilityData * 2)()
    call("capget", ctypes.byref(header), ctypes.byref(data), about="capget")
    return int(data[0].permitted)


if __name__ == "__main__":
    main()
