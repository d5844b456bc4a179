"""Eager coroutines: run at once as far as they go, and in a task only from where they wait."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from functools import partial
from typing import Any, TypeVar

__all__ = ["go_on", "run_eagerly"]

_T = TypeVar("_T")


def run_eagerly(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
    """Run a coroutine that seldom waits.

    What it does before it waits is done in no task, so it must not look for one.

    Returns:
        The task that does the rest; `None` where nothing is left.
    """
    try:
        waited = coroutine.send(None)
    except StopIteration:
        return None
    return asyncio.get_running_loop().create_task(_rest(coroutine, waited))


async def _rest(coroutine: Coroutine[Any, Any, None], waited: Any) -> None:
    await go_on(coroutine, waited)


@types.coroutine
def go_on(coroutine: Coroutine[Any, Any, _T], waited: Any) -> Generator[Any, Any, _T]:
    """Go on with a coroutine that has begun, from what it waits for."""
    while True:
        try:
            sent = yield waited
        except BaseException as error:
            resume = partial(coroutine.throw, error)
        else:
            resume = partial(coroutine.send, sent)
        try:
            waited = resume()
        except StopIteration as ended:
            result: _T = ended.value
            return result
