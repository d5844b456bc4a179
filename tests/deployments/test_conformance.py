"""What every deployment does: the contract of `agentix.deployment.Deployment`, run for real."""

import asyncio
import contextlib
import os
import secrets
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import BaseModel

from agentix.client import RuntimeClient
from agentix.deployment import Deployment, Sandbox, SandboxConfig
from agentix.errors import (
    DeploymentError,
    SandboxGoneError,
    SandboxNotFoundError,
    SandboxStartError,
)
from agentix_namespaces import mock_agent
from tests.deployments.conftest import BROKEN_EXIT_CODE, BROKEN_OUTPUT, Target

DEADLINE = 30.0
PACKAGE = mock_agent.__name__


class SandboxReport(BaseModel):
    """What another process prints of the sandbox that it has made."""

    url: str
    marker: str


@asynccontextmanager
async def connected(
    deployment: Deployment, config: SandboxConfig
) -> AsyncIterator[tuple[Sandbox, RuntimeClient]]:
    """Gives a sandbox with a client of its runtime."""
    async with (
        deployment.session(config) as sandbox,
        RuntimeClient(sandbox.runtime_url, token=sandbox.token) as client,
    ):
        yield sandbox, client


async def output(client: RuntimeClient, command: str) -> str:
    """Runs a command that must succeed and gives what it printed."""
    result = await client.run(command)
    assert result.exit_code == 0, result.stderr
    return result.stdout.strip()


def processes(marker: str) -> Iterator[int]:
    """Gives the processes of this machine that have `marker` as an argument."""
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if marker.encode() in (path / "cmdline").read_bytes().split(b"\0"):
                yield int(path.name)


def wait_for_ends(descriptors: list[int]) -> None:
    """Waits until the processes behind pidfds have ended."""
    for descriptor in descriptors:
        ready, _, _ = select.select([descriptor], [], [], DEADLINE)
        os.close(descriptor)
        assert ready, "a process of the sandbox still lives"


async def test_remote_call(deployment: Deployment, target: Target) -> None:
    async with connected(deployment, target.config) as (_, client):
        result = await client.remote(mock_agent.run, "fix it", workdir="/workspace")
    assert result.exit_code == 0
    assert "+fix it" in result.patch


async def test_stream(deployment: Deployment, target: Target) -> None:
    async with connected(deployment, target.config) as (_, client):
        tokens = [token.text async for token in client.remote(mock_agent.chat, prompt="a b c")]
    assert tokens == ["a", " b", " c"]


async def test_command(deployment: Deployment, target: Target) -> None:
    async with connected(deployment, target.config) as (_, client):
        result = await client.run("echo out; echo err >&2; exit 4")
    assert (result.exit_code, result.stdout, result.stderr) == (4, "out\n", "err\n")


async def test_files_travel_both_ways(
    deployment: Deployment, target: Target, tmp_path: Path
) -> None:
    content = secrets.token_bytes(300_000)
    async with connected(deployment, target.config) as (_, client):
        written = await client.upload(content, "deep/file")
        await client.download("deep/file", tmp_path / "copy")
    assert written.path == "/workspace/deep/file"
    assert (tmp_path / "copy").read_bytes() == content


async def test_calls_need_the_token(deployment: Deployment, target: Target) -> None:
    async with deployment.session(target.config) as sandbox:
        async with RuntimeClient(sandbox.runtime_url) as stranger:
            with pytest.raises(Exception, match="401"):
                await stranger.run("true")
        assert sandbox.token not in repr(sandbox)


async def test_token_is_nowhere_in_the_sandbox(deployment: Deployment, target: Target) -> None:
    async with connected(deployment, target.config) as (sandbox, client):
        found = await client.run(
            f"cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline /run/agentix/* 2>/dev/null"
            f" | tr '\\0' '\\n' | grep -v grep | grep -c {sandbox.token[:20]}x*"
        )
    assert int(found.stdout) <= 1, "only the searching command itself may carry it"


async def test_get_tells_what_the_sandbox_is(deployment: Deployment, target: Target) -> None:
    before = datetime.now(UTC)
    async with deployment.session(target.config) as sandbox:
        info = await deployment.get(sandbox.id)
    assert (info.id, info.image, info.status) == (sandbox.id, target.config.image, "running")
    assert info.exit_code is None
    assert before <= info.created_at <= datetime.now(UTC)


async def test_list_is_ordered_and_shows_only_its_own(
    deployment: Deployment, target: Target
) -> None:
    async with target.make() as other:
        theirs = await other.create(target.config)
        first = await deployment.create(target.config)
        second = await deployment.create(target.config)
        assert [info.id for info in await deployment.list()] == [first.id, second.id]
        assert [info.id for info in await other.list()] == [theirs.id]
        with pytest.raises(SandboxNotFoundError):
            await deployment.get(theirs.id)
        with pytest.raises(SandboxNotFoundError):
            await deployment.delete(theirs.id)


