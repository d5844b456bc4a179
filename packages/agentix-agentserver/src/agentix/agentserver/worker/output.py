"""Output: what a worker prints goes to the log, line by line and bounded."""

from __future__ import annotations

import asyncio
import logging
import os

__all__ = ["Output"]

logger = logging.getLogger(__name__)

QUOTA = 16 * 1024
"""How much of a worker's output is logged in one period, in bytes; the rest is counted."""

PERIOD = 1.0
"""The length of a period, in seconds. A worker that prints more waits for the next."""


class Output:
    """Logs what a worker prints until it ends.

    Args:
        descriptor: The pipe, which does not block.
        name: Whose output it is.
    """

    def __init__(self, descriptor: int, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._descriptor = descriptor
        self._name = name
        self._left = QUOTA
        self._loop.add_reader(descriptor, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._descriptor, 65536)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            return
        for line in data[: self._left].decode(errors="backslashreplace").splitlines():
            logger.info("%s: %s", self._name, line)
        if len(data) > self._left:
            logger.warning("%s: %d bytes of output dropped", self._name, len(data) - self._left)
        self._left -= len(data)
        if self._left <= 0:
            self._loop.remove_reader(self._descriptor)
            self._loop.call_later(PERIOD, self._resume)

    def _resume(self) -> None:
        self._left = QUOTA
        self._loop.add_reader(self._descriptor, self._read)
