"""How sandboxes begin and end: failures, cancellation, owners that are gone."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentix.deployment import Sandbox, SandboxConfig
from agentix.docker import DockerDeployment
from agentix.docker.engine import Engine
from agentix.docker.labels import DEPLOYMENT, sandbox_labels
from agentix.docker.owner import Owner
from agentix.errors import (
    DeploymentError,
    SandboxNotFoundError,
    SandboxStartError,
    UsageError,
)
from agentix.linux.control import ControlDirectories
from tests.deployments.docker.closure_images import docker, image_of, runtime_files

DEADLINE = 60.0
PROGRAM = Path(__file__).parent / "programs" / "own.py"
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path[1:])}


def containers_of(deployment: DockerDeployment) -> str:
    """Lists the containers of a deployment, running or not."""
    return docker("ps", "--all", "--quiet", "--filter", f"label={DEPLOYMENT}={deployment._id}")


def control_directories(root: Path) -> list[str]:
    """List the sandboxes of open deployments that have a directory below a root."""
    return sorted(path.name for path in root.glob("*/*"))


async def removed(sandbox_id: str, since: str) -> None:
    """Waits until the engine has removed a container, at any time after `since`."""
    filters = ["--filter", f"container={sandbox_id}", "--filter", "event=destroy"]
    events = await asyncio.create_subprocess_exec(
        "docker", "events", "--since", since, *filters, stdout=subprocess.PIPE
    )
    assert events.stdout is not None
    try:
        assert await asyncio.wait_for(events.stdout.readline(), DEADLINE) != b""
    finally:
        events.kill()
        await events.wait()


async def test_death_at_start_is_reported_with_its_code_and_last_lines(
    deployment: DockerDeployment, control_root: Path, busybox: str
) -> None:
    start = "i=0; while [ $i -lt 100 ]; do echo line $i; i=$((i+1)); done; echo boom >&2; exit 7"
    with image_of(runtime_files(start)) as runtime:
        with pytest.raises(SandboxStartError, match="exit code 7") as caught:
            await deployment.create(SandboxConfig(image=busybox, runtime=runtime))
        assert caught.value.exit_code == 7
        assert {"line 99", "boom"} <= set(caught.value.output.splitlines())
        assert "line 3\n" not in caught.value.output
        assert containers_of(deployment) == ""
        assert control_directories(control_root) == []
        assert await deployment.list() == []


async def test_silence_at_start_is_reported_after_the_deadline(
    deployment: DockerDeployment, busybox: str
) -> None:
    with image_of(runtime_files("echo starting; exec busybox sleep 1000")) as runtime:
        config = SandboxConfig(image=busybox, runtime=runtime, start_timeout=1.5)
        with pytest.raises(SandboxStartError, match=r"not ready within 1\.5 s") as caught:
            await deployment.create(config)
        assert (caught.value.exit_code, caught.value.output) == (None, "starting")
        assert containers_of(deployment) == ""


async def test_runtime_that_can_not_start_is_reported(
    deployment: DockerDeployment, busybox: str
) -> None:
    files = runtime_files("exit 0")
    del files["nix/entry/bin/sh"]
    with image_of(files) as runtime:
        # The keeper needs the shell as well, where the sandbox is the first.
        with pytest.raises(DeploymentError, match="entry/bin/sh"):
            await deployment.create(SandboxConfig(image=busybox, runtime=runtime))
        assert containers_of(deployment) == ""


async def test_missing_image_is_named(docker_engine: str, control_root: Path) -> None:
    missing = "agentix-test/nobody-made-this:1"
    async with DockerDeployment(pull=False, control_root=control_root) as deployment:
        with pytest.raises(DeploymentError, match=f"image '{missing}' is not on the engine: load"):
            await deployment.create(SandboxConfig(image=missing))


async def test_missing_image_that_can_not_be_pulled_is_named(deployment: DockerDeployment) -> None:
    missing = "127.0.0.1:1/nobody-made-this:1"
    with pytest.raises(
        DeploymentError, match="is not on the engine, and pulling it failed"
    ) as caught:
        await deployment.create(SandboxConfig(image=missing))
    assert missing in str(caught.value)


@pytest.mark.parametrize("request_", ["create_container", "start_container"])
async def test_creation_cancelled_during_a_request_leaves_nothing(
    deployment: DockerDeployment,
    control_root: Path,
    config: SandboxConfig,
    monkeypatch: pytest.MonkeyPatch,
    request_: str,
) -> None:
    await deployment.delete((await deployment.create(config)).id)  # the volumes are there
    original: Callable[..., Coroutine[Any, Any, None]] = getattr(Engine, request_)
    begun = asyncio.Event()
    requests: list[asyncio.Task[None]] = []

    async def engine_that_goes_on_without_its_client(*arguments: Any) -> None:
        requests.append(asyncio.create_task(original(*arguments)))
        begun.set()
        await asyncio.shield(requests[-1])

    monkeypatch.setattr(Engine, request_, engine_that_goes_on_without_its_client)
    await cancelled_once(begun, deployment.create(config))
    await asyncio.wait(requests)
    assert containers_of(deployment) == ""
    assert control_directories(control_root) == []
    assert await deployment.list() == []


async def test_creation_cancelled_before_the_runtime_is_ready_leaves_nothing(
    deployment: DockerDeployment,
    control_root: Path,
    config: SandboxConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = asyncio.Event()
    monkeypatch.setattr("agentix.docker.deployment.find_ready_url", never_ready(started))
    await cancelled_once(started, deployment.create(config))
    assert containers_of(deployment) == ""
    assert control_directories(control_root) == []
    assert await deployment.list() == []


async def cancelled_once(begun: asyncio.Event, creation: Coroutine[Any, Any, Sandbox]) -> None:
    """Cancels a creation at the moment that `begun` is set."""
    task = asyncio.create_task(creation)
    await asyncio.wait_for(begun.wait(), DEADLINE)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def never_ready(started: asyncio.Event) -> Callable[[object], Coroutine[Any, Any, None]]:
    """Gives what waits for a runtime for ever, and sets `started` first."""

    async def wait(lines: object) -> None:
        started.set()
        await asyncio.Event().wait()

    return wait


async def test_creation_cancelled_at_any_moment_leaves_nothing(
    deployment: DockerDeployment, control_root: Path, config: SandboxConfig
) -> None:
    for tenth in range(12):
        try:
            async with asyncio.timeout(0.05 * tenth):
                sandbox = await deployment.create(config)
            await deployment.delete(sandbox.id)
        except TimeoutError:
            pass
        assert containers_of(deployment) == ""
        assert control_directories(control_root) == []


async def test_leaving_while_a_sandbox_is_made_ends_the_creation(
    docker_engine: str, control_root: Path, config: SandboxConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = asyncio.Event()
    monkeypatch.setattr("agentix.docker.deployment.find_ready_url", never_ready(started))
    async with DockerDeployment(control_root=control_root) as deployment:
        creation = asyncio.create_task(deployment.create(config))
        await asyncio.wait_for(started.wait(), DEADLINE)
    with pytest.raises(DeploymentError, match="was left while the sandbox was made"):
        await creation
    assert containers_of(deployment) == ""


async def test_cancelled_deletion_is_completed(
    deployment: DockerDeployment, control_root: Path, config: SandboxConfig
) -> None:
    sandbox = await deployment.create(config)
    deletion = asyncio.create_task(deployment.delete(sandbox.id))
    await asyncio.sleep(0)  # lets the deletion begin
    deletion.cancel()
    with pytest.raises(asyncio.CancelledError):
        await deletion
    assert containers_of(deployment) == ""
    assert control_directories(control_root) == []


async def test_failed_deletion_can_be_repeated(
    deployment: DockerDeployment, config: SandboxConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await deployment.create(config)

    async def fail(self: Engine, name: str) -> None:
        raise DeploymentError("the engine is busy")

    with monkeypatch.context() as patched:
        patched.setattr(Engine, "remove_container", fail)
        with pytest.raises(DeploymentError, match="the engine is busy"):
            await deployment.delete(sandbox.id)
    await deployment.delete(sandbox.id)
    with pytest.raises(SandboxNotFoundError):
        await deployment.delete(sandbox.id)


async def test_sandbox_that_ended_is_listed_with_its_exit_code(
    deployment: DockerDeployment, config: SandboxConfig
) -> None:
    sandbox = await deployment.create(config)
    docker("kill", "--signal", "KILL", sandbox.id)
    info = await deployment.get(sandbox.id)
    assert (info.status, info.exit_code) == ("exited", 137)
    await deployment.delete(sandbox.id)
    assert await deployment.list() == []


async def test_owner_that_is_killed_takes_its_sandboxes_along(
    images: None, control_root: Path, busybox: str
) -> None:
    since = docker("info", "--format", "{{.SystemTime}}")
    command = [sys.executable, str(PROGRAM), str(control_root), busybox, "3"]
    owner = await asyncio.create_subprocess_exec(*command, env=ENVIRONMENT, stdout=subprocess.PIPE)
    assert owner.stdout is not None
    ids = [(await owner.stdout.readline()).decode().strip() for _ in range(2)]
    owner.send_signal(signal.SIGKILL)
    await owner.wait()
    for sandbox_id in ids:
        await removed(sandbox_id, since)
    async with DockerDeployment(control_root=control_root):
        assert control_directories(control_root) == []


async def test_sandbox_outlives_many_leases_while_its_owner_lives(
    images: None, control_root: Path, busybox: str
) -> None:
    async with DockerDeployment(control_root=control_root, lease=0.5) as deployment:
        sandbox = await deployment.create(SandboxConfig(image=busybox))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ended(sandbox.id), 6 * 0.5)


async def ended(sandbox_id: str) -> None:
    """Waits until a sandbox's processes have ended."""
    waiter = await asyncio.create_subprocess_exec("docker", "wait", sandbox_id)
    try:
        await waiter.wait()
    finally:
        with suppress(ProcessLookupError):
            waiter.kill()
        await waiter.wait()


