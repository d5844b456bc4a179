"""The impls."""

import asyncio
import time
from collections.abc import AsyncIterator

from . import Token


async def echo(token: Token) -> Token:
    """Gives back what came."""
    return token


def echo_plain(token: Token) -> Token:
    """Gives back what came."""
    return token


async def count(limit: int) -> AsyncIterator[Token]:
    """Gives so many items."""
    for number in range(limit):
        yield Token(f"token {number}")


async def forever() -> AsyncIterator[Token]:
    """Gives the same item on and on."""
    token = Token("token")
    while True:
        yield token


async def tick(times: int, pause: float) -> AsyncIterator[int]:
    """Gives the time, again and again."""
    for _ in range(times):
        await asyncio.sleep(pause)
        yield time.monotonic_ns()
