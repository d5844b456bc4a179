"""Output: what a worker prints goes to the log, line by line and bounded."""

from __future__ import annotations

import asyncio
import logging
import os

__all__ = ["Output", "printable"]

logger = logging.getLogger(__name__)

CHUNK = 64 * 1024
"""How much is read at a time, in bytes."""

QUOTA = 16 * 1024
"""How much of a worker's output is logged in one period, in bytes; the rest is counted."""

PERIOD = 1.0
"""The length of a period, in seconds."""

PAUSE = 0.01
"""How long a worker that prints more than its quota waits after each chunk, in seconds."""


def printable(text: str) -> str:
    """Gives a handler's words so that they can move no cursor and hide no line of a log."""
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() or sign == "\n" else ascii(sign)[1:-1] for sign in text
    )


class Output:
    """Logs what a worker prints, until it ends.

    Args:
        descriptor: The pipe, which does not block.
    """

    def __init__(self, descriptor: int) -> None:
        self.name = "a worker"
        """Whose output it is."""
        self._loop = asyncio.get_running_loop()
        self._descriptor = descriptor
        self._left = QUOTA
        self._dropped = 0
        self._period_end = 0.0
        self._loop.add_reader(descriptor, self._read)

    def close(self) -> None:
        """Logs what is left in the pipe, and ends."""
        if self._descriptor >= 0:
            self._read()
        self._end()

    def _read(self) -> None:
        try:
            data = os.read(self._descriptor, CHUNK)
        except BlockingIOError:
            return
        if not data:
            self._end()
            return
        self._start_period()
        self._log(data[: self._left])
        self._dropped += max(0, len(data) - self._left)
        self._left = max(0, self._left - len(data))
        if self._left == 0:
            self._loop.remove_reader(self._descriptor)
            self._loop.call_later(PAUSE, self._resume)

    def _start_period(self) -> None:
        now = self._loop.time()
        if now >= self._period_end:
            self._tell_dropped()
            self._left = QUOTA
            self._period_end = now + PERIOD

    def _log(self, data: bytes) -> None:
        for line in data.decode(errors="backslashreplace").splitlines():
            logger.info("%s: %s", self.name, printable(line))

    def _tell_dropped(self) -> None:
        if self._dropped:
            logger.warning("%s: %d bytes of output are not logged", self.name, self._dropped)
            self._dropped = 0

    def _resume(self) -> None:
        if self._descriptor >= 0:
            self._loop.add_reader(self._descriptor, self._read)

    def _end(self) -> None:
        if self._descriptor < 0:
            return
        self._tell_dropped()
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = -1
