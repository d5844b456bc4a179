"""Calls: `remote()` of an echo beside a bare JSON echo on the same server and client libraries."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from agentix import RuntimeClient
from bench import stubs
from bench.cores import on_client_core
from bench.rounds import Run, Sample, in_flight, sequential, take_turns
from bench.rows import Row, at_most, compared, measured
from bench.servers import TOKEN, floor, runtime

__all__ = ["bare_echo", "bare_session", "measure"]

ROUNDS = 5
CALLS = 1000
WIDTH = 64


async def measure() -> list[Row]:
    """Measures calls one after the other and many at once."""
    with on_client_core(), floor() as bare, runtime() as server, runtime("unix") as local:
        async with (
            bare_echo(bare.url) as echo,
            RuntimeClient(server.url, token=TOKEN) as client,
            RuntimeClient(local.url, token=TOKEN) as neighbour,
        ):
            token = stubs.Token("hello")
            one = await take_turns(
                ROUNDS,
                lambda: sequential(echo, CALLS, bare.pid),
                lambda: sequential(lambda: client.remote(stubs.echo, token), CALLS, server.pid),
                lambda: sequential(lambda: neighbour.remote(stubs.echo, token), CALLS, local.pid),
                lambda: sequential(
                    lambda: client.remote(stubs.echo_plain, token), CALLS, server.pid
                ),
            )
            many = await take_turns(
                ROUNDS,
                lambda: in_flight(echo, 2 * CALLS, bare.pid, width=WIDTH),
                lambda: in_flight(
                    lambda: client.remote(stubs.echo, token), 2 * CALLS, server.pid, width=WIDTH
                ),
            )
    return [*_rows_of_one(*one), *_rows_of_many(*many)]


def _rows_of_one(
    bare: list[Sample], typed: list[Sample], local: list[Sample], plain: list[Sample]
) -> list[Row]:
    floors = [sample.p50 for sample in bare]
    return [
        compared("echo, p50", "us", [s.p50 for s in typed], floors, at_most(1.1, "ratio")),
        compared("echo, client CPU", "us", [s.client for s in typed], [s.client for s in bare]),
        compared("echo, server CPU", "us", [s.server for s in typed], [s.server for s in bare]),
        compared("echo over a Unix socket, p50", "us", [s.p50 for s in local], floors),
        compared("echo by a plain function in a thread, p50", "us", [s.p50 for s in plain], floors),
    ]


def _rows_of_many(bare: list[Sample], typed: list[Sample]) -> list[Row]:
    name = f"echo, {WIDTH} in flight"
    bound = at_most(1.1, "ratio")
    return [
        compared(
            f"{name}, time a call", "us", [s.wall for s in typed], [s.wall for s in bare], bound
        ),
        compared(f"{name}, client CPU", "us", [s.client for s in typed], [s.client for s in bare]),
        compared(f"{name}, server CPU", "us", [s.server for s in typed], [s.server for s in bare]),
        measured(f"{name}, calls a second", "/s", [1e6 / s.wall for s in typed]),
    ]


def bare_session() -> aiohttp.ClientSession:
    """Makes an aiohttp session, set up as `RuntimeClient` does."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
        skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent"),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )


@asynccontextmanager
async def bare_echo(url: str) -> AsyncIterator[Run[object]]:
    """Gives a call of the floor's echo, of a body like that of a typed call."""
    kwargs = {"token": {"text": "hello"}}
    body = {"package": "bench", "method": "echo", "args": [], "kwargs": kwargs}
    async with bare_session() as session:

        async def call() -> object:
            async with session.post(f"{url}/echo", json=body) as response:
                return await response.json()

        yield call
