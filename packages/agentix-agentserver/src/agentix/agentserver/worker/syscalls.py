"""System calls that Python has no names for: prctl, namespaces, Landlock, seccomp."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import stat
import struct
from collections.abc import Callable, Iterable
from functools import lru_cache, partial

from agentix.agentserver.errors import KernelError

__all__ = [
    "CALLS",
    "Access",
    "Ruleset",
    "build",
    "call",
    "die_with_parent",
    "install",
    "prepare",
    "prepare_capabilities",
    "prepare_death",
    "prepare_filter",
    "prepare_system_call",
    "system_call",
    "version",
    "worker_filter",
]


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
MS_REMOUNT = 32
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MNT_DETACH = 2

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

CAPABILITY_VERSION_3 = 0x20080522

NO_CAPABILITIES = (ctypes.c_uint32 * 6)()
"""Two `struct __user_cap_data_struct`, with nothing in them."""

LIBC = ctypes.CDLL(None, use_errno=True)
for _function in ("capset", "mount", "prctl", "setns", "syscall", "unshare"):
    getattr(LIBC, _function)  # makes it here, and not in every worker


class CapUserHeader(ctypes.Structure):
    """`struct __user_cap_header_struct` of capset(2)."""

    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


def prepare(name: str, *arguments: object, about: str = "") -> Callable[[], int]:
    """Make a call of a function of the C library that is little more than a call of the kernel.

    What a call takes to be written down is done here, so that a worker has only to make it.

    Returns:
        What makes the call, and raises a `KernelError` where that gives an error.
    """
    return _prepared(getattr(LIBC, name), arguments, f"{name}({about})")


def prepare_system_call(number: int, name: str, *arguments: object) -> Callable[[], int]:
    """Make a call of the kernel by number, where no function of the C library does, as `prepare`.

    Returns:
        What makes the call, and raises a `KernelError` where that gives an error.
    """
    return _prepared(LIBC.syscall, (number, *arguments), name)


def call(name: str, *arguments: object, about: str = "") -> int:
    """Call a function of the C library that is little more than a call of the kernel.

    Raises:
        KernelError: It gives an error.
    """
    return prepare(name, *arguments, about=about)()


def system_call(number: int, name: str, *arguments: object) -> int:
    """Call the kernel by number, where no function of the C library does.

    Raises:
        KernelError: It gives an error.
    """
    return prepare_system_call(number, name, *arguments)()


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel signal this process when the thread that made it ends.

    Raises:
        KernelError: The kernel refuses it.
    """
    prepare_death(number)()


def prepare_death(number: signal.Signals = signal.SIGKILL) -> Callable[[], int]:
    """Make the call that has the kernel signal a process when the thread that made it ends."""
    return prepare("prctl", PR_SET_PDEATHSIG, int(number), 0, 0, 0, about="PR_SET_PDEATHSIG")


def prepare_capabilities() -> Callable[[], int]:
    """Make the call that gives up every capability."""
    header = CapUserHeader(CAPABILITY_VERSION_3, 0)
    return prepare("capset", ctypes.byref(header), ctypes.byref(NO_CAPABILITIES), about="none")


def _prepared(
    function: Callable[..., int], arguments: tuple[object, ...], what: str
) -> Callable[[], int]:
    return partial(_run, function, tuple(map(_argument, arguments)), what)


