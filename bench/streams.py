"""Streams: many small typed items, the first of them, and items that are yielded alone."""

import time
from contextlib import aclosing
from statistics import median

import aiohttp

from agentix import RuntimeClient
from bench import stubs
from bench.calls import bare_session
from bench.cores import on_client_core
from bench.process_facts import cpu_seconds
from bench.rounds import percentile, take_turns
from bench.rows import Row, at_least, at_most, compared, measured
from bench.servers import TOKEN, floor, runtime

__all__ = ["measure"]

ROUNDS = 9
ITEMS = 200_000
BARE_ITEMS = 20_000
FIRSTS = 200
TICKS = 100
PAUSE = 0.005


async def measure() -> list[Row]:
    """Measures streams; the floor is Starlette's own, which sends a chunk an item."""
    with on_client_core(), floor() as bare, runtime() as server:
        async with (
            bare_session() as session,
            RuntimeClient(server.url, token=TOKEN) as client,
        ):
            plain, typed = await take_turns(
                ROUNDS,
                lambda: _bare_rate(session, bare.url),
                lambda: _rate(client, server.pid),
            )
            firsts = [await _first(client) for _ in range(FIRSTS)]
            delays = await _delays(client)
    rates = [rate for rate, _, _ in typed]
    return [
        measured("small typed items a second", "/s", rates, at_least(500_000)),
        compared("the same, Starlette with a chunk an item as floor", "/s", rates, plain),
        measured("client CPU an item", "us", [client for _, client, _ in typed]),
        measured("server CPU an item", "us", [server for _, _, server in typed]),
        measured("first item, p50", "ms", [percentile(firsts, 50)], at_most(5)),
        measured("first item, p99", "ms", [percentile(firsts, 99)]),
        measured("an item alone, from yield to loop, p50", "ms", [median(delays)], at_most(5)),
        measured("an item alone, from yield to loop, p99", "ms", [percentile(delays, 99)]),
    ]


async def _rate(client: RuntimeClient, server: int) -> tuple[float, float, float]:
    """Gives items a second, and microseconds of processor time an item on either side."""
    started, mine, theirs = time.perf_counter(), time.process_time(), cpu_seconds(server)
    got = 0
    async for _ in client.remote(stubs.count, ITEMS):
        got += 1
    assert got == ITEMS
    rate = ITEMS / (time.perf_counter() - started)
    each = 1e6 / ITEMS
    return rate, (time.process_time() - mine) * each, (cpu_seconds(server) - theirs) * each


async def _bare_rate(session: aiohttp.ClientSession, url: str) -> float:
    started = time.perf_counter()
    async with session.get(f"{url}/items", params={"limit": BARE_ITEMS}) as response:
        got = (await response.read()).count(b"\n")
    assert got == BARE_ITEMS
    return BARE_ITEMS / (time.perf_counter() - started)


async def _first(client: RuntimeClient) -> float:
    """Gives the milliseconds from the call to the first of a few items."""
    started = time.perf_counter()
    async with aclosing(client.remote(stubs.count, 10)) as items:
        async for _ in items:
            took = (time.perf_counter() - started) * 1000
            break
        async for _ in items:
            pass
    return took


async def _delays(client: RuntimeClient) -> list[float]:
    """Gives the milliseconds that items took which were yielded alone."""
    return [
        (time.monotonic_ns() - yielded) / 1e6
        async for yielded in client.remote(stubs.tick, TICKS, PAUSE)
    ]
