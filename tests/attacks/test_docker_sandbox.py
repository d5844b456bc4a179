"""What a hostile task in a container tries on its runtime, owner, host and neighbours."""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic

import pytest

from agentix.client import RuntimeClient
from agentix.deployment import Deployment, Sandbox, SandboxConfig
from agentix.docker import DockerDeployment
from agentix.docker.engine import Engine
from agentix.errors import DeploymentError
from tests.deployments.conftest import Target
from tests.deployments.docker.closure_images import docker

MEBIBYTE = 1024 * 1024
RUNTIME_PID = "$(grep -lE '^Name:.*python' /proc/[0-9]*/status | cut -d/ -f3)"


@pytest.fixture
async def deployment(docker_target: Target) -> AsyncIterator[Deployment]:
    async with docker_target.make() as deployment:
        yield deployment
    assert docker_target.leftovers() == set()


@asynccontextmanager
async def sandbox_of(
    deployment: Deployment, config: SandboxConfig
) -> AsyncIterator[tuple[Sandbox, RuntimeClient]]:
    async with (
        deployment.session(config) as sandbox,
        RuntimeClient(sandbox.runtime_url, token=sandbox.token) as client,
    ):
        yield sandbox, client


async def output_of(client: RuntimeClient, command: str) -> str:
    result = await client.run(command)
    assert result.exit_code == 0, result.stderr
    return result.stdout.strip()


async def test_setuid_shell_cannot_be_left_for_accounts_of_the_host(
    deployment: Deployment, docker_target: Target
) -> None:
    async with sandbox_of(deployment, docker_target.config) as (_, client):
        for attempt in ("cp $(which sh) rootsh", "chmod 0777 .", "ln -s /bin/sh sh", "mkfifo fifo"):
            result = await client.run(attempt, cwd="/run/agentix")
            assert "Read-only file system" in result.stderr, attempt
        # The mount cannot be made writable, or be taken away to reach what is under it.
        for attempt in ("mount -o remount,rw /run/agentix", "umount /run/agentix"):
            assert "ermi" in (await client.run(attempt)).stderr, attempt
        assert await output_of(client, "ls -A /run/agentix") == "runtime"
        refused = await client.run(
            "chmod 0777 runtime; rm runtime; mv runtime x", cwd="/run/agentix"
        )
        assert refused.stderr.count("Read-only file system") == 3


async def test_host_s_disk_cannot_be_filled_through_the_handoff(
    deployment: Deployment, docker_target: Target
) -> None:
    async with sandbox_of(deployment, docker_target.config) as (_, client):
        result = await client.run("dd if=/dev/zero of=/run/agentix/fill bs=1M count=50")
        assert result.exit_code != 0
        mounts = await output_of(client, "cat /proc/self/mountinfo")
    fields = [line.split() for line in mounts.splitlines()]
    [own] = [mount for mount in fields if mount[4] == "/run/agentix"]
    assert own[5].split(",")[0] == "ro"


async def test_other_socket_in_place_of_ours_is_never_connected_to(
    deployment: Deployment, docker_target: Target
) -> None:
    async with sandbox_of(deployment, docker_target.config) as (sandbox, client):
        swap = (
            "rm -rf /run/agentix/*; mv /run/agentix /run/x; ln -s /var/run/docker.sock"
            " /run/agentix/socket; nc -lU /run/agentix/socket; true"
        )
        assert (await client.run(swap, timeout=5)).timed_out is False
        # What stands inside has no say in where the host connects.
        assert await output_of(client, "find /run /tmp /nix -type s") == "/run/agentix/runtime"
        assert not sandbox.runtime_url.endswith("/run/agentix/runtime")
        assert (await client.run("echo ours")).stdout == "ours\n"


async def test_listening_socket_dies_with_its_runtime(
    deployment: Deployment, docker_target: Target
) -> None:
    sandbox = await deployment.create(docker_target.config)
    docker("kill", "--signal", "KILL", sandbox.id)
    begin = monotonic()
    async with RuntimeClient(sandbox.runtime_url, token=sandbox.token) as client:
        with pytest.raises(Exception, match="gone or broke off"):
            await client.run("true")
    # Refused, rather than left waiting in the backlog of a socket that nobody serves.
    assert monotonic() - begin < 2.0


