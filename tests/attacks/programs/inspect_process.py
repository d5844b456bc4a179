"""Tries to read another process in every way that the kernel has, and prints what came of each.

python inspect_process.py PID SECRET
"""

import ctypes
import errno
import json
import os
import sys
from collections.abc import Callable

PTRACE_SEIZE = 0x4206
SYS_PIDFD_GETFD = 438
LIBC = ctypes.CDLL(None, use_errno=True)


class Range(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def memory(pid: int, secret: bytes) -> str:
    """Search the writable memory for the secret."""
    with open(f"/proc/{pid}/maps") as lines, open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
        for line in lines:
            span, permissions = line.split()[:2]
            begin, end = (int(part, 16) for part in span.split("-"))
            if permissions.startswith("rw"):
                file.seek(begin)
                if secret in (file.read(end - begin) or b""):
                    return "the secret"
    return "no secret"


def memory_without_a_map(pid: int, secret: bytes) -> str:
    with open(f"/proc/{pid}/mem", "rb", buffering=0):
        return "an open file"


def vectors(pid: int, secret: bytes) -> str:
    """Read memory at an address where nothing may be: that it is not refused is what counts."""
    buffer = ctypes.create_string_buffer(8)
    own = Range(ctypes.cast(buffer, ctypes.c_void_p), 8)
    other = Range(ctypes.c_void_p(4096), 8)
    try:
        checked(LIBC.process_vm_readv(pid, ctypes.byref(own), 1, ctypes.byref(other), 1, 0))
    except OSError as error:
        if error.errno != errno.EFAULT:
            raise
    return "memory"


def environment(pid: int, secret: bytes) -> str:
    with open(f"/proc/{pid}/environ", "rb") as file:
        return f"{len(file.read()) > 0}"


def descriptors(pid: int, secret: bytes) -> str:
    return "a name" if os.readlink(f"/proc/{pid}/fd/0") else "nothing"


def one_descriptor(pid: int, secret: bytes) -> str:
    with open(f"/proc/{pid}/fd/0", "rb"):
        return "an open file"


def stolen_descriptor(pid: int, secret: bytes) -> str:
    handle = os.pidfd_open(pid)
    checked(LIBC.syscall(SYS_PIDFD_GETFD, handle, 0, 0))
    return "a descriptor"


def trace(pid: int, secret: bytes) -> str:
    LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    checked(LIBC.ptrace(PTRACE_SEIZE, pid, None, None))
    return "attached"


ATTACKS: list[Callable[[int, bytes], str]] = [
    memory,
    memory_without_a_map,
    vectors,
    environment,
    descriptors,
    one_descriptor,
    stolen_descriptor,
    trace,
]


def outcome(attack: Callable[[int, bytes], str]) -> str:
    try:
        return attack(int(sys.argv[1]), sys.argv[2].encode())
    except OSError as error:
        return errno.errorcode[error.errno or 0]


print(json.dumps({attack.__name__: outcome(attack) for attack in ATTACKS}))
