"""A namespace with a function for every case that a runtime must handle; only tests use it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, field_validator


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Inner(BaseModel):
    name: str
    weights: list[float] = []


@dataclass
class Everything:
    blob: bytes
    when: datetime
    amount: Decimal
    key: UUID
    path: Path
    colour: Colour
    choice: Literal["a", "b"] | int
    inner: dict[str, Inner] = field(default_factory=dict)


class Hostile(BaseModel):
    """Its validator raises what a runtime must survive."""

    raises: str

    @field_validator("raises")
    @classmethod
    def _raise(cls, value: str) -> str:
        from ._errors import make

        raise make(value)


def echo(value: Any) -> Any:
    raise NotImplementedError


async def echo_async(value: Any) -> Any:
    raise NotImplementedError


def everything(value: Everything) -> Everything:
    raise NotImplementedError


def parameters(a: int, /, b: int, *rest: int, c: int = 3, **more: int) -> list[Any]:
    raise NotImplementedError


def defaults(a: int, b: list[int] = [1, 2], *, c: str = "c") -> list[Any]:  # noqa: B006
    raise NotImplementedError


def hostile(value: Hostile) -> None:
    raise NotImplementedError


def fail(kind: str) -> None:
    raise NotImplementedError


async def fail_async(kind: str) -> None:
    raise NotImplementedError


def fail_stream(kind: str, after: int) -> AsyncIterator[int]:
    raise NotImplementedError


def give(kind: str) -> int:
    raise NotImplementedError


def give_any(kind: str) -> Any:
    raise NotImplementedError


def give_point() -> Inner:
    raise NotImplementedError


def give_stream(kind: str) -> AsyncIterator[int]:
    raise NotImplementedError


def trace() -> list[str | None]:
    raise NotImplementedError


async def trace_async() -> list[str | None]:
    raise NotImplementedError


def trace_stream() -> AsyncIterator[list[str | None]]:
    raise NotImplementedError


def read(path: str) -> str:
    raise NotImplementedError


def environment(program: str) -> dict[str, str]:
    raise NotImplementedError


def tasks() -> int:
    raise NotImplementedError


async def wait_for_ever(started: str, cancelled: str) -> None:
    raise NotImplementedError


def count(to: int) -> AsyncGenerator[int, None]:
    raise NotImplementedError


def lines(path: str) -> AsyncIterator[str]:
    raise NotImplementedError


def endless(counter: str, closed: str, size: int = 1000) -> AsyncIterator[str]:
    raise NotImplementedError


def one_then_wait(closed: str) -> AsyncIterator[int]:
    raise NotImplementedError


def stubborn(cancelled: str) -> AsyncIterator[int]:
    raise NotImplementedError