async def test_root_of_the_sandbox_cannot_read_the_runtime_s_memory(
    deployment: Deployment, docker_target: Target
) -> None:
    async with sandbox_of(deployment, docker_target.config) as (_, client):
        assert await output_of(client, "id -u") == "0"
        for file in ("mem", "maps", "environ", "syscall", "auxv"):
            result = await client.run(f"dd if=/proc/{RUNTIME_PID}/{file} bs=1 count=1")
            assert result.exit_code != 0, file
            assert re.search("Permission denied|not permitted", result.stderr), file
        opened = await client.run(f"for fd in /proc/{RUNTIME_PID}/fd/*; do readlink $fd; done")
        assert opened.stdout == ""


async def test_variables_of_the_task_are_its_own_and_never_the_token(
    deployment: Deployment, docker_target: Target
) -> None:
    """A shell exports what it sets where the environment had a variable of that name."""
    names = ("token", "d")
    config = docker_target.config.model_copy(update={"env": dict.fromkeys(names, "mine")})
    async with sandbox_of(deployment, config) as (sandbox, client):
        environment = await output_of(client, "env")
        assert sandbox.token not in environment
        assert {f"{name}=mine" for name in names} <= set(environment.splitlines())


async def test_links_of_the_store_cannot_fill_the_memory(
    deployment: Deployment, docker_target: Target
) -> None:
    config = docker_target.config.model_copy(update={"memory": 128 * MEBIBYTE})
    async with sandbox_of(deployment, config) as (_, client):
        filled = await client.run("dd if=/dev/zero of=/nix/fill bs=1M count=500")
        assert "No space left on device" in filled.stderr
        assert (await client.run("echo alive")).stdout == "alive\n"


async def test_command_that_takes_all_memory_is_told_from_its_runtime(
    deployment: Deployment, docker_target: Target
) -> None:
    config = docker_target.config.model_copy(update={"memory": 128 * MEBIBYTE})
    async with sandbox_of(deployment, config) as (_, client):
        greedy = await client.run("tail /dev/zero", timeout=60)
        assert greedy.exit_code != 0
        assert greedy.oom_killed is True
        honest = await client.run("false")
        assert (honest.exit_code, honest.oom_killed) == (1, False)


async def test_fork_bomb_ends_at_the_limit_and_with_its_sandbox(
    deployment: Deployment, docker_target: Target
) -> None:
    config = docker_target.config.model_copy(update={"pids": 64})
    sandbox = await deployment.create(config)
    async with RuntimeClient(sandbox.runtime_url, token=sandbox.token) as client:
        bomb = asyncio.create_task(client.run("while :; do sleep 100 & done"))
        async with asyncio.timeout(30):
            while docker("top", sandbox.id).count("\n") < 60:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        begin = monotonic()
        await deployment.delete(sandbox.id)
        assert monotonic() - begin < 10
        with pytest.raises(Exception, match="gone or broke off"):
            await bomb


async def test_sandboxes_on_the_bridge_do_not_reach_each_other(
    deployment: Deployment, docker_target: Target
) -> None:
    config = docker_target.config.model_copy(update={"network": "bridge"})
    async with (
        sandbox_of(deployment, config) as (_, server),
        sandbox_of(deployment, config) as (_, stranger),
    ):
        address = await output_of(server, "ip -4 addr show eth0 | grep -o 'inet [0-9.]*'")
        address = address.removeprefix("inet ")
        await server.run("echo secret >/tmp/page; httpd -p 8080 -h /tmp")
        fetch = f"printf 'GET /page HTTP/1.0\\r\\n\\r\\n' | nc -w 2 {address} 8080"
        assert (await output_of(server, fetch)).endswith("secret")
        assert (await stranger.run(fetch, timeout=10)).stdout == ""


