"""System calls that a worker has no use for, and a filter that refuses them (seccomp(2))."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Callable, Iterable
from functools import lru_cache

from agentix.agentserver.worker.kernel import PR_SET_PDEATHSIG, PR_SET_SECCOMP, KernelError, prepare

__all__ = ["CALLS", "build", "install", "prepare_filter", "worker_filter"]

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


class Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def install(instructions: bytes) -> None:
    """Installs a filter, for this process and all that it makes.

    Raises:
        KernelError: The kernel has no filters.
    """
    prepare_filter(instructions)()


def prepare_filter(instructions: bytes) -> Callable[[], int]:
    """Makes the call that installs a filter, for the process that calls and all that it makes."""
    pointer = ctypes.byref(Program(len(instructions) // 8, instructions))
    return prepare("prctl", PR_SET_SECCOMP, FILTER, pointer, 0, 0, about="PR_SET_SECCOMP")


@lru_cache(maxsize=2)
def worker_filter(may_fork: bool) -> bytes:
    """Gives the filter of workers.

    Args:
        may_fork: They may make processes. Threads they may always make.

    Raises:
        KernelError: Nobody wrote one for this machine.
    """
    _, column = _architecture()
    first = [
        *_refuse_argument(PRCTL[column], JUMP_EQUAL, PR_SET_PDEATHSIG),
        *_refuse(CLONE3[column], errno.ENOSYS),  # its flags can not be seen; clone is used then
    ]
    if may_fork:
        first += _refuse_argument(CLONE[column], JUMP_ANY_BIT, NEW_NAMESPACES)
        return build(first, CALLS.values())
    first += _require_argument(CLONE[column], CLONE_THREAD)
    return build(first, [*CALLS.values(), *FORKS])


def build(first: Iterable[bytes], refused: Iterable[tuple[int | None, int | None]]) -> bytes:
    """Gives a filter that refuses calls with EPERM, after some instructions of another kind.

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
    """Refuses a call by its first argument. A jump goes over as many instructions as it says."""
    return [
        _instruction(JUMP_EQUAL, number, 0, 4),
        _instruction(LOAD, FIRST_ARGUMENT),
        _instruction(test, value, 0, 1),
        _instruction(RETURN, REFUSE | errno.EPERM),
        _instruction(RETURN, ALLOW),
    ]


def _require_argument(number: int, flag: int) -> list[bytes]:
    """Refuses a call whose first argument lacks a flag."""
    return [
        _instruction(JUMP_EQUAL, number, 0, 4),
        _instruction(LOAD, FIRST_ARGUMENT),
        _instruction(JUMP_ANY_BIT, flag, 1, 0),
        _instruction(RETURN, REFUSE | errno.EPERM),
        _instruction(RETURN, ALLOW),
    ]


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """Gives a `struct sock_filter`."""
    return struct.pack("=HBBI", code, if_true, if_false, value)
