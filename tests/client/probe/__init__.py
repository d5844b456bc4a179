"""A namespace for tests: mounted into a real runtime as `agentix_namespaces.probe`."""

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from uuid import UUID

PACKAGE = "agentix_namespaces.probe"


@dataclass
class Parcel:
    """One of each kind of value."""

    text: str
    data: bytes
    when: datetime
    price: Decimal
    key: UUID
    place: Path
    numbers: dict[str, float | None]


@dataclass
class Token:
    text: str


def add(left: int, right: int = 1) -> int:
    raise NotImplementedError


async def send_back(parcel: Parcel) -> Parcel:
    raise NotImplementedError


def fail(message: str) -> None:
    raise NotImplementedError


def trace() -> str | None:
    raise NotImplementedError


async def hang(name: str) -> None:
    """Never returns; it sets the event `name started` first and `name ended` when it is ended."""
    raise NotImplementedError


async def wait_for(event: str) -> None:
    """Returns once an event is set."""
    raise NotImplementedError


def count(limit: int) -> AsyncIterator[int]:
    raise NotImplementedError


def say(texts: list[str]) -> AsyncGenerator[Token, None]:
    raise NotImplementedError


def count_and_fail(limit: int) -> AsyncIterator[int]:
    raise NotImplementedError


def count_and_hang(name: str, limit: int) -> AsyncIterator[int]:
    """Gives `limit` numbers and no end; it sets the event `name ended` when it is ended."""
    raise NotImplementedError


def unbound() -> None:
    """Has no impl."""
    raise NotImplementedError


def misplaced() -> int:
    """Belongs to a namespace that nobody mounts."""
    raise NotImplementedError


STUBS = (add, send_back, fail, trace, hang, wait_for)
STREAMS = (count, say, count_and_fail, count_and_hang)

# The tests import this package by another name than the runtime does.
for stub in (*STUBS, *STREAMS, unbound):
    stub.__module__ = PACKAGE
misplaced.__module__ = "agentix_namespaces.missing"
