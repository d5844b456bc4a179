"""Descriptors that the forks of this process do not keep.

A connection lives for as long as any process has it, so that a forked child, such as a worker of
`multiprocessing`, keeps open what the end of its parent should close. Close-on-exec does not help
where the child runs no other program.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

__all__ = ["closed_in_forks"]

_Identity = tuple[int, int]
"""The device and the inode of what a descriptor refers to."""


@contextmanager
def closed_in_forks(descriptor: int) -> Iterator[None]:
    """Have what a descriptor refers to closed in children that `os.fork` makes during the block.

    Args:
        descriptor: The number of an open descriptor; any other number changes nothing.
    """
    identity = _identity(descriptor)
    if identity is None:
        yield
        return
    descriptors = _descriptors()
    descriptors[descriptor] = identity
    try:
        yield
    finally:
        if descriptors.get(descriptor) == identity:
            del descriptors[descriptor]


@cache
def _descriptors() -> dict[int, _Identity]:
    """Return what is closed in forks: one table, since what is registered stays registered."""
    descriptors: dict[int, _Identity] = {}
    os.register_at_fork(after_in_child=lambda: _close(descriptors))
    return descriptors


def _close(descriptors: dict[int, _Identity]) -> None:
    """Put nothing in the place of each descriptor: the child's objects may close it once more."""
    for descriptor, identity in descriptors.items():
        # Its owner may have closed it meanwhile, and something else have its number.
        if _identity(descriptor) == identity:
            nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            os.dup2(nothing, descriptor, inheritable=False)
            os.close(nothing)
    descriptors.clear()


def _identity(descriptor: int) -> _Identity | None:
    with suppress(OSError):
        found = os.fstat(descriptor)
        return found.st_dev, found.st_ino
    return None
