"""What a build says while it works: a line a step, which on a terminal ends with its time."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

__all__ = ["Progress"]

CLEAR_LINE = "\r\x1b[2K"


class Progress:
    """Tells about the steps of a build.

    Args:
        stream: Where to; standard error by default.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._terminal = self._stream.isatty()

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Shows a step while it is done; on a terminal its line then tells how long it took."""
        started = time.monotonic()
        if self._terminal:
            self._write(f"{text} ...")
        else:
            self._write(f"{text}\n")
        try:
            yield
        finally:
            if self._terminal:
                self._write(f"{CLEAR_LINE}{text} ({time.monotonic() - started:.1f} s)\n")

    def note(self, text: str) -> None:
        """Shows a line that stays."""
        self._write(f"{text}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
