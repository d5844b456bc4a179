"""Memory: what a runtime holds with one namespace loaded, here and in a container."""

from agentix import DockerDeployment, RuntimeClient, SandboxConfig
from agentix_namespaces import mock_agent
from bench import engine, stubs
from bench.calls import bare_echo
from bench.process_facts import private_bytes, resident_bytes
from bench.rows import Row, Skipped, at_most, compared, measured
from bench.servers import TOKEN, floor, runtime

__all__ = ["measure"]

MEGABYTE = 1e6
LIMIT = 45
CALLS = 1000


async def measure() -> list[Row | Skipped]:
    """Measures resident memory after the first call, and how calls make it grow."""
    return [*await _processes(), *await _container()]


async def _processes() -> list[Row]:
    with floor() as bare, runtime() as server:
        async with bare_echo(bare.url) as echo, RuntimeClient(server.url, token=TOKEN) as client:
            await echo()
            await client.remote(stubs.echo, stubs.Token("hello"))
            resident, least = resident_bytes(server.pid), resident_bytes(bare.pid)
            for _ in range(CALLS):
                await client.remote(stubs.echo, stubs.Token("hello"))
            await client.run("echo hi")
            later = resident_bytes(server.pid)
    return [
        compared(
            "resident, one namespace loaded; floor: hypercorn and Starlette",
            "MB",
            [resident / MEGABYTE],
            [least / MEGABYTE],
            at_most(LIMIT),
        ),
        measured(
            f"growth after {CALLS} calls and a command", "MB", [(later - resident) / MEGABYTE]
        ),
    ]


async def _container() -> list[Row | Skipped]:
    name = "resident in a container, one namespace loaded"
    reason = engine.obstacle()
    if reason is not None:
        return [Skipped(name, reason)]
    config = SandboxConfig(image=engine.task_image("busybox"), namespaces=(mock_agent,))
    async with DockerDeployment(pull=False) as deployment, deployment.session(config) as sandbox:
        async with RuntimeClient(sandbox.runtime_url, token=sandbox.token) as client:
            await client.remote(mock_agent.run, "greet")
            pid = await engine.server_process(sandbox.id)
        if pid is None:
            return [Skipped(name, "the engine is not on this host")]
        resident, private = resident_bytes(pid) / MEGABYTE, private_bytes(pid) / MEGABYTE
    return [
        measured(name, "MB", [resident], at_most(LIMIT)),
        measured("of that, shared with no other process", "MB", [private]),
    ]