async def test_deleted_sandbox_is_not_found(deployment: Deployment, target: Target) -> None:
    sandbox = await deployment.create(target.config)
    await deployment.delete(sandbox.id)
    assert await deployment.list() == []
    with pytest.raises(SandboxNotFoundError, match=sandbox.id):
        await deployment.get(sandbox.id)
    with pytest.raises(SandboxNotFoundError, match=sandbox.id):
        await deployment.delete(sandbox.id)
    async with RuntimeClient(sandbox.runtime_url, token=sandbox.token) as client:
        with pytest.raises(SandboxGoneError):
            await client.health()


async def test_one_of_two_deletes_finds_the_sandbox(deployment: Deployment, target: Target) -> None:
    sandbox = await deployment.create(target.config)
    deletes = [deployment.delete(sandbox.id) for _ in range(2)]
    outcomes = await asyncio.gather(*deletes, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes if outcome] == [SandboxNotFoundError]


async def test_session_deletes_after_an_error(deployment: Deployment, target: Target) -> None:
    with pytest.raises(ZeroDivisionError):
        async with deployment.session(target.config):
            raise ZeroDivisionError
    assert await deployment.list() == []


async def test_leaving_the_deployment_deletes_all(target: Target) -> None:
    async with target.make() as deployment:
        sandboxes = [await deployment.create(target.config) for _ in range(2)]
    assert target.leftovers() == set()
    for sandbox in sandboxes:
        async with RuntimeClient(sandbox.runtime_url, token=sandbox.token) as client:
            with pytest.raises(SandboxGoneError):
                await client.health()


async def test_sandboxes_do_not_see_one_another(deployment: Deployment, target: Target) -> None:
    marker = f"4{secrets.randbelow(10**9):09}"
    async with (
        connected(deployment, target.config) as (_, one),
        connected(deployment, target.config) as (_, two),
    ):
        await output(one, "echo secret > /tmp/mine; echo secret > /workspace/mine")
        stream = one.run_stream(f"echo started; exec sleep {marker}")
        async with contextlib.aclosing(stream) as events:
            await anext(aiter(events))
            seen = "cat /proc/[0-9]*/cmdline | tr '\\0' '\\n'"
            assert marker in await output(one, seen)
            assert f"\n{marker}\n" not in await output(two, seen)
        assert await output(two, "ls /tmp/mine /workspace/mine 2>&1 | grep -c 'No such'") == "2"
        assert await output(one, "cat /tmp/mine /workspace/mine") == "secret\nsecret"


async def test_workspace_and_tmp_are_writable(deployment: Deployment, target: Target) -> None:
    async with connected(deployment, target.config) as (_, client):
        await output(client, "echo x > /workspace/file && echo x > /tmp/file && rm /tmp/file")


async def test_mounts_are_read_only(deployment: Deployment, target: Target) -> None:
    async with connected(deployment, target.config) as (_, client):
        mounts = (await output(client, "ls -d /mnt/*/entry")).split()
        assert len(mounts) == 2
        for mount in mounts:
            result = await client.run(f"touch {mount}/x")
            assert "Read-only file system" in result.stderr


async def test_layout_is_that_of_the_architecture(deployment: Deployment, target: Target) -> None:
    async with connected(deployment, target.config) as (_, client):
        assert await output(client, "ls /mnt | sed 's/^c[0-9a-f]*$/c/'") == "c\nruntime"
        assert await output(client, "ls -d /mnt/c*/entry/python/*/*") != ""
        await output(client, "test -d /nix/store && test -x /mnt/runtime/entry/bin/start")


async def test_namespace_programs_run(deployment: Deployment, target: Target) -> None:
    async with connected(deployment, target.config) as (_, client):
        result = await client.run("mock-agent-cli hello there", paths_from=[PACKAGE])
        assert result.stdout == "hello there\n"
        assert (await client.run("mock-agent-cli")).exit_code == 127
        [namespace] = await client.namespaces()
    assert namespace.manifest.package == PACKAGE