async def test_network_goes_with_its_last_deployment(docker_target: Target) -> None:
    config = docker_target.config.model_copy(update={"network": "bridge"})
    async with docker_target.make() as first:
        async with docker_target.make() as second:
            await first.create(config)
            await second.create(config)
        assert docker("network", "ls", "--quiet", "--filter", "name=^agentix$") != ""
    assert docker("network", "ls", "--quiet", "--filter", "name=^agentix$") == ""


@pytest.mark.parametrize("option", ["label=of=somebody", "label=org.agentix.role=network"])
async def test_network_of_somebody_else_is_neither_used_nor_removed(
    docker_target: Target, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    name = f"agentix-test-{os.getpid()}"
    monkeypatch.setattr("agentix.docker.network.NETWORK", name)
    docker("network", "create", f"--{option}", name)
    try:
        async with docker_target.make() as deployment:
            config = docker_target.config.model_copy(update={"network": "bridge"})
            with pytest.raises(DeploymentError, match=f"network {name} is not the one"):
                await deployment.create(config)
        assert docker("network", "ls", "--quiet", "--filter", f"name=^{name}$") != ""
    finally:
        docker("network", "rm", name)


async def test_network_that_is_removed_meanwhile_is_made_again(
    docker_target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = docker_target.config.model_copy(update={"network": "bridge"})
    start = Engine.start_container
    removed: list[str] = []

    async def start_late(engine: Engine, name: str) -> None:
        if name.startswith("agentix-") and "keeper" not in name and not removed:
            removed.append(name)
            docker("network", "rm", "agentix")
        await start(engine, name)

    async with docker_target.make() as deployment:
        monkeypatch.setattr(Engine, "start_container", start_late)
        async with sandbox_of(deployment, config) as (_, client):
            assert await output_of(client, "ls /sys/class/net | grep eth0") == "eth0"
            assert [info.status for info in await deployment.list()] == ["running"]
    assert len(removed) == 1


async def test_state_of_a_stopped_a_paused_and_a_killed_runtime(
    deployment: Deployment, docker_target: Target
) -> None:
    sandbox = await deployment.create(docker_target.config)

    async def status() -> tuple[str, bool]:
        begin = monotonic()
        info = await deployment.get(sandbox.id)
        return info.status, monotonic() - begin < 5

    assert await status() == ("running", True)
    docker("pause", sandbox.id)
    assert await status() == ("unresponsive", True)
    docker("unpause", sandbox.id)
    assert await status() == ("running", True)
    docker("exec", sandbox.id, "sh", "-c", f"kill -STOP {RUNTIME_PID}")
    assert await status() == ("unresponsive", True)
    docker("exec", sandbox.id, "sh", "-c", f"kill -CONT {RUNTIME_PID}")
    assert await status() == ("running", True)
    docker("exec", sandbox.id, "sh", "-c", f"kill -KILL {RUNTIME_PID}")
    assert await status() == ("exited", True)


async def test_error_of_the_block_is_raised_though_the_engine_is_away(
    docker_target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(engine: Engine, name: str) -> None:
        raise DeploymentError("the engine is away")

    names: list[str] = []

    async def block() -> None:
        async with (
            docker_target.make() as deployment,
            deployment.session(docker_target.config) as sandbox,
        ):
            names.append(sandbox.id)
            monkeypatch.setattr(Engine, "remove_container", away)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        await block()
    docker("rm", "--force", *names)
    notes = " ".join(caught.value.__notes__)
    assert f"sandbox {names[0]} was not deleted: the engine is away" in notes
    assert "the deployment was not left cleanly: the engine is away" in notes


async def test_sandbox_that_is_not_deleted_says_so_where_the_block_ended_well(
    docker_target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(engine: Engine, name: str) -> None:
        raise DeploymentError("the engine is away")

    async with docker_target.make() as deployment:
        assert isinstance(deployment, DockerDeployment)
        with pytest.raises(DeploymentError, match="the engine is away"):
            async with deployment.session(docker_target.config):
                monkeypatch.setattr(Engine, "remove_container", away)
        monkeypatch.undo()
