"""What the kernel says of processes that a test has made."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

__all__ = ["descendants", "is_alive", "until"]


def descendants(pid: int) -> list[int]:
    """Return the children of a process and theirs, the eldest first."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            children = Path(f"/proc/{pid}/task/{task}/children").read_text()
            for child in map(int, children.split()):
                found += [child, *descendants(child)]
    except (FileNotFoundError, ProcessLookupError):
        return found
    return found


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that nobody has waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait until something that sends no event holds, and fail where it does not in time."""
    turn = asyncio.Event()
    async with asyncio.timeout(seconds):
        while not condition():
            asyncio.get_running_loop().call_later(0.005, turn.set)
            await turn.wait()
            turn.clear()
