"""Runs impls: plain functions in threads, coroutines on the loop; whatever they raise is data."""

import asyncio
import contextvars
import inspect
import traceback
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from pydantic_core import to_json

from agentix.dispatch import Binding, BrokenNamespaceError
from agentix.errors import ArgumentsError
from agentix.stub import Arguments
from agentix.wire import RemoteError

__all__ = ["BusyError", "Calls", "describe", "encode_error", "is_cancelled"]

PATIENCE = 0.5
"""Seconds that a call waits for a thread while no other call ends."""


class Calls:
    """Runs the impls of one runtime.

    Args:
        max_threads: How many plain functions may run at once; further ones wait for one to end.
    """

    def __init__(self, max_threads: int = 256) -> None:
        self.running = 0
        """How many plain functions run, abandoned ones included."""
        self.abandoned = 0
        """How many of them run on though their callers have left."""
        self._max_threads = max_threads
        self._threads = ThreadPoolExecutor(max_threads, thread_name_prefix="agentix-impl")
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._ended = 0

    async def run(self, binding: Binding, arguments: Arguments) -> Any:
        """Call an impl and return what it returns.

        Cancellation reaches a coroutine; a plain function runs on in its thread, unheard.

        Raises:
            BusyError: Every thread has a plain function in it, and none ends.
            PlainFunctionError: A plain function raised something.
            BaseException: Whatever a coroutine raises.
        """
        if binding.asynchronous:
            return await binding.impl(*arguments.args, **arguments.kwargs)
        result = await self._in_thread(binding, arguments)
        return await result if inspect.isawaitable(result) else result

    async def _in_thread(self, binding: Binding, arguments: Arguments) -> Any:
        await self._take_thread()
        context = contextvars.copy_context()
        work = self._threads.submit(context.run, _outcome, binding, arguments)
        try:
            return await asyncio.wrap_future(work)
        finally:
            self._leave(work)

    async def _take_thread(self) -> None:
        if self.running < self._max_threads:
            self.running += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await self._wait(turn)
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._free_thread()
            else:
                self._waiting.remove(turn)
            raise

    async def _wait(self, turn: "asyncio.Future[None]") -> None:
        """Wait for a turn as long as others end."""
        ended = None
        while ended != self._ended:
            ended = self._ended
            done, _ = await asyncio.wait([turn], timeout=PATIENCE)
            if done:
                return
        raise BusyError(self.running, self.abandoned)

    def _leave(self, work: "Future[Any]") -> None:
        """Free the thread of a call that is over for its caller, once its function has ended."""
        if work.cancel() or work.done():
            self._free_thread()
            return
        self.abandoned += 1
        loop = asyncio.get_running_loop()
        work.add_done_callback(lambda _: loop.call_soon_threadsafe(self._note_late_end))

    def _note_late_end(self) -> None:
        self.abandoned -= 1
        self._free_thread()

    def _free_thread(self) -> None:
        self._ended += 1
        if self._waiting:
            self._waiting.popleft().set_result(None)
        else:
            self.running -= 1


def _outcome(binding: Binding, arguments: Arguments) -> Any:
    """Call a plain function; a future would refuse or replace some of what it raises."""
    try:
        return binding.impl(*arguments.args, **arguments.kwargs)
    except BaseException as error:
        raise PlainFunctionError(error) from error


class BusyError(Exception):
    """Every thread for plain functions is taken, and no function ends.

    Args:
        running: How many plain functions run.
        abandoned: How many of them nobody waits for any more.
    """

    def __init__(self, running: int, abandoned: int) -> None:
        super().__init__(
            f"busy: {running} calls run, of which {abandoned} abandoned;"
            " another plain function can run once one of them returns"
        )


class PlainFunctionError(Exception):
    """A plain function raised something in its thread.

    Args:
        original: What it raised.
    """

    def __init__(self, original: BaseException) -> None:
        super().__init__()
        self.original = original


def is_cancelled() -> bool:
    """Return whether the current task was asked to end, as opposed to an impl's own error."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def describe(error: BaseException) -> RemoteError:
    """Turn an exception into what the wire says of it: the impl's own class by its name."""
    match error:
        case PlainFunctionError():
            return describe(error.original)
        case BrokenNamespaceError() if error.__cause__ is not None:
            return describe(error.__cause__)
        case ArgumentsError():
            return RemoteError(type="ValidationError", message=_printable(str(error)))
        case BusyError():
            return RemoteError(type="Busy", message=str(error))
    lines = traceback.format_exception(error)
    return RemoteError(
        type=type(error).__name__,
        message=_printable(_message(error)),
        traceback=_printable("".join(lines)),
    )


def encode_error(error: RemoteError) -> bytes:
    """Return an error as JSON."""
    return to_json(error)


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as failure:  # an impl's own __str__ may raise anything
        return f"<{type(error).__name__} whose text raised {type(failure).__name__}>"


def _printable(text: str) -> str:
    """Replace lone surrogates, which JSON cannot carry."""
    return text.encode("utf-8", "replace").decode()
