"""The kernel: calls that Python has no function for, and the numbers that they take."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
from collections.abc import Callable
from functools import partial

__all__ = [
    "KernelError",
    "call",
    "die_with_parent",
    "prepare",
    "prepare_capabilities",
    "prepare_death",
    "prepare_system_call",
    "system_call",
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


class KernelError(Exception):
    """The kernel refuses a call; the text names the call and the error."""


class CapabilityHeader(ctypes.Structure):
    """`struct __user_cap_header_struct` of capset(2)."""

    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


def prepare(name: str, *arguments: object, about: str = "") -> Callable[[], int]:
    """Makes a call of a function of the C library that is little more than a call of the kernel.

    What a call takes to be written down is done here, so that a worker has only to make it.

    Returns:
        What makes the call, and raises a `KernelError` where that gives an error.
    """
    return _prepared(getattr(LIBC, name), arguments, f"{name}({about})")


def prepare_system_call(number: int, name: str, *arguments: object) -> Callable[[], int]:
    """Makes a call of the kernel by number, where no function of the C library does, as `prepare`.

    Returns:
        What makes the call, and raises a `KernelError` where that gives an error.
    """
    return _prepared(LIBC.syscall, (number, *arguments), name)


def call(name: str, *arguments: object, about: str = "") -> int:
    """Calls a function of the C library that is little more than a call of the kernel.

    Raises:
        KernelError: It gives an error.
    """
    return prepare(name, *arguments, about=about)()


def system_call(number: int, name: str, *arguments: object) -> int:
    """Calls the kernel by number, where no function of the C library does.

    Raises:
        KernelError: It gives an error.
    """
    return prepare_system_call(number, name, *arguments)()


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Has the kernel signal this process when the thread that made it ends.

    Raises:
        KernelError: The kernel refuses it.
    """
    prepare_death(number)()


def prepare_death(number: signal.Signals = signal.SIGKILL) -> Callable[[], int]:
    """Makes the call that has the kernel signal a process when the thread that made it ends."""
    return prepare("prctl", PR_SET_PDEATHSIG, int(number), 0, 0, 0, about="PR_SET_PDEATHSIG")


def prepare_capabilities() -> Callable[[], int]:
    """Makes the call that gives up every capability."""
    header = CapabilityHeader(CAPABILITY_VERSION_3, 0)
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
    """Gives an integer the width of a register, and text as bytes."""
    match value:
        case int():
            return ctypes.c_long(value)
        case str():
            return os.fsencode(value)
        case _:
            return value
