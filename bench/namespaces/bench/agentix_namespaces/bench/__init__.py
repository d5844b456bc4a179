"""Functions that cost nothing themselves, for measuring what calls cost."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

__all__ = ["Token", "count", "echo", "echo_plain", "forever", "tick"]


@dataclass
class Token:
    """A small typed item."""

    text: str
    """Its text."""


async def echo(token: Token) -> Token:
    """Gives back what came."""
    raise NotImplementedError


def echo_plain(token: Token) -> Token:
    """Gives back what came, from a plain function in a thread."""
    raise NotImplementedError


def count(limit: int) -> AsyncIterator[Token]:
    """Gives so many items without ever waiting."""
    raise NotImplementedError


def forever() -> AsyncIterator[Token]:
    """Gives items without ever waiting, and without an end."""
    raise NotImplementedError


def tick(times: int, pause: float) -> AsyncIterator[int]:
    """Gives items alone, some seconds apart: each the monotonic clock in ns as it was yielded."""
    raise NotImplementedError
