"""What a sandbox is like inside, in any task image and on any network."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import pytest

from agentix.client import RuntimeClient
from agentix.deployment import Sandbox, SandboxConfig
from agentix.docker import DockerDeployment
from agentix.docker.container import UnixControl
from agentix.docker.labels import DEPLOYMENT, OWNER, ROLE
from agentix.docker.owner import Owner
from agentix.errors import RequestError, UsageError
from agentix.version import VERSION
from agentix_namespaces import mock_agent
from tests.deployments.docker.closure_images import docker
from tests.task_images import TASK_IMAGES

NAMESPACES = (f"agentix/mock-agent:{VERSION}",)


def client_of(sandbox: Sandbox) -> RuntimeClient:
    return RuntimeClient(sandbox.runtime_url, token=sandbox.token)


@asynccontextmanager
async def client_in(
    deployment: DockerDeployment, config: SandboxConfig
) -> AsyncIterator[RuntimeClient]:
    async with deployment.session(config) as sandbox, client_of(sandbox) as client:
        yield client


async def output_of(client: RuntimeClient, command: str) -> str:
    result = await client.run(command)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout.strip()


@pytest.mark.parametrize("name", sorted(TASK_IMAGES))
async def test_any_task_image_serves_calls(
    images: None, deployment: DockerDeployment, name: str
) -> None:
    config = SandboxConfig(image=TASK_IMAGES[name]("docker"), namespaces=NAMESPACES)
    async with client_in(deployment, config) as client:
        assert (await client.health()).status == "ok"
        assert (await client.remote(mock_agent.run, "fix")).exit_code == 0


async def test_commands_run_as_the_image_s_user(images: None, deployment: DockerDeployment) -> None:
    config = SandboxConfig(image=TASK_IMAGES["user"]("docker"))
    async with client_in(deployment, config) as client:
        assert await output_of(client, "echo $(id -u) $(id -g)") == "1000 1000"


async def test_user_of_the_configuration_wins(images: None, deployment: DockerDeployment) -> None:
    config = SandboxConfig(image=TASK_IMAGES["user"]("docker"), user="1234:1235")
    async with client_in(deployment, config) as client:
        assert await output_of(client, "echo $(id -u) $(id -g)") == "1234 1235"


async def test_path_of_commands_is_the_image_s_own(
    images: None, deployment: DockerDeployment
) -> None:
    config = SandboxConfig(image=TASK_IMAGES["search-path"]("docker"))
    async with client_in(deployment, config) as client:
        assert await output_of(client, "echo $PATH") == "/opt/environment/bin:/usr/bin:/bin"


async def test_configured_variables_reach_commands(
    deployment: DockerDeployment, config: SandboxConfig
) -> None:
    config = config.model_copy(update={"env": {"GREETING": "hi = there"}})
    async with client_in(deployment, config) as client:
        assert await output_of(client, "echo $GREETING") == "hi = there"


async def test_variable_that_is_the_deployment_s_is_refused(
    deployment: DockerDeployment, config: SandboxConfig
) -> None:
    config = config.model_copy(update={"env": {"AGENTIX_TOKEN_FILE": "/etc/passwd"}})
    with pytest.raises(UsageError, match="env sets AGENTIX_TOKEN_FILE: the deployment sets that"):
        await deployment.create(config)


async def test_same_namespace_twice_is_mounted_once(
    deployment: DockerDeployment, config: SandboxConfig
) -> None:
    twice = config.model_copy(update={"namespaces": NAMESPACES * 2})
    async with client_in(deployment, twice) as client:
        mounted = [namespace.manifest.package for namespace in await client.namespaces()]
        assert mounted == ["agentix_namespaces.mock_agent"]


@pytest.mark.parametrize("network", ["bridge", "none"])
async def test_sandbox_can_not_reach_the_host_s_loopback(
    deployment: DockerDeployment, config: SandboxConfig, network: Literal["bridge", "none"]
) -> None:
    assert await loopback_answer(deployment, config, network) == ""


async def test_host_network_reaches_the_host_s_loopback(
    deployment: DockerDeployment, config: SandboxConfig
) -> None:
    assert await loopback_answer(deployment, config, "host") == "secret"


async def loopback_answer(
    deployment: DockerDeployment, config: SandboxConfig, network: Literal["bridge", "host", "none"]
) -> str:
    """Gives what a command reads from a service on the host's 127.0.0.1, by any route."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"secret\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    config = config.model_copy(update={"network": network})
    try:
        async with client_in(deployment, config) as client:
            gateway = "$(ip route | sed -n 's/^default via \\([^ ]*\\).*/\\1/p')"
            command = f"for host in 127.0.0.1 {gateway}; do nc -w 2 $host {port} </dev/null; done"
            return (await client.run(command)).stdout.strip()
    finally:
        server.close()