async def test_container_that_was_never_started_goes_with_its_owner(
    control_root: Path, busybox: str, dead_owner: Owner
) -> None:
    orphan = created_for(dead_owner, busybox)
    mine = created_for(Owner.current(), busybox)
    foreign = created_for(replace(dead_owner, boot="another-boot"), busybox)
    try:
        async with DockerDeployment(control_root=control_root):
            left = docker("ps", "--all", "--quiet", "--no-trunc").split()
            assert [name in left for name in (orphan, mine, foreign)] == [False, True, True]
        # An owner that cannot be looked up from here has some time to guard what it made.
        left = docker("ps", "--all", "--quiet", "--no-trunc").split()
        assert [name in left for name in (orphan, mine, foreign)] == [False, True, False]
    finally:
        docker("rm", "--force", mine)


@pytest.fixture
def dead_owner() -> Owner:
    """Gives a process that has ended."""
    program = "from agentix.docker.owner import Owner; print(Owner.current())"
    output = subprocess.check_output([sys.executable, "-c", program], env=ENVIRONMENT, text=True)
    owner = Owner.parse(output.strip())
    assert owner is not None
    return owner


def created_for(owner: Owner, image: str) -> str:
    """Makes a container as one is left by an owner that dies between two requests."""
    labels = sandbox_labels("0000000000000000", owner)
    options = [option for name in labels for option in ("--label", f"{name}={labels[name]}")]
    return docker("create", *options, image, "true")


