"""Notices a client that leaves before it was answered, and cancels the work for it."""

import asyncio
from types import TracebackType
from typing import Self

from starlette.types import Receive

from agentix.runtime.http import wait_for_disconnect

__all__ = ["Departure"]

WATCH_AFTER = 0.05
"""Seconds after which work is worth a look-out; shorter work pays nothing for it."""


class Departure:
    """Cancels the body of a `with` block, in the current task, once the client has left.

    The cancellation ends at the block; `happened` tells of it afterwards.

    Args:
        receive: The channel of a request whose body was read.
    """

    def __init__(self, receive: Receive) -> None:
        self.happened = False
        self._receive = receive
        self._watcher: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._timer = asyncio.get_running_loop().call_later(WATCH_AFTER, self._start)
        return self

    def _start(self) -> None:
        self._watcher = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        await wait_for_disconnect(self._receive)
        self.happened = True
        self._task.cancel()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        if not self.happened:
            return False
        remaining = self._task.uncancel()
        return isinstance(error, asyncio.CancelledError) and remaining == 0
