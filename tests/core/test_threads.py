"""Threads of their own: what comes back, and what they hold up."""

import asyncio
import contextvars
import subprocess
import sys
import threading

import pytest

from agentix.threads import in_own_thread

WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


async def test_value_comes_back_from_another_thread_of_that_name() -> None:
    current = threading.current_thread()
    other = await in_own_thread("a name", threading.current_thread)
    assert other is not current
    assert (other.name, other.daemon) == ("a name", True)


async def test_context_is_that_of_the_caller() -> None:
    WHO.set("caller")
    assert await in_own_thread("thread", WHO.get) == "caller"


def failing(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (ValueError("wrong"), ValueError, "^wrong$"),
        (SystemExit(3), RuntimeError, "^SystemExit: 3$"),
        (KeyboardInterrupt(), RuntimeError, "^KeyboardInterrupt: $"),
        (StopIteration("over"), RuntimeError, "^StopIteration: over$"),
    ],
)
async def test_error_comes_back_and_harms_no_loop(
    error: BaseException, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        await in_own_thread("thread", lambda: failing(error))


async def test_caller_that_was_cancelled_is_not_told() -> None:
    begin, told = threading.Event(), asyncio.Event()
    outcome = in_own_thread("thread", begin.wait)
    outcome.cancel()
    begin.set()
    asyncio.get_running_loop().call_soon(told.set)
    await told.wait()
    assert outcome.cancelled()


NEVER = """
import asyncio, threading
from agentix.threads import in_own_thread
async def main():
    in_own_thread("thread", threading.Event().wait)
asyncio.run(main())
print("ended")
"""


def test_process_ends_though_a_thread_does_not() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", NEVER], capture_output=True, text=True, timeout=30, check=True
    )
    assert (ended.stdout, ended.stderr) == ("ended\n", "")