async def test_network_none_has_a_loopback_only(
    deployment: DockerDeployment, config: SandboxConfig
) -> None:
    config = config.model_copy(update={"network": "none"})
    async with client_in(deployment, config) as client:
        assert await output_of(client, "ls /sys/class/net") == "lo"
        assert (await client.remote(mock_agent.run, "fix")).exit_code == 0


@pytest.mark.parametrize("network", ["bridge", "host"])
async def test_tcp_control_takes_calls_with_the_token_only(
    docker_engine: str, config: SandboxConfig, network: Literal["bridge", "host"]
) -> None:
    async with DockerDeployment(control="tcp", network=network) as deployment:
        sandbox = await deployment.create(config)
        assert sandbox.runtime_url.startswith("http://127.0.0.1:")
        async with client_of(sandbox) as client:
            assert (await client.remote(mock_agent.run, "fix")).exit_code == 0
        async with RuntimeClient(sandbox.runtime_url) as stranger:
            with pytest.raises(RequestError, match="401"):
                await stranger.run("true")


async def test_tcp_control_publishes_on_the_loopback_only(
    docker_engine: str, config: SandboxConfig
) -> None:
    async with DockerDeployment(control="tcp") as deployment:
        sandbox = await deployment.create(config)
        shown = docker("inspect", "--format", "{{json .NetworkSettings.Ports}}", sandbox.id)
        [bindings] = json.loads(shown).values()
        assert [binding["HostIp"] for binding in bindings] == ["127.0.0.1"]


async def test_unix_control_publishes_nothing(
    deployment: DockerDeployment, config: SandboxConfig
) -> None:
    sandbox = await deployment.create(config)
    assert docker("inspect", "--format", "{{json .NetworkSettings.Ports}}", sandbox.id) == "{}"


async def test_tcp_control_without_a_network_is_refused(
    docker_engine: str, config: SandboxConfig
) -> None:
    async with DockerDeployment(control="tcp", network="none") as deployment:
        with pytest.raises(UsageError, match="network='none' needs control over a Unix socket"):
            await deployment.create(config)


@pytest.mark.parametrize("seen", ["/nonexistent/directory", "/usr"])
async def test_control_falls_back_to_tcp_where_the_engine_sees_other_files(
    control_root: Path, config: SandboxConfig, monkeypatch: pytest.MonkeyPatch, seen: str
) -> None:
    elsewhere = {"Type": "bind", "Source": seen, "Target": "/run/agentix", "ReadOnly": True}
    monkeypatch.setattr(UnixControl, "mounts", property(lambda control: [elsewhere]))
    async with DockerDeployment(control_root=control_root) as deployment:
        sandbox = await deployment.create(config)
        assert sandbox.runtime_url.startswith("http://127.0.0.1:")


async def test_limits_hold_in_the_sandbox(
    deployment: DockerDeployment, config: SandboxConfig
) -> None:
    limits = {"memory": 256 * 1024 * 1024, "cpus": 0.5, "pids": 123}
    async with client_in(deployment, config.model_copy(update=limits)) as client:
        assert await first_of(client, "memory.max", "memory/memory.limit_in_bytes") == "268435456"
        assert await first_of(client, "pids.max", "pids/pids.max") == "123"
        quota = await first_of(client, "cpu.max", "cpu/cpu.cfs_quota_us")
        assert quota.split()[0] == "50000"


async def first_of(client: RuntimeClient, unified: str, legacy: str) -> str:
    """Reads a limit from where version 2 of control groups has it, or version 1."""
    root = "/sys/fs/cgroup"
    return await output_of(client, f"cat {root}/{unified} 2>/dev/null || cat {root}/{legacy}")


