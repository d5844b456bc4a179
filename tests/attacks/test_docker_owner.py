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
from agentix.docker.engine import ContainerDetails, Engine, EngineImage, ExecStream
from agentix.docker.keeper import PROTOCOL, Keeper, _keeper
from agentix.docker.volumes import ClosureVolumes
from agentix.errors import DeploymentError
from tests.deployments.conftest import Target
from tests.deployments.docker.closure_images import docker, image_of

NAMESPACES = Path(__file__).parents[1] / "namespaces"
PROGRAM = Path(__file__).parent / "programs" / "own_one.py"
GONE_WITHIN = 20.0
"""Seconds from an owner's death to the end of its sandboxes."""
KEEPER_GONE_WITHIN = 5.0
DEADLINE = 60.0

KEEPER = f"agentix-keeper-{PROTOCOL}-{os.geteuid()}"
"""The keeper that owners in other processes use."""
SHELL = ("/nix/entry/bin/sh", "-c")
"""The keeper's own."""
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


@pytest.mark.parametrize("act", ["nothing", "fork", "stop", "block"])
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
    docker_target: Target, control_root: Path, own_keeper: str
) -> None:
    async with DockerDeployment(control_root=control_root, pull=False) as deployment:
        sandbox = await deployment.create(docker_target.config)
        assert len(keepers(own_keeper)) == 1
        await deployment.delete(sandbox.id)
        begin = monotonic()
        await no_keeper(own_keeper)
        assert monotonic() - begin < KEEPER_GONE_WITHIN
        # The next sandbox has another.
        await deployment.create(docker_target.config)
        assert len(keepers(own_keeper)) == 1


async def test_many_deployments_share_one_keeper(
    docker_target: Target, control_root: Path, own_keeper: str
) -> None:
    async def one() -> None:
        async with DockerDeployment(control_root=control_root, pull=False) as deployment:
            await deployment.create(docker_target.config)
            assert len(keepers(own_keeper)) == 1

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
    docker_target: Target, control_root: Path, own_keeper: str
) -> None:
    async with DockerDeployment(control_root=control_root, pull=False) as deployment:
        await deployment.create(docker_target.config)
        form = (
            "{{.HostConfig.CapAdd}} {{.HostConfig.CapDrop}} {{.HostConfig.NetworkMode}}"
            " {{.HostConfig.ReadonlyRootfs}} {{.HostConfig.Privileged}}"
            " {{range .Mounts}}{{.Destination}}:{{.RW}}{{end}}"
        )
        shown = docker("inspect", "--format", form, own_keeper)
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


async def test_sandbox_whose_guard_alone_is_killed_is_taken_up_again(docker_target: Target) -> None:
    async with owner_of(docker_target, docker_target.config) as owner:
        killed = await killed_guard(owner.sandbox)
        assert await guard_of(owner.sandbox, other_than=killed) != killed
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(gone_after(owner.sandbox), 3.0)  # three leases
        await owner.kill()
        assert await gone_after(owner.sandbox) < GONE_WITHIN


async def test_sandbox_ends_though_its_guard_is_killed_after_its_owner(
    docker_target: Target,
) -> None:
    async with owner_of(docker_target, docker_target.config) as owner:
        owner.process.send_signal(signal.SIGSTOP)  # it cannot have another guard
        await killed_guard(owner.sandbox)
        await owner.kill()
        assert await gone_after(owner.sandbox) < GONE_WITHIN


async def test_keeper_that_was_never_started_goes_with_the_next_deployment(
    docker_target: Target, control_root: Path, own_keeper: str
) -> None:
    """An owner may die between the requests that make and start a keeper."""
    engine = Engine.from_environ()
    await engine.create_container(own_keeper, _keeper(await runtime_on(engine, docker_target)))
    await engine.close()
    assert docker("ps", "--all", "--quiet", "--filter", f"name={own_keeper}") != ""
    async with DockerDeployment(control_root=control_root, pull=False):
        pass
    await no_keeper(own_keeper)
    assert docker("ps", "--all", "--quiet", "--filter", f"name={own_keeper}") == ""


