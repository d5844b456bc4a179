"""A sandbox is gone soon after its owner, whatever its runtime does, wherever the owner lived."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic

import pytest

from agentix.client import RuntimeClient
from agentix.deployment import SandboxConfig
from agentix.docker import DockerDeployment
from agentix.docker.engine import ContainerDetails, Engine
from agentix.docker.keeper import Keeper
from agentix.docker.volumes import ClosureVolumes
from tests.deployments.conftest import Target
from tests.deployments.docker.closure_images import docker, image_of

NAMESPACES = Path(__file__).parents[1] / "namespaces"
PROGRAM = Path(__file__).parent / "programs" / "own_one.py"
GONE_WITHIN = 20.0
"""Seconds from an owner's death to the end of its sandboxes."""
KEEPER_GONE_WITHIN = 5.0
DEADLINE = 60.0

NEW_PID_NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child=KILL", "--mount-proc")


@pytest.fixture(scope="module")
def blocker_image(docker_engine: str) -> Iterator[str]:
    """Make the image of a namespace whose calls block their runtime."""
    source = NAMESPACES / "blocker"
    files = {"nix/entry/manifest.json": (0o444, (source / "manifest.json").read_bytes())}
    for path in (source / "agentix_namespaces/blocker").glob("*.py"):
        place = path.relative_to(source)
        files[f"nix/entry/python/{place}"] = (0o444, path.read_bytes())
    with image_of(files) as reference:
        yield reference


@pytest.fixture
def control_root() -> Iterator[Path]:
    """Make a directory with a short path for sockets."""
    with tempfile.TemporaryDirectory(prefix="ax-") as root:
        yield Path(root)


class OwningProcess:
    """A process that owns one sandbox."""

    def __init__(self, process: asyncio.subprocess.Process, sandbox: str) -> None:
        self.process = process
        self.sandbox = sandbox

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def owner_of(
    target: Target, config: SandboxConfig, act: str = "nothing", wrapper: tuple[str, ...] = ()
) -> AsyncIterator[OwningProcess]:
    """Start a process that makes a sandbox in which something bad goes on."""
    process = await asyncio.create_subprocess_exec(
        *wrapper,
        *(sys.executable, str(PROGRAM), target.imports, target.expression),
        *(config.model_dump_json(), act),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path[1:])},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), DEADLINE)
        yield OwningProcess(process, line.decode().strip())
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def running(sandbox: str) -> bool:
    return docker("ps", "--quiet", "--filter", f"name={sandbox}") != ""


