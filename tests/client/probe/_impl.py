"""The bodies."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator

from agentix.trace import current_trace

from . import Parcel, Token

EVENTS: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)


def add(left: int, right: int = 1) -> int:
    return left + right


async def send_back(parcel: Parcel) -> Parcel:
    return parcel


def fail(message: str) -> None:
    raise LookupError(message)


def trace() -> str | None:
    context = current_trace.get()
    return None if context is None else context.traceparent


async def hang(name: str) -> None:
    EVENTS[f"{name} started"].set()
    try:
        await asyncio.Event().wait()
    finally:
        EVENTS[f"{name} ended"].set()


async def wait_for(event: str) -> None:
    await EVENTS[event].wait()


async def count(limit: int) -> AsyncIterator[int]:
    for number in range(limit):
        yield number


async def say(texts: list[str]) -> AsyncGenerator[Token, None]:
    for text in texts:
        yield Token(text)


async def count_and_fail(limit: int) -> AsyncIterator[int]:
    for number in range(limit):
        yield number
    raise LookupError(f"after {limit}")


async def count_and_hang(name: str, limit: int) -> AsyncIterator[int]:
    try:
        for number in range(limit):
            yield number
        await asyncio.Event().wait()
    finally:
        EVENTS[f"{name} ended"].set()
