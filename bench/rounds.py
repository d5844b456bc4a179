"""Rounds: runs of several things in turn, so that a noisy machine is noisy for all of them."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from bench.process_facts import cpu_seconds

__all__ = ["Sample", "in_flight", "percentile", "sequential", "take_turns", "timed"]

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
Run = Callable[[], Awaitable[T]]


@overload
async def take_turns(rounds: int, first: Run[A], second: Run[B], /) -> tuple[list[A], list[B]]: ...


@overload
async def take_turns(
    rounds: int, first: Run[A], second: Run[B], third: Run[C], /
) -> tuple[list[A], list[B], list[C]]: ...


@overload
async def take_turns(
    rounds: int, first: Run[A], second: Run[B], third: Run[C], fourth: Run[D], /
) -> tuple[list[A], list[B], list[C], list[D]]: ...


async def take_turns(rounds: int, /, *runs: Run[Any]) -> tuple[list[Any], ...]:
    """Runs A B A B and gives the outcomes of each; a first round warms up and is dropped."""
    outcomes: tuple[list[Any], ...] = tuple([] for _ in runs)
    for number in range(rounds + 1):
        for kept, run in zip(outcomes, runs, strict=True):
            outcome = await run()
            if number:
                kept.append(outcome)
    return outcomes


def percentile(values: Sequence[float], percent: float) -> float:
    """Gives the value that so many percent of all do not exceed."""
    return sorted(values)[min(len(values) - 1, int(len(values) * percent / 100))]


async def timed(work: Awaitable[object]) -> float:
    """Waits for some work and gives the seconds that it took."""
    started = time.perf_counter()
    await work
    return time.perf_counter() - started


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of many equal calls, in microseconds a call."""

    p50: float
    """The median time of a call."""
    p99: float
    """The time that 99 of 100 calls keep within."""
    wall: float
    """The whole time, divided by the number of calls."""
    client: float
    """The processor time of this process."""
    server: float
    """The processor time of the server."""


async def sequential(call: Run[object], count: int, server: int) -> Sample:
    """Makes calls one after the other.

    Args:
        call: Makes one.
        count: How many.
        server: The process that answers.
    """
    return await in_flight(call, count, server, width=1)


async def in_flight(call: Run[object], count: int, server: int, *, width: int) -> Sample:
    """Makes calls, so many at a time.

    Args:
        call: Makes one.
        count: How many in all.
        server: The process that answers.
        width: How many are under way at once.
    """
    times: list[float] = []

    async def work() -> None:
        times.extend([await timed(call()) for _ in range(count // width)])

    started, client, served = time.perf_counter(), time.process_time(), cpu_seconds(server)
    await asyncio.gather(*(work() for _ in range(width)))
    wall = time.perf_counter() - started
    client, served = time.process_time() - client, cpu_seconds(server) - served
    each = 1e6 / len(times)
    return Sample(
        percentile(times, 50) * 1e6,
        percentile(times, 99) * 1e6,
        wall * each,
        client * each,
        served * each,
    )