async def gone_after(sandbox: str) -> float:
    """Return how long a container still runs."""
    begin = monotonic()
    waiter = await asyncio.create_subprocess_exec(
        "docker", "wait", sandbox, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        await asyncio.wait_for(waiter.wait(), GONE_WITHIN + 10)
    finally:
        if waiter.returncode is None:
            waiter.kill()
            await waiter.wait()
    return monotonic() - begin


@pytest.mark.parametrize("act", ["nothing", "stop", "block"])
async def test_sandbox_ends_with_its_killed_owner(
    docker_target: Target, blocker_image: str, act: str
) -> None:
    config = docker_target.config.model_copy(update={"namespaces": (blocker_image,)})
    async with owner_of(docker_target, config, act) as owner:
        assert running(owner.sandbox)
        await owner.kill()
        assert await gone_after(owner.sandbox) < GONE_WITHIN


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a pid namespace and no other")
async def test_sandbox_ends_with_an_owner_of_another_pid_namespace(docker_target: Target) -> None:
    config = docker_target.config
    async with owner_of(docker_target, config, "stop", NEW_PID_NAMESPACE) as owner:
        assert running(owner.sandbox)
        await owner.kill()
        assert await gone_after(owner.sandbox) < GONE_WITHIN


@pytest.mark.skipif(os.geteuid() != 0, reason="the owner's container sees the host's root")
async def test_sandbox_ends_with_the_container_of_its_owner(docker_target: Target) -> None:
    name = f"agentix-test-owner-{os.getpid()}"
    host = ("-v", "/:/host", "-v", "/proc:/host/proc", "--network", "host")
    paths = f"PYTHONPATH={os.pathsep.join(sys.path[1:])}"
    container = (
        *("docker", "run", "--rm", "--interactive", "--name", name, *host, "--env", paths),
        *(docker_target.config.image, "chroot", "/host"),
    )
    async with owner_of(docker_target, docker_target.config, "stop", container) as owner:
        assert running(owner.sandbox)
        docker("kill", name)
        assert await gone_after(owner.sandbox) < GONE_WITHIN


async def test_stopped_owner_keeps_its_sandbox_and_a_killed_one_does_not(
    docker_target: Target,
) -> None:
    async with owner_of(docker_target, docker_target.config) as owner:
        owner.process.send_signal(signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(gone_after(owner.sandbox), 3.0)  # three leases
        await owner.kill()
        assert await gone_after(owner.sandbox) < GONE_WITHIN


async def test_owner_that_blocks_its_loop_right_after_creation_keeps_its_sandbox(
    docker_target: Target, control_root: Path
) -> None:
    async with DockerDeployment(control_root=control_root, pull=False, lease=0.5) as deployment:
        sandbox = await deployment.create(docker_target.config)
        until = monotonic() + 2.0
        while monotonic() < until:
            pass  # what a program does that computes on the event loop
        async with RuntimeClient(sandbox.runtime_url, token=sandbox.token) as client:
            assert (await client.run("echo alive")).stdout == "alive\n"


async def test_keeper_ends_itself_after_its_last_sandbox(
    docker_target: Target, control_root: Path
) -> None:
    await no_keeper()
    async with DockerDeployment(control_root=control_root, pull=False) as deployment:
        sandbox = await deployment.create(docker_target.config)
        assert len(keepers()) == 1
        await deployment.delete(sandbox.id)
        begin = monotonic()
        await no_keeper()
        assert monotonic() - begin < KEEPER_GONE_WITHIN
        # The next sandbox has another.
        await deployment.create(docker_target.config)
        assert len(keepers()) == 1


async def test_many_deployments_share_one_keeper(docker_target: Target, control_root: Path) -> None:
    await no_keeper()

    async def one() -> None:
        async with DockerDeployment(control_root=control_root, pull=False) as deployment:
            await deployment.create(docker_target.config)
            assert len(keepers()) == 1

    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(one())


async def test_sandbox_survives_the_end_of_its_keeper_and_not_that_of_its_owner(
    docker_target: Target,
) -> None:
    async with owner_of(docker_target, docker_target.config) as owner:
        [keeper] = keepers()
        docker("rm", "--force", keeper)
        await until_keeper()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(gone_after(owner.sandbox), 3.0)
        owner.process.kill()
        await owner.process.wait()
        assert await gone_after(owner.sandbox) < GONE_WITHIN


async def test_keeper_cannot_do_more_than_it_must(
    docker_target: Target, control_root: Path
) -> None:
    async with DockerDeployment(control_root=control_root, pull=False) as deployment:
        await deployment.create(docker_target.config)
        [keeper] = keepers()
        form = (
            "{{.HostConfig.CapAdd}} {{.HostConfig.CapDrop}} {{.HostConfig.NetworkMode}}"
            " {{.HostConfig.ReadonlyRootfs}} {{.HostConfig.Privileged}}"
            " {{range .Mounts}}{{.Destination}}:{{.RW}}{{end}}"
        )
        shown = docker("inspect", "--format", form, keeper)
        assert shown == "[KILL] [ALL] none true false /nix:false"


async def test_next_deployment_reaps_what_a_foreign_owner_left_before_it_was_guarded(
    docker_target: Target, control_root: Path
) -> None:
    """An owner of another pid namespace that dies before its container was ever started."""
    labels = {
        "org.agentix.role": "sandbox",
        "org.agentix.deployment": "00000000000000aa",
        "org.agentix.owner": "some-boot/4026530000/1/12345",
    }
    options = [
        option for name, value in labels.items() for option in ("--label", f"{name}={value}")
    ]
    left = docker("create", *options, docker_target.config.image, "true")
    async with DockerDeployment(control_root=control_root, pull=False):
        pass
    assert left not in docker("ps", "--all", "--quiet", "--no-trunc").split()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a pid namespace and no other")
async def test_next_deployment_leaves_a_foreign_owner_s_sandbox_alone(
    docker_target: Target, control_root: Path
) -> None:
    config = docker_target.config
    async with owner_of(docker_target, config, "nothing", NEW_PID_NAMESPACE) as owner:
        async with DockerDeployment(control_root=control_root, pull=False):
            pass
        assert running(owner.sandbox)


async def test_keeper_kills_no_process_that_is_not_of_the_sandbox(docker_target: Target) -> None:
    """A container that ended, and whose process id another process has."""
    stranger = await asyncio.create_subprocess_exec("sleep", "60")
    engine = Engine.from_environ()
    try:
        image = await engine.image(docker_target.config.runtime)
        await ClosureVolumes(engine).ensure(image, "/nix/entry/bin/start")
        keeper = Keeper(engine, "0" * 16, lease=0.1)
        await keeper.hold(image, "agentix-of-a-test")
        gone = ContainerDetails(id="0" * 64, pid=stranger.pid, ports={})
        assert await keeper.guard("agentix-of-a-test", gone) is False
        await keeper.close()
        await no_keeper()
        assert stranger.returncode is None
    finally:
        await engine.close()
        stranger.kill()
        await stranger.wait()


def keepers() -> list[str]:
    return docker("ps", "--quiet", "--filter", "label=org.agentix.role=keeper").split()


async def no_keeper() -> None:
    """Wait until no keeper runs."""
    for keeper in keepers():
        waiter = await asyncio.create_subprocess_exec("docker", "wait", keeper)
        await asyncio.wait_for(waiter.wait(), DEADLINE)


async def until_keeper() -> None:
    """Wait until a keeper runs."""
    async with asyncio.timeout(DEADLINE):
        while not keepers():  # noqa: ASYNC110 - the engine alone knows
            await asyncio.sleep(0.05)
