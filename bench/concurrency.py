"""Concurrency: calls beside a stream that never waits, and many sandboxes at once."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from agentix import Deployment, DockerDeployment, RuntimeClient, SandboxConfig
from agentix_namespaces import mock_agent
from bench import engine, stubs
from bench.cores import on_client_core
from bench.rounds import percentile, timed
from bench.rows import Row, Skipped, at_most, measured
from bench.servers import TOKEN, runtime
from bench.start import local_deployment

__all__ = ["measure"]

CALLS = 400
SANDBOXES = 20


async def measure() -> list[Row | Skipped]:
    """Measures what one caller does to others, and what a burst of sandboxes does."""
    return [*await _beside_stream(), *await _local(), *await _containers()]


async def _beside_stream() -> list[Row]:
    with on_client_core(), runtime() as server, reader(server.url):
        async with RuntimeClient(server.url, token=TOKEN) as client:
            token = stubs.Token("hello")
            times = [await timed(client.remote(stubs.echo, token)) * 1000 for _ in range(CALLS)]
    name = "a call beside a stream that never waits"
    return [
        measured(f"{name}, p50", "ms", [percentile(times, 50)]),
        measured(f"{name}, p99", "ms", [percentile(times, 99)], at_most(20)),
    ]


@contextmanager
def reader(url: str) -> Iterator[None]:
    """Reads an endless stream in another process, on the core of this one."""
    command = [sys.executable, "-m", "bench.reader", url, TOKEN]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "reading\n"
        yield
    finally:
        process.kill()
        process.communicate()


async def _local() -> list[Row]:
    async with local_deployment() as (deployment, config):
        return await _burst("local sandboxes", deployment, config, _echo)


async def _containers() -> list[Row | Skipped]:
    reason = engine.obstacle()
    if reason is not None:
        return [Skipped(f"{SANDBOXES} containers at once", reason)]
    config = SandboxConfig(image=engine.task_image("busybox"), namespaces=(mock_agent,))
    async with DockerDeployment(pull=False) as deployment:
        return [*await _burst("containers", deployment, config, _run)]


Call = Callable[[RuntimeClient], Awaitable[object]]


async def _burst(kind: str, deployment: Deployment, config: SandboxConfig, call: Call) -> list[Row]:
    """Makes many sandboxes at once and calls each; every one must answer."""

    async def one() -> float:
        started = time.perf_counter()
        sandbox = await deployment.create(config)
        async with RuntimeClient(sandbox.runtime_url, token=sandbox.token) as client:
            await call(client)
        return time.perf_counter() - started

    started = time.perf_counter()
    outcomes = await asyncio.gather(*(one() for _ in range(SANDBOXES)), return_exceptions=True)
    took = time.perf_counter() - started
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    name = f"{SANDBOXES} {kind} at once"
    return [
        measured(f"{name}, failed", "", [len(failures)], at_most(0)),
        measured(f"{name}, until all have answered", "s", [took]),
        measured(f"{name}, a second", "/s", [SANDBOXES / took]),
    ]


async def _echo(client: RuntimeClient) -> None:
    await client.remote(stubs.echo, stubs.Token("hello"))


async def _run(client: RuntimeClient) -> None:
    await client.remote(mock_agent.run, "greet")