async def test_entering_that_is_cancelled_leaves_nothing(
    docker_engine: str, control_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    original = ControlDirectories.open

    def open_late(directories: ControlDirectories) -> None:
        begun.set()
        go_on.wait(DEADLINE)
        original(directories)

    monkeypatch.setattr(ControlDirectories, "open", open_late)
    entering = asyncio.create_task(DockerDeployment(control_root=control_root).__aenter__())
    await asyncio.to_thread(begun.wait, DEADLINE)
    entering.cancel()
    await asyncio.wait([entering], timeout=0.5)  # it may end early, and must not
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert os.listdir(control_root) == []


async def test_two_deployments_see_their_own_sandboxes_only(
    deployment: DockerDeployment, control_root: Path, config: SandboxConfig
) -> None:
    async with DockerDeployment(control_root=control_root) as other:
        sandbox = await deployment.create(config)
        assert await other.list() == []
        with pytest.raises(SandboxNotFoundError):
            await other.get(sandbox.id)


async def test_deployment_that_is_not_open_refuses_calls(docker_engine: str) -> None:
    deployment = DockerDeployment()
    with pytest.raises(UsageError, match="is not open"):
        await deployment.list()


async def test_control_root_that_is_too_long_is_refused(docker_engine: str) -> None:
    with pytest.raises(UsageError, match="is too long for Unix sockets below it"):
        async with DockerDeployment(control_root=Path("/tmp", "x" * 80)):
            pass


async def test_no_engine_is_a_deployment_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    with pytest.raises(DeploymentError, match="the Docker engine does not answer"):
        async with DockerDeployment():
            pass
