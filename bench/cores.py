"""Cores: the client on one, the server on another, where the machine has two."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["describe", "on_client_core", "on_server_core"]

CORES = sorted(os.sched_getaffinity(0))


@contextmanager
def on_client_core() -> Iterator[None]:
    """Keeps this process on the first core for the length of a `with` block."""
    with _on(CORES[0]):
        yield


@contextmanager
def on_server_core() -> Iterator[None]:
    """Lets the processes that a `with` block starts live on the last core."""
    with _on(CORES[-1]):
        yield


@contextmanager
def _on(core: int) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def describe() -> str:
    """Tells how cores are shared."""
    if len(CORES) < 2:
        return "client and server share the one core"
    return f"client pinned to core {CORES[0]}, server to core {CORES[-1]}"