def _run(function: Callable[..., int], arguments: tuple[object, ...], what: str) -> int:
    result = function(*arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise KernelError(f"{what}: {errno.errorcode.get(code, code)}, {os.strerror(code)}")
    return result


def _argument(value: object) -> object:
    """Return an integer the width of a register, and text as bytes."""
    match value:
        case int():
            return ctypes.c_long(value)
        case str():
            return os.fsencode(value)
        case _:
            return value


CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""These numbers are the same on all machines."""

VERSION_FLAG = 1
PATH_BENEATH = 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = (1 << bit for bit in range(4))
TRUNCATE = 1 << 14
ALL_OF_FILES = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""The rights on files that each version of the interface knows."""

TCP = {4: 0b11}
"""Binding and connecting."""

SCOPES = {6: 0b11}
"""Abstract Unix sockets and signals, which then stay among the processes of one worker."""

READING = READ_FILE | READ_DIR
SCRATCH = sum(1 << bit for bit in (1, 2, 3, 4, 5, 7, 8, 12, 13, 14))
"""Reading, writing, making and removing files, directories and links; no devices, no sockets."""

FOR_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE
"""The rights that a rule on something other than a directory may have."""

Access = tuple[str, int]
"""A path, and the rights below it."""


def version() -> int:
    """Return the version of the kernel's interface; 0 where there is none."""
    try:
        return system_call(CREATE_RULESET, "landlock_create_ruleset", None, 0, VERSION_FLAG)
    except KernelError:
        return 0


class Ruleset:
    """What a process may open, which holds it when it takes the rules on, and its children.

    It is made where there is time for it; a process that is forked then has it too.

    Raises:
        KernelError: The kernel has no Landlock.
    """

    def __init__(self) -> None:
        known = version()
        self._files = _newest(ALL_OF_FILES, known)
        attributes = struct.pack("=QQQ", self._files, _newest(TCP, known), _newest(SCOPES, known))
        size = 24 if known >= 6 else 16 if known >= 4 else 8
        self._descriptor = system_call(
            CREATE_RULESET, "landlock_create_ruleset", attributes, size, 0
        )

    def allow(self, path: str, rights: int) -> None:
        """Add rights on a path and all below it.

        Raises:
            KernelError: The kernel refuses the rule.
        """
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return  # what cannot be opened needs no right
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= FOR_FILES
        rule = struct.pack("=Qi", rights & self._files, descriptor)
        about = f"landlock_add_rule({path})"
        system_call(ADD_RULE, about, self._descriptor, PATH_BENEATH, rule, 0)
        os.close(descriptor)

    def prepare(self) -> Callable[[], int]:
        """Make the call that leaves a process only these rights, no TCP, and no one to signal."""
        about = "landlock_restrict_self"
        return prepare_system_call(RESTRICT_SELF, about, self._descriptor, 0)

    def close(self) -> None:
        """Let go of the rules; whom they hold, they go on to hold."""
        os.close(self._descriptor)


def _newest(table: dict[int, int], known: int) -> int:
    """Return the value of the newest version that the kernel has."""
    return table.get(max((number for number in table if number <= known), default=0), 0)


FILTER = 2
ALLOW = 0x7FFF0000
KILL = 0x80000000
REFUSE = 0x00050000

LOAD, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16
"""Where `struct seccomp_data` has them; the low half of an argument comes first."""

ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""The number of each architecture, and its column below."""

X32 = 0x40000000
"""The bit of the numbers of x86_64's second table, which nothing here may use."""

NEW_NAMESPACES = 0x7E020080
"""The flags of clone(2) that make namespaces."""

CALLS: dict[str, tuple[int | None, int | None]] = {
    # sockets, other than the one that the worker has and pairs that it makes
    "socket": (41, 198),
    "connect": (42, 203),
    "accept": (43, 202),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept4": (288, 242),
    # programs
    "execve": (59, 221),
    "execveat": (322, 281),
    # the memory, files and state of other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "perf_event_open": (298, 241),
    # memory and queues that are found by name or key
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "semctl": (66, 191),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # namespaces, mounts and files by handle
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    # large and seldom used parts of the kernel
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "memfd_secret": (447, 447),
    "modify_ldt": (154, None),
    "personality": (135, 92),
    "syslog": (103, 116),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "iopl": (172, None),
    "ioperm": (173, None),
}
"""What is refused with EPERM, by its number on each architecture."""

CLONE_THREAD = 0x00010000
"""The flag of clone(2) that makes a thread; no thread can be of another namespace."""

FORKS: tuple[tuple[int | None, int | None], ...] = ((57, None), (58, None))
"""fork(2) and vfork(2)."""

CLONE = (56, 220)
CLONE3 = (435, 435)
PRCTL = (157, 167)


class FilterProgram(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def install(instructions: bytes) -> None:
    """Install a filter, for this process and all that it makes.

    Raises:
        KernelError: The kernel has no filters.
    """
    prepare_filter(instructions)()


def prepare_filter(instructions: bytes) -> Callable[[], int]:
    """Make the call that installs a filter, for the process that calls and all that it makes."""
    pointer = ctypes.byref(FilterProgram(len(instructions) // 8, instructions))
    return prepare("prctl", PR_SET_SECCOMP, FILTER, pointer, 0, 0, about="PR_SET_SECCOMP")


@lru_cache(maxsize=2)
def worker_filter(may_fork: bool) -> bytes:
    """Return the filter of workers.

    Args:
        may_fork: They may make processes. Threads they may always make.

    Raises:
        KernelError: Nobody wrote one for this machine.
    """
    _, column = _architecture()
    first = [
        *_refuse_argument(PRCTL[column], JUMP_EQUAL, PR_SET_PDEATHSIG),
        *_refuse(CLONE3[column], errno.ENOSYS),  # its flags cannot be seen; clone is used then
    ]
    if may_fork:
        first += _refuse_argument(CLONE[column], JUMP_ANY_BIT, NEW_NAMESPACES)
        return build(first, CALLS.values())
    first += _require_argument(CLONE[column], CLONE_THREAD)
    return build(first, [*CALLS.values(), *FORKS])


def build(first: Iterable[bytes], refused: Iterable[tuple[int | None, int | None]]) -> bytes:
    """Return a filter that refuses calls with EPERM, after some instructions of another kind.

    Raises:
        KernelError: Nobody wrote one for this machine.
    """
    architecture, column = _architecture()
    code = [
        _instruction(LOAD, ARCHITECTURE),
        _instruction(JUMP_EQUAL, architecture, 1, 0),
        _instruction(RETURN, KILL),
        _instruction(LOAD, NUMBER),
        _instruction(JUMP_AT_LEAST, X32, 0, 1),
        _instruction(RETURN, KILL),
        *first,
    ]
    for numbers in refused:
        code += _refuse(numbers[column], errno.EPERM)
    return b"".join([*code, _instruction(RETURN, ALLOW)])


def _architecture() -> tuple[int, int]:
    machine = os.uname().machine
    if machine not in ARCHITECTURES:
        raise KernelError(f"no filter is written for {machine}")
    return ARCHITECTURES[machine]


def _refuse(number: int | None, error: int) -> list[bytes]:
    if number is None:
        return []
    return [_instruction(JUMP_EQUAL, number, 0, 1), _instruction(RETURN, REFUSE | error)]


def _refuse_argument(number: int, test: int, value: int) -> list[bytes]:
    """Refuse a call by its first argument. A jump goes over as many instructions as it says."""
    return [
        _instruction(JUMP_EQUAL, number, 0, 4),
        _instruction(LOAD, FIRST_ARGUMENT),
        _instruction(test, value, 0, 1),
        _instruction(RETURN, REFUSE | errno.EPERM),
        _instruction(RETURN, ALLOW),
    ]


def _require_argument(number: int, flag: int) -> list[bytes]:
    """Refuse a call whose first argument lacks a flag."""
    return [
        _instruction(JUMP_EQUAL, number, 0, 4),
        _instruction(LOAD, FIRST_ARGUMENT),
        _instruction(JUMP_ANY_BIT, flag, 1, 0),
        _instruction(RETURN, REFUSE | errno.EPERM),
        _instruction(RETURN, ALLOW),
    ]


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """Return a `struct sock_filter`."""
    return struct.pack("=HBBI", code, if_true, if_false, value)