async def test_paused_keeper_is_told_and_does_not_hold_calls_for_ever(
    docker_target: Target, own_keeper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentix.docker.keeper.ANSWER_TIMEOUT", 1.0)
    monkeypatch.setattr("agentix.docker.keeper.START_TIMEOUT", 1.0)
    async with keeper_of_test(docker_target) as (keeper, image):
        docker("pause", own_keeper)
        with pytest.raises(DeploymentError, match=f"{own_keeper} does not answer within 1 s"):
            await keeper.hold(image, "second")
        with pytest.raises(DeploymentError, match=r"did not start: .* is paused"):
            await keeper.hold(image, "third")
        await keeper.drop("second")
        docker("unpause", own_keeper)
        await keeper.hold(image, "fourth")


async def test_container_of_somebody_else_is_not_taken_for_the_keeper(
    docker_target: Target, own_keeper: str
) -> None:
    image = docker_target.config.image
    docker("run", "--detach", "--name", own_keeper, image, "sleep", "60")
    with pytest.raises(DeploymentError, match=f"container {own_keeper} is not the keeper"):
        async with keeper_of_test(docker_target):
            pass
    assert docker("top", own_keeper).count("\n") == 1  # nothing ran in it


async def test_sandbox_that_cannot_be_noted_is_not_taken_for_guarded(
    docker_target: Target, own_keeper: str
) -> None:
    async with (
        keeper_of_test(docker_target) as (keeper, _),
        process_in_container(docker_target.config.image) as details,
    ):
        docker("exec", own_keeper, *SHELL, "dd if=/dev/zero of=/run/fill; true")
        with pytest.raises(DeploymentError, match="ends again and again"):
            await keeper.guard("first", details)


async def test_request_that_is_cancelled_leaves_its_answer_to_nobody(
    docker_target: Target, own_keeper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = asyncio.Event()
    write = ExecStream.write

    async def write_and_tell(stream: ExecStream, data: bytes) -> None:
        await write(stream, data)
        made.set()

    async with (
        keeper_of_test(docker_target) as (keeper, image),
        process_in_container(docker_target.config.image) as details,
    ):
        monkeypatch.setattr(ExecStream, "write", write_and_tell)
        request = asyncio.create_task(keeper.hold(image, "second"))
        await asyncio.wait_for(made.wait(), DEADLINE)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert await keeper.guard("first", details) is True


async def test_lease_of_many_days(docker_target: Target, own_keeper: str) -> None:
    async with process_in_container(docker_target.config.image) as details:
        async with keeper_of_test(docker_target, lease=1e7) as (keeper, _):
            assert await keeper.guard("first", details) is True
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(gone_after(details.id), 3.0)


async def test_keeper_that_is_left_while_it_is_followed_by_another_leaves_no_task(
    docker_target: Target, own_keeper: str
) -> None:
    tasks = asyncio.all_tasks()
    async with keeper_of_test(docker_target) as (keeper, _):
        assert keeper._guard is not None
        docker("rm", "--force", own_keeper)
        await asyncio.wait_for(keeper._guard.ended.wait(), DEADLINE)
        await asyncio.sleep(0)  # lets the next keeper be asked for
        await keeper.close()
        assert asyncio.all_tasks() == tasks


@pytest.fixture
def own_keeper(docker_engine: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Have a keeper of another name than all others on the engine."""
    monkeypatch.setattr("agentix.docker.keeper.PROTOCOL", f"of-test-{os.getpid()}")
    name = f"agentix-keeper-of-test-{os.getpid()}-{os.geteuid()}"
    yield name
    subprocess.run(["docker", "rm", "--force", name], capture_output=True, check=False)


@asynccontextmanager
async def keeper_of_test(
    target: Target, lease: float = 0.1
) -> AsyncIterator[tuple[Keeper, EngineImage]]:
    """Start a keeper that holds one sandbox, `first`."""
    engine = Engine.from_environ()
    keeper = Keeper(engine, "0" * 16, lease)
    try:
        image = await runtime_on(engine, target)
        await keeper.hold(image, "first")
        yield keeper, image
    finally:
        await keeper.close()
        await engine.close()


async def runtime_on(engine: Engine, target: Target) -> EngineImage:
    image = await engine.image(target.config.runtime)
    await ClosureVolumes(engine).ensure(image, "/nix/entry/bin/start")
    return image


@asynccontextmanager
async def process_in_container(image: str) -> AsyncIterator[ContainerDetails]:
    container = docker("run", "--detach", image, "sleep", "60")
    engine = Engine.from_environ()
    try:
        yield await engine.container_details(container)
    finally:
        await engine.close()
        docker("rm", "--force", container)


async def killed_guard(sandbox: str) -> int:
    """Kill the guard of a sandbox and nothing else; return its process id."""
    guard = await guard_of(sandbox)
    os.kill(guard, signal.SIGKILL)
    return guard


async def guard_of(sandbox: str, other_than: int = 0) -> int:
    """Wait until a sandbox has a guard, and return its process id."""
    form = '{{index .Config.Labels "org.agentix.deployment"}}'
    deployment = docker("inspect", "--format", form, sandbox)
    guards = f"cat /run/guards/{deployment}.* 2>/dev/null; true"
    async with asyncio.timeout(DEADLINE):
        while True:
            [keeper] = keepers()
            for line in docker("exec", keeper, *SHELL, guards).splitlines():
                pid = int(line.split()[0])
                if pid != other_than:
                    return pid
            await asyncio.sleep(0.05)


async def test_keeper_kills_no_process_that_is_not_of_the_sandbox(
    docker_target: Target, own_keeper: str
) -> None:
    """A container that ended, and whose process id another process has."""
    stranger = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        async with keeper_of_test(docker_target) as (keeper, _):
            gone = ContainerDetails(id="0" * 64, pid=stranger.pid, ports={}, labels={})
            assert await keeper.guard("first", gone) is False
        await no_keeper(own_keeper)
        assert stranger.returncode is None
    finally:
        stranger.kill()
        await stranger.wait()


def keepers(name: str = KEEPER) -> list[str]:
    return docker("ps", "--quiet", "--filter", f"name=^{name}$").split()


async def no_keeper(name: str) -> None:
    """Wait until a keeper does not run."""
    for keeper in keepers(name):
        waiter = await asyncio.create_subprocess_exec("docker", "wait", keeper)
        await asyncio.wait_for(waiter.wait(), DEADLINE)


async def until_keeper() -> None:
    """Wait until the keeper runs."""
    async with asyncio.timeout(DEADLINE):
        while not keepers():  # noqa: ASYNC110 - the engine alone knows
            await asyncio.sleep(0.05)