async def test_limits_have_defaults(deployment: DockerDeployment, config: SandboxConfig) -> None:
    host = int(docker("info", "--format", "{{.MemTotal}}"))
    async with client_in(deployment, config) as client:
        memory = int(await first_of(client, "memory.max", "memory/memory.limit_in_bytes"))
        assert await first_of(client, "pids.max", "pids/pids.max") == "2048"
    # The kernel counts in pages.
    assert memory == min(4 * 1024**3, host // 2) // 4096 * 4096


async def test_none_is_no_limit(deployment: DockerDeployment, config: SandboxConfig) -> None:
    sandbox = await deployment.create(config.model_copy(update={"memory": None, "pids": None}))
    form = "{{.HostConfig.Memory}} {{.HostConfig.PidsLimit}}"
    assert docker("inspect", "--format", form, sandbox.id) == "0 <nil>"


async def test_limit_that_the_engine_can_not_give_is_a_usage_error(
    deployment: DockerDeployment, config: SandboxConfig
) -> None:
    with pytest.raises(UsageError, match=r"the engine refuses the configuration: .*CPUs"):
        await deployment.create(config.model_copy(update={"cpus": 10_000.0}))
    assert await deployment.list() == []


async def test_sandbox_holds_only_the_capabilities_that_tasks_need(
    deployment: DockerDeployment, config: SandboxConfig
) -> None:
    async with client_in(deployment, config) as client:
        status = await output_of(client, "grep -E 'CapBnd|NoNewPrivs' /proc/self/status")
        assert status.split() == ["CapBnd:", "00000000800404fb", "NoNewPrivs:", "1"]


async def test_double_forks_leave_no_zombies(
    deployment: DockerDeployment, config: SandboxConfig
) -> None:
    async with client_in(deployment, config) as client:
        forks = "i=0; while [ $i -lt 200 ]; do (true &); i=$((i+1)); done"
        assert (await client.run(forks)).exit_code == 0
        gone = "while grep -qs '^State:.Z' /proc/[0-9]*/status; do :; done"
        assert (await client.run(gone, timeout=30)).timed_out is False


async def test_token_is_nowhere_but_in_the_runtime(
    deployment: DockerDeployment, config: SandboxConfig
) -> None:
    sandbox = await deployment.create(config)
    async with client_of(sandbox) as client:
        inside = (await client.run("env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline")).stdout
        left = await output_of(client, "find / -xdev -name .token; ls -a /nix /run/agentix")
    assert sandbox.token not in inside + docker("inspect", sandbox.id) + docker("logs", sandbox.id)
    assert ".token" not in left
    assert len(sandbox.token) >= 43


async def test_control_directory_is_its_owner_s_alone(
    deployment: DockerDeployment, config: SandboxConfig
) -> None:
    sandbox = await deployment.create(config)
    directory = Path(sandbox.runtime_url.removeprefix("unix:")).parent
    assert directory.stat().st_mode & 0o777 == 0o700


async def test_sandbox_carries_labels(deployment: DockerDeployment, config: SandboxConfig) -> None:
    sandbox = await deployment.create(config)
    labels = json.loads(docker("inspect", "--format", "{{json .Config.Labels}}", sandbox.id))
    assert (labels[ROLE], labels[OWNER]) == ("sandbox", str(Owner.current()))
    assert len(labels[DEPLOYMENT]) == 16


async def test_healthcheck_of_the_task_image_does_not_run(
    deployment: DockerDeployment, config: SandboxConfig
) -> None:
    sandbox = await deployment.create(config)
    check = docker("inspect", "--format", "{{json .Config.Healthcheck.Test}}", sandbox.id)
    assert check == '["NONE"]'


async def test_twenty_at_once_all_succeed(
    deployment: DockerDeployment, config: SandboxConfig
) -> None:
    sandboxes = await asyncio.gather(*(deployment.create(config) for _ in range(20)))
    listed = await deployment.list()
    assert {info.id for info in listed} == {sandbox.id for sandbox in sandboxes}
    assert {info.status for info in listed} == {"running"}
