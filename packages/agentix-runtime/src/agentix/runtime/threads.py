"""Blocking work in a thread, waited for even when its caller is cancelled."""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

__all__ = ["finish_in_thread"]

P = ParamSpec("P")
T = TypeVar("T")


async def finish_in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs a function in a thread and returns only once it has ended.

    A caller that is cancelled can therefore close what the function was using.
    """
    work = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise
