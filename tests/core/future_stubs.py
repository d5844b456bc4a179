"""Stubs whose annotations are text until somebody asks for them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from dataclasses import dataclass


@dataclass
class Point:
    x: int
    y: Point | None = None


def move(point: Point, *, by: int = 1) -> list[Point]:
    raise NotImplementedError


async def later(point: Point) -> Point:
    raise NotImplementedError


def items() -> AsyncIterator[Point]:
    raise NotImplementedError


def generator() -> AsyncGenerator[Point, None]:
    raise NotImplementedError


def iterable() -> AsyncIterable[Point]:
    raise NotImplementedError


def unresolvable(point: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821
    raise NotImplementedError
