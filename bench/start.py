"""Start: from nothing to the first answered call, of a server and of whole sandboxes."""

import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

from agentix import Deployment, DockerDeployment, LocalDeployment, RuntimeClient, SandboxConfig
from agentix.local.bundle import make_namespace_bundle, make_runtime_bundle
from agentix_namespaces import mock_agent
from bench import engine, stubs
from bench.calls import bare_echo
from bench.peer import ABSENT, is_installed, peer
from bench.process_facts import cpu_seconds
from bench.rounds import take_turns
from bench.rows import Row, Skipped, at_most, compared
from bench.servers import TOKEN, floor, prepared_root, runtime_in

__all__ = ["local_deployment", "measure"]

ROUNDS = 7
PEER_ROUNDS = 3
NETWORKS: tuple[Literal["bridge", "host", "none"], ...] = ("bridge", "host", "none")


async def measure() -> list[Row | Skipped]:
    """Measures servers as plain processes, sandboxes of this machine, and containers."""
    return [*await _servers(), *await _local(), *await _containers()]


async def _servers() -> list[Row | Skipped]:
    floors, ours = await take_turns(ROUNDS, _bare_server, _server)
    walls, floor_walls = [wall for wall, _ in ours], [wall for wall, _ in floors]
    times, floor_times = [cpu for _, cpu in ours], [cpu for _, cpu in floors]
    name = "the server as a plain process"
    rows: list[Row | Skipped] = [
        compared(f"{name}; floor: hypercorn and Starlette", "ms", walls, floor_walls),
        compared(f"{name}, its CPU; floor: the same", "ms", times, floor_times),
    ]
    name = f"{name}; floor: SWE-ReX"
    if not is_installed():
        return [*rows, Skipped(name, ABSENT)]
    peers, again = await take_turns(PEER_ROUNDS, _peer_server, _server)
    return [*rows, compared(name, "ms", [wall for wall, _ in again], peers, at_most(1, "ratio"))]


async def _bare_server() -> tuple[float, float]:
    """Gives milliseconds until the first answer, and of the server's processor time."""
    started = time.perf_counter()
    with floor() as server:
        async with bare_echo(server.url) as call:
            await call()
            return _milliseconds(started), cpu_seconds(server.pid) * 1000


async def _server() -> tuple[float, float]:
    with prepared_root() as root:
        started = time.perf_counter()
        with runtime_in(root) as server:
            async with RuntimeClient(server.url, token=TOKEN) as client:
                await client.remote(stubs.echo, stubs.Token("hello"))
                return _milliseconds(started), cpu_seconds(server.pid) * 1000


async def _peer_server() -> float:
    started = time.perf_counter()
    with peer() as other:
        await other.ready()
        assert await other.run("echo hi") == "hi\n"
        return _milliseconds(started)


async def _local() -> list[Row | Skipped]:
    async with local_deployment() as (deployment, config):
        floors, host, none = await take_turns(
            ROUNDS,
            _bare_server,
            lambda: _first_call(deployment, config, _echo),
            lambda: _first_call(deployment, config.model_copy(update={"network": "none"}), _echo),
        )
    bare = [wall for wall, _ in floors]
    name = "local sandbox, network"
    return [
        compared(f"{name} host", "ms", host, bare, at_most(250)),
        compared(f"{name} none", "ms", none, bare, at_most(250)),
    ]


@asynccontextmanager
async def local_deployment() -> AsyncIterator[tuple[Deployment, SandboxConfig]]:
    """Gives a local deployment, and what makes a sandbox with the bench's namespace."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        runtime_bundle = make_runtime_bundle(Path(directory, "runtime"))
        namespace = make_namespace_bundle(stubs.NAMESPACE, Path(directory, "bench"))
        config = SandboxConfig(image="/", runtime=str(runtime_bundle), namespaces=(str(namespace),))
        async with LocalDeployment() as deployment:
            yield deployment, config


async def _containers() -> list[Row | Skipped]:
    reason = engine.obstacle()
    if reason is not None:
        return [Skipped(f"container, network {network}", reason) for network in NETWORKS]
    image = engine.task_image("busybox")
    async with DockerDeployment(pull=False) as deployment:
        return [await _container(deployment, image, network) for network in NETWORKS]


async def _container(
    deployment: Deployment, image: str, network: Literal["bridge", "host", "none"]
) -> Row:
    config = SandboxConfig(image=image, namespaces=(mock_agent,), network=network)
    floors, ours = await take_turns(
        ROUNDS,
        lambda: _bare_container(image, network),
        lambda: _first_call(deployment, config, _run),
    )
    name = f"container, network {network}; floor: docker run -d"
    return compared(name, "ms", ours, floors, at_most(150, "excess"))


async def _bare_container(image: str, network: str) -> float:
    started = time.perf_counter()
    container = await engine.run_bare(image, ("--network", network))
    took = _milliseconds(started)
    await engine.docker("rm", "--force", container)
    return took


async def _first_call(
    deployment: Deployment,
    config: SandboxConfig,
    call: Callable[[RuntimeClient], Awaitable[None]],
) -> float:
    """Gives the milliseconds from `create` to the first answer; the rest is not timed."""
    started = time.perf_counter()
    sandbox = await deployment.create(config)
    async with RuntimeClient(sandbox.runtime_url, token=sandbox.token) as client:
        await call(client)
        took = _milliseconds(started)
    await deployment.delete(sandbox.id)
    return took


async def _echo(client: RuntimeClient) -> None:
    await client.remote(stubs.echo, stubs.Token("hello"))


async def _run(client: RuntimeClient) -> None:
    assert (await client.remote(mock_agent.run, "greet")).exit_code == 0


def _milliseconds(started: float) -> float:
    return (time.perf_counter() - started) * 1000
