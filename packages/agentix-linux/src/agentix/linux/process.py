"""What a process asks of the kernel for itself: to be let alone, and to have more descriptors."""

import ctypes
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["forbid_inspection", "inherited_descriptor_limit", "raise_descriptor_limit"]

PR_SET_DUMPABLE = 4

MOST_DESCRIPTORS = 65536
"""More than a server of one sandbox ever holds; a hard limit may be a thousand times as high."""

FEW_DESCRIPTORS = 64
"""More than starting a program takes."""


def forbid_inspection() -> None:
    """Keep the memory and the descriptors of this process from all others.

    Only a process with CAP_SYS_PTRACE reads /proc/PID/mem or /proc/PID/fd of one that is not
    dumpable, attaches to it (ptrace(2)) or takes its descriptors (pidfd_getfd(2)). Programs that
    are executed from it are dumpable again; children that are only forked are not (prctl(2)).

    Raises:
        OSError: The kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_DUMPABLE, *map(ctypes.c_ulong, (0, 0, 0, 0))) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl(PR_SET_DUMPABLE): {os.strerror(code)}")


def raise_descriptor_limit(most: int = MOST_DESCRIPTORS) -> int | None:
    """Let this process have as many descriptors as its hard limit allows, within reason.

    Args:
        most: What is enough.

    Returns:
        The soft limit that it had before, which its children should have again; `None` where that
        was high enough.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(hard, most)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return None
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return soft


@contextmanager
def inherited_descriptor_limit(most: int) -> Iterator[bool]:
    """Have a lower soft limit for the length of a block, which programs started in it inherit.

    What is open stays open, but a new descriptor needs a number below the limit (getrlimit(2)).

    Args:
        most: The limit.

    Yields:
        Whether it is so: not where too many descriptors are open to start a program then.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.close(lowest_free)
    if lowest_free + FEW_DESCRIPTORS > most:
        yield False
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        yield True
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
