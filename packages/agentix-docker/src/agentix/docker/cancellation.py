"""Work that a cancelled caller must not leave half done."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["finish", "together"]

T = TypeVar("T")


async def finish(work: Coroutine[Any, Any, T]) -> T:
    """Runs `work` to its end even where the caller is cancelled meanwhile.

    A cancellation is raised once the work has ended: what a request to the engine made is known
    by then, and can be taken away again.

    Returns:
        What `work` returns.

    Raises:
        asyncio.CancelledError: The caller was cancelled; the outcome of the work is dropped.
    """
    task = asyncio.ensure_future(work)
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is None:
        return task.result()
    if not task.cancelled():
        task.exception()  # an error that nobody asks for is reported at exit otherwise
    raise cancellation


async def together(*work: Coroutine[Any, Any, T]) -> list[T]:
    """Runs all of `work` at once.

    Returns:
        What each returns, in the order given.

    Raises:
        Exception: What the first to fail raised; the others have been cancelled.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(part) for part in work]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors.exceptions[0].__cause__
    return [task.result() for task in tasks]
