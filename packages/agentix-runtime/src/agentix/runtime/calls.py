"""Runs impls: plain functions in threads, coroutines on the loop; whatever they raise is data."""

import asyncio
import contextvars
import inspect
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pydantic_core import to_json

from agentix.dispatch import Binding, BrokenNamespaceError
from agentix.errors import ArgumentsError
from agentix.stub import Arguments
from agentix.wire import RemoteError

__all__ = ["Calls", "describe", "encode_error", "is_cancelled"]


class Calls:
    """Runs the impls of one runtime.

    Args:
        max_threads: How many plain functions may run at once; further ones wait.
    """

    def __init__(self, max_threads: int = 256) -> None:
        self._threads = ThreadPoolExecutor(max_threads, thread_name_prefix="agentix-impl")

    async def run(self, binding: Binding, arguments: Arguments) -> Any:
        """Calls an impl and gives what it returns.

        Cancellation reaches a coroutine; a plain function runs on in its thread, unheard.

        Raises:
            PlainFunctionError: A plain function raised something.
            BaseException: Whatever a coroutine raises.
        """
        if binding.asynchronous:
            return await binding.impl(*arguments.args, **arguments.kwargs)
        result = await self._in_thread(binding, arguments)
        return await result if inspect.isawaitable(result) else result

    async def _in_thread(self, binding: Binding, arguments: Arguments) -> Any:
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(
            self._threads,
            lambda: context.run(_outcome, binding, arguments),
        )


def _outcome(binding: Binding, arguments: Arguments) -> Any:
    """Calls a plain function; a future would refuse or replace some of what it raises."""
    try:
        return binding.impl(*arguments.args, **arguments.kwargs)
    except BaseException as error:
        raise PlainFunctionError(error) from error


class PlainFunctionError(Exception):
    """A plain function raised something in its thread.

    Args:
        original: What it raised.
    """

    def __init__(self, original: BaseException) -> None:
        super().__init__()
        self.original = original


def is_cancelled() -> bool:
    """Tells whether the current task was asked to end, as opposed to an impl's own error."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def describe(error: BaseException) -> RemoteError:
    """Turns an exception into what the wire says of it: the impl's own class by its name."""
    match error:
        case PlainFunctionError():
            return describe(error.original)
        case BrokenNamespaceError() if error.__cause__ is not None:
            return describe(error.__cause__)
        case ArgumentsError():
            return RemoteError(type="ValidationError", message=_printable(str(error)))
    lines = traceback.format_exception(error)
    return RemoteError(
        type=type(error).__name__,
        message=_printable(_message(error)),
        traceback=_printable("".join(lines)),
    )


def encode_error(error: RemoteError) -> bytes:
    """Gives an error as JSON."""
    return to_json(error)


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as failure:  # an impl's own __str__ may raise anything
        return f"<{type(error).__name__} whose text raised {type(failure).__name__}>"


def _printable(text: str) -> str:
    """Replaces lone surrogates, which JSON can not carry."""
    return text.encode("utf-8", "replace").decode()
