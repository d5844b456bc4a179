"""Waits for a runtime: all end when the client is closed, bounded ones when nothing moves too."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import TypeAlias

__all__ = ["BoundedWait", "Progress", "Wait", "unmoved"]

LOOKS = 4
"""How many looks in a row must find that nothing moved before a bounded wait ends.

Looks are counted rather than seconds: an event loop that stood still comes late to one of them,
and takes what has arrived meanwhile before the next.
"""

Progress: TypeAlias = Callable[[], object]
"""How far something has come, as a value to compare; `None` while others are to move."""


def unmoved() -> object:
    """Return what never changes, for a wait in which only the end of the wait is progress."""
    return 0


class Wait:
    """A wait for a runtime, as an `async with` block around what awaits it.

    It does what `asyncio.timeout` does, in half of the time, and with an error of its own.

    Args:
        pending: The waits of one client, of which this is one for as long as it lasts.
    """

    __slots__ = ("_cancelling", "_error", "_pending", "_task")

    def __init__(self, pending: "set[Wait]") -> None:
        self._pending = pending
        self._error: Exception | None = None

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("the client is used within a task of asyncio")
        self._task = task
        self._cancelling = task.cancelling()
        self._pending.add(self)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._pending.discard(self)
        if self._error is None:
            return
        # Where others cancelled the task meanwhile, that counts.
        is_ours = self._task.uncancel() <= self._cancelling
        if is_ours and isinstance(error, asyncio.CancelledError):
            raise self._error from None

    def end(self, error: Exception) -> None:
        """End the wait with an error; the first one counts."""
        if self._error is None:
            self._error = error
            self._task.cancel()


class BoundedWait(Wait):
    """A wait that ends when nothing has moved for some seconds.

    Args:
        pending: As for `Wait`.
        seconds: The time in which something must move.
        silence: Makes the error that the wait then ends with.
        progress: How far things have come.
    """

    __slots__ = ("_handle", "_progress", "_seen", "_silence", "_step", "_still")

    def __init__(
        self,
        pending: set[Wait],
        seconds: float,
        silence: Callable[[float], Exception],
        progress: Progress = unmoved,
    ) -> None:
        super().__init__(pending)
        self._step = seconds / LOOKS
        self._silence = silence
        self._progress = progress
        self._still = 0

    async def __aenter__(self) -> None:
        await super().__aenter__()
        self._seen = self._progress()
        self._look_later()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._handle.cancel()
        await super().__aexit__(kind, error, traceback)

    def _look_later(self) -> None:
        self._handle = asyncio.get_running_loop().call_later(self._step, self._look)

    def _look(self) -> None:
        before, self._seen = self._seen, self._progress()
        moved = self._seen is None or self._seen != before
        self._still = 0 if moved else self._still + 1
        if self._still == LOOKS:
            self.end(self._silence(self._step * LOOKS))
        else:
            self._look_later()
