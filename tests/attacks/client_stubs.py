"""Stubs that the client under attack calls; no honest runtime serves them."""

from collections.abc import AsyncIterator
from typing import Any

from pydantic import BaseModel


class Point(BaseModel):
    x: int = 0
    y: int = 0


def anything() -> Any:
    raise NotImplementedError


def numbers() -> list[int]:
    raise NotImplementedError


def points() -> list[Point]:
    raise NotImplementedError


def items() -> AsyncIterator[Any]:
    raise NotImplementedError
