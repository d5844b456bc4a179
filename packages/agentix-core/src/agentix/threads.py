"""Code of namespaces in threads of its own: one that hangs holds nothing else up."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

__all__ = ["in_own_thread"]

T = TypeVar("T")


def in_own_thread(name: str, function: Callable[[], T]) -> "asyncio.Future[T]":
    """Run a function in a new thread, which the end of the process does not wait for.

    Args:
        name: The name of the thread.
        function: What is run, in a copy of the current context.

    Returns:
        What comes of it: its value or what it raised, as an `Exception` in any case.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def work() -> None:
        result: Any = None
        failure: Exception | None = None
        try:
            result = function()
        except BaseException as error:
            failure = _harmless(error)
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(_settle, outcome, result, failure)

    run: Callable[..., Any] = contextvars.copy_context().run
    threading.Thread(target=run, args=(work,), name=name, daemon=True).start()
    return outcome


def _harmless(error: BaseException) -> Exception:
    """Return an error that neither ends the event loop nor is refused by a future."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    failure = RuntimeError(f"{type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def _settle(outcome: "asyncio.Future[Any]", result: Any, failure: Exception | None) -> None:
    if outcome.cancelled():
        return
    if failure is None:
        outcome.set_result(result)
    else:
        outcome.set_exception(failure)
