"""Blocking work on files, in threads that nothing else uses."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

__all__ = ["FileThreads"]

P = ParamSpec("P")
T = TypeVar("T")


class FileThreads:
    """The threads for files: the event loop's own are at the disposal of impls.

    Args:
        max_threads: How many blocking calls may run at once; further ones wait.
    """

    def __init__(self, max_threads: int = 32) -> None:
        self._threads = ThreadPoolExecutor(max_threads, thread_name_prefix="agentix-files")

    async def finish(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function and return only once it has ended.

        A caller that is cancelled can therefore close what the function was using.
        """
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._threads, lambda: function(*args, **kwargs))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait([work])
            raise
