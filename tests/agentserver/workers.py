"""What the tests of workers share: the sources of their handlers, and pools to run them in."""

from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from agentix.agentserver.errors import FailureKind, HandlerFailed
from agentix.agentserver.worker.handlers import Handlers, HandlerSource, WorkerSettings

GUESTS = Path(__file__).with_name("guests")
"""Where the handlers are."""

SOON = 10.0
"""A deadline that is not meant to be reached, in seconds."""


def settings(**values: Any) -> WorkerSettings:
    """Return settings that find the guests."""
    return WorkerSettings(path=(str(GUESTS),), **values)


def source(
    handler: str, payload_class: str = "Text", module: str = "plain_handlers", agent: bool = False
) -> HandlerSource:
    """Return the source of a guest, registered by its own name."""
    return HandlerSource(handler, f"{module}.{handler}", (f"{module}.{payload_class}",), agent)


ADD = source("add", "AddPayload")


async def call(
    handlers: Handlers,
    listener: HandlerSource,
    thread: str,
    plain: dict[str, Any],
    seconds: float = SOON,
) -> bytes:
    """Call a listener, and wait for what its handler returns."""
    return await handlers.call(listener, thread, 0, plain, seconds)


async def tell(
    handlers: Handlers,
    listener: HandlerSource,
    text: str = "",
    thread: str = "thread",
    deadline: float = SOON,
) -> bytes:
    """Call a listener that takes a text."""
    return await call(handlers, listener, thread, {"text": text}, deadline)


async def sum_of(handlers: Handlers, a: int, b: int, thread: str = "thread") -> bytes:
    """Call the adder."""
    return await call(handlers, ADD, thread, {"a": a, "b": b})


async def failure(call: Awaitable[bytes]) -> tuple[FailureKind, str]:
    """Return the kind and the detail of the failure that a call has to end with."""
    with pytest.raises(HandlerFailed) as raised:
        await call
    return raised.value.kind, raised.value.detail
