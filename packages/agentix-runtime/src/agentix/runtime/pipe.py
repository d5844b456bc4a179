"""Drains one output of a command: never blocks it, keeps no more than it may."""

import asyncio
import codecs
import os
from collections.abc import Callable
from fcntl import F_GETPIPE_SZ, fcntl

__all__ = ["Pipe"]

CHUNK = 65536
"""Bytes read at once, the size of a pipe's buffer."""


class Pipe:
    """Reads a pipe to its end; bytes beyond a cap are counted and dropped.

    Args:
        descriptor: The reading end, which this object owns from now on.
        cap: Bytes that are passed on; `None` for all of them.
        on_text: Called with each piece of decoded text, which never splits a character.
    """

    def __init__(self, descriptor: int, cap: int | None, on_text: Callable[[str], None]) -> None:
        self.total = 0
        self.ended = asyncio.Event()
        self._descriptor = descriptor
        self._cap = cap
        self._on_text = on_text
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._loop = asyncio.get_running_loop()
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._read)

    @property
    def truncated(self) -> bool:
        """Whether there was more than the cap."""
        return self._cap is not None and self.total > self._cap

    def pause(self) -> None:
        """Stops reading, so that a full pipe makes the command wait."""
        if not self.ended.is_set():
            self._loop.remove_reader(self._descriptor)

    def resume(self) -> None:
        """Reads again after `pause`."""
        if not self.ended.is_set():
            self._loop.add_reader(self._descriptor, self._read)

    def take_rest(self) -> None:
        """Reads what the pipe holds now, even while paused; it cannot hold much."""
        if self.ended.is_set():
            return
        for _ in range(1 + fcntl(self._descriptor, F_GETPIPE_SZ) // CHUNK):
            if not self.ended.is_set():
                self._read()

    def drain(self) -> None:
        """Goes on reading for a process that outlives its command, and drops what comes."""
        self._cap = min(self.total, self._cap) if self._cap is not None else self.total
        self._on_text = _drop
        self.resume()

    def _read(self) -> None:
        try:
            data = os.read(self._descriptor, CHUNK)
        except (BlockingIOError, InterruptedError):
            return
        kept = data if self._cap is None else data[: max(0, self._cap - self.total)]
        self.total += len(data)
        if text := self._decoder.decode(kept, final=not data and not self.truncated):
            self._on_text(text)
        if not data:
            self._end()

    def _end(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self.ended.set()


def _drop(text: str) -> None:
    """Takes text that nobody waits for."""
