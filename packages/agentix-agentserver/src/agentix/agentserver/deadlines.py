"""Deadlines: ends futures that wait for too long, all of them by one timer."""

import asyncio

__all__ = ["Deadlines"]

SWEEP = 0.02
"""How often deadlines are looked at while somebody waits, in seconds."""


class Deadlines:
    """The deadlines of futures; a timer for each would cost more than what is waited for."""

    def __init__(self) -> None:
        self._watched: dict[asyncio.Future[None], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, future: asyncio.Future[None], seconds: float) -> None:
        """End a future with a TimeoutError when it takes too long.

        Args:
            future: What is waited for; it is nobody else's.
            seconds: How long, to within a few hundredths; nothing is waited for in 0 seconds.
        """
        if seconds <= 0 and not future.done():
            future.set_exception(TimeoutError())
            return
        loop = future.get_loop()
        self._watched[future] = loop.time() + seconds
        if self._timer is None:
            self._timer = loop.call_later(SWEEP, self._sweep, loop)

    def forget(self, future: asyncio.Future[None]) -> None:
        """Look at a future no more."""
        self._watched.pop(future, None)

    def end(self, error: Exception) -> None:
        """End every wait with an error."""
        for future in self._watched:
            if not future.done():
                future.set_exception(error)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for future, deadline in self._watched.items():
            if deadline <= now and not future.done():
                future.set_exception(TimeoutError())
        self._timer = loop.call_later(SWEEP, self._sweep, loop) if self._watched else None
