"""Exchanges: one external message, all that follows from it, and who waits for that."""

import asyncio

from agentix.agentserver.deadlines import Deadlines

__all__ = ["Exchange"]


class Exchange:
    """All that follows from one external message, and what came back to its sender."""

    __slots__ = ("_ended", "_ending", "_error", "_writing", "_written", "outstanding", "replies")

    def __init__(self) -> None:
        self.outstanding = 1
        """How many things are under way; at first it is the message itself."""
        self._written = False
        self._ended = False
        self._error: Exception | None = None
        self._writing: asyncio.Future[None] | None = None
        self._ending: asyncio.Future[None] | None = None
        self.replies: list[bytes] = []
        """The envelopes that left the organism for the sender."""

    def end(self) -> None:
        """Tells who waits that all that came of the message is written."""
        self._ended = True
        if self._ending is not None and not self._ending.done():
            self._ending.set_result(None)

    def fail(self, error: Exception) -> None:
        """Tells who waits that no more can be written."""
        self._error = error
        for future in (self._writing, self._ending):
            if future is not None and not future.done():
                future.set_exception(error)

    def written(self) -> None:
        """Tells who waits that the message is written."""
        self._written = True
        if self._writing is not None and not self._writing.done():
            self._writing.set_result(None)

    async def wait_written(self) -> None:
        """Waits until the message is written."""
        if not self._written:
            self._writing = self._future()
            await self._writing

    async def wait_ended(self, deadlines: Deadlines, seconds: float) -> None:
        """Waits until nothing is under way.

        Raises:
            TimeoutError: It takes longer than so many seconds.
        """
        if self._ended:
            return
        self._ending = ending = self._future()
        deadlines.watch(ending, seconds)
        try:
            await ending
        finally:
            deadlines.forget(ending)

    def _future(self) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._error is not None:
            future.set_exception(self._error)
        return future
