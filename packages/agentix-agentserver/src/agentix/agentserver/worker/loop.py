"""The loop of a worker: the event loop that it is born in, made once in the zygote.

To make one in each worker would take a fifth of its memory and a third of its start, and most
handlers never wait for anything.
"""

from __future__ import annotations

import asyncio
import selectors

__all__ = ["make_loop", "wakers"]


def make_loop() -> asyncio.SelectorEventLoop:
    """Makes a loop that can be taken over a fork.

    It selects by poll(2), which leaves nothing in the kernel that two processes would share. What
    else it has there is a pair of sockets by which threads and signals wake it: see `wakers`.
    """
    return asyncio.SelectorEventLoop(selectors.PollSelector())


def wakers(loop: asyncio.SelectorEventLoop) -> tuple[int, int]:
    """Gives the descriptors of the pair of sockets, for which a worker needs others.

    asyncio has no public names for them.
    """
    return loop._ssock.fileno(), loop._csock.fileno()  # type: ignore[attr-defined]