async def test_environment_is_passed_and_the_owner_s_is_not(
    deployment: Deployment, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OWNER_SECRET", "1")
    config = target.config.model_copy(update={"env": {"GREETING": "hello world"}})
    async with connected(deployment, config) as (_, client):
        assert await output(client, "echo $GREETING,$OWNER_SECRET") == "hello world,"


async def test_no_network(deployment: Deployment, target: Target) -> None:
    config = target.config.model_copy(update={"network": "none"})
    async with connected(deployment, config) as (_, client):
        routes = await output(client, "sed 1d /proc/net/route")
        interfaces = await output(client, "sed '1,2d; s/:.*//; s/ //g' /proc/net/dev | sort")
    assert routes == ""
    assert "lo" in interfaces.split()
    assert "eth0" not in interfaces.split()


async def test_no_privileges(deployment: Deployment, target: Target) -> None:
    async with connected(deployment, target.config) as (_, client):
        status = await output(client, "cat /proc/self/status")
    lines = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    administrator = 1 << 21
    assert not int(lines["CapBnd"], 16) & administrator
    assert not int(lines["CapEff"], 16) & administrator
    assert lines["NoNewPrivs"] == "1"


async def test_runtime_that_dies_at_start(deployment: Deployment, target: Target) -> None:
    config = target.config.model_copy(update={"runtime": target.broken_runtime})
    with pytest.raises(SandboxStartError) as raised:
        await deployment.create(config)
    assert raised.value.exit_code == BROKEN_EXIT_CODE
    assert BROKEN_OUTPUT in raised.value.output
    assert await deployment.list() == []
    assert target.leftovers() == set()


async def test_runtime_that_is_too_slow(deployment: Deployment, target: Target) -> None:
    config = target.config.model_copy(update={"start_timeout": 0.001})
    with pytest.raises(SandboxStartError) as raised:
        await deployment.create(config)
    assert raised.value.exit_code is None
    assert await deployment.list() == []
    assert target.leftovers() == set()


async def test_missing_image(deployment: Deployment, target: Target) -> None:
    config = target.config.model_copy(update={"image": target.missing_image})
    with pytest.raises(DeploymentError, match=target.missing_image):
        await deployment.create(config)
    assert await deployment.list() == []


async def test_missing_namespace(deployment: Deployment, target: Target) -> None:
    config = target.config.model_copy(update={"namespaces": ("agentix-test/missing:9",)})
    with pytest.raises(DeploymentError, match="agentix-test/missing:9"):
        await deployment.create(config)
    assert target.leftovers() == set()


@pytest.mark.parametrize("delay", [0.0, 0.005, 0.02, 0.08, 0.16])
async def test_cancelled_create_leaves_nothing(
    deployment: Deployment, target: Target, delay: float
) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(delay):
            sandbox = await deployment.create(target.config)
            await deployment.delete(sandbox.id)
    assert await deployment.list() == []
    assert target.leftovers() == set()


async def test_cancelled_delete_still_deletes(deployment: Deployment, target: Target) -> None:
    sandbox = await deployment.create(target.config)
    delete = asyncio.create_task(deployment.delete(sandbox.id))
    await asyncio.wait([delete], timeout=0.001)
    delete.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await delete
    assert await deployment.list() == []
    assert target.leftovers() == set()


async def test_runtime_that_ends_is_reported(deployment: Deployment, target: Target) -> None:
    async with connected(deployment, target.config) as (sandbox, client):
        with contextlib.suppress(SandboxGoneError):
            await client.run("kill -9 $PPID")
        async with asyncio.timeout(DEADLINE):
            # The contract has no event for it.
            while (info := await deployment.get(sandbox.id)).status != "exited":  # noqa: ASYNC110
                await asyncio.sleep(0)
    assert info.exit_code == 128 + signal.SIGKILL


OWNER = """
import asyncio, json, sys
from contextlib import aclosing
from agentix.client import RuntimeClient
from agentix.deployment import SandboxConfig
{imports}

async def main():
    async with {expression} as deployment:
        sandbox = await deployment.create(SandboxConfig.model_validate_json(sys.argv[1]))
        async with RuntimeClient(sandbox.runtime_url, token=sandbox.token) as client:
            async for _ in client.run_stream("echo; exec sleep " + sys.argv[2]):
                print("started", flush=True)

asyncio.run(main())
"""


def test_sandboxes_end_with_a_killed_owner(target: Target) -> None:
    marker = f"4{secrets.randbelow(10**9):09}"
    program = OWNER.format(imports=target.imports, expression=target.expression)
    owner = subprocess.Popen(
        [sys.executable, "-c", program, target.config.model_dump_json(), marker],
        stdout=subprocess.PIPE,
    )
    with owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"started\n"
        inside = [pid for pid in processes(marker) if pid != owner.pid]
        descriptors = [os.pidfd_open(pid) for pid in inside]
        owner.kill()
    assert descriptors
    wait_for_ends(descriptors)


async def test_orphans_are_reaped(deployment: Deployment, target: Target) -> None:
    async with connected(deployment, target.config) as (_, client):
        await output(client, "for i in $(seq 200); do (true &); done")
        zombies = "grep -l 'State:.Z' /proc/[0-9]*/status 2>/dev/null || true"
        async with asyncio.timeout(DEADLINE):
            while await output(client, zombies):
                pass


async def test_nothing_accumulates_in_the_owner(deployment: Deployment, target: Target) -> None:
    async def cycle() -> None:
        async with connected(deployment, target.config) as (_, client):
            await client.health()

    await cycle()
    descriptors, tasks = set(os.listdir("/proc/self/fd")), asyncio.all_tasks()
    for _ in range(20):
        await cycle()
    assert len(os.listdir("/proc/self/fd")) <= len(descriptors)
    assert len(asyncio.all_tasks()) <= len(tasks)


async def test_ten_at_once(deployment: Deployment, target: Target) -> None:
    sandboxes = await asyncio.gather(*(deployment.create(target.config) for _ in range(10)))
    assert {info.id for info in await deployment.list()} == {one.id for one in sandboxes}
    for sandbox in sandboxes:
        async with RuntimeClient(sandbox.runtime_url, token=sandbox.token) as client:
            assert (await client.remote(mock_agent.run, "x")).exit_code == 0
    await asyncio.gather(*(deployment.delete(sandbox.id) for sandbox in sandboxes))
    assert target.leftovers() == set()
