"""Progress: a line on a terminal while something takes its time."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["EVERY", "progress"]

EVERY = 1.0
"""Seconds before the first word about it, and between two."""

CLEAR = "\r\x1b[K"
"""Empties a terminal's line (ECMA-48)."""


@contextmanager
def progress(text: str) -> Iterator[None]:
    """Show a text and the seconds so far while the block takes longer than a second.

    It stands on standard error, if that is a terminal, and is gone afterwards.

    Args:
        text: What takes its time.
    """
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_tell, args=(text, done), name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _tell(text: str, done: threading.Event) -> None:
    seconds = 0
    while not done.wait(EVERY):
        seconds += 1
        print(f"{CLEAR}{text} ... {seconds} s", end="", file=sys.stderr, flush=True)
    if seconds:
        print(CLEAR, end="", file=sys.stderr, flush=True)
