"""Stubs that the tests call; what answers them is up to each test."""

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any


@dataclass
class Token:
    text: str


def add(left: int, right: int = 1) -> int:
    raise NotImplementedError


async def greet(name: str) -> Token:
    raise NotImplementedError


def price(cents: int) -> Decimal:
    raise NotImplementedError


def numbers() -> list[int]:
    raise NotImplementedError


def nothing() -> None:
    raise NotImplementedError


def count(limit: int) -> AsyncIterator[int]:
    raise NotImplementedError


def anything() -> AsyncIterator[Any]:
    raise NotImplementedError


def chat(prompt: str) -> AsyncGenerator[Token, None]:
    raise NotImplementedError
