"""The processes of local sandboxes, as their host sees them."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

__all__ = ["children", "descendants", "ending", "launchers"]

DEADLINE = 20


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def descendants(pid: int) -> list[int]:
    found = children(pid)
    return found + [deeper for child in found for deeper in descendants(child)]


def launchers() -> list[int]:
    """Return the launchers among the children of this process, whichever thread made them."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        for child in (task / "children").read_text().split():
            with contextlib.suppress(OSError):
                if b"launcher.py" in Path("/proc", child, "cmdline").read_bytes():
                    found.append(int(child))
    return found


@asynccontextmanager
async def ending(*pids: int, within: float = DEADLINE) -> AsyncIterator[None]:
    """Wait at the end of the block until processes have ended, a zombie included."""
    async with contextlib.AsyncExitStack() as stack:
        ended = [stack.enter_context(_end_of(pid)) for pid in pids]
        yield
        async with asyncio.timeout(within):
            for event in ended:
                await event.wait()


@contextlib.contextmanager
def _end_of(pid: int) -> Iterator[asyncio.Event]:
    descriptor, ended = os.pidfd_open(pid), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, ended.set)
    try:
        yield ended
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
