"""Local sandboxes end soon after their owner, and what it left is removed by the next."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic

import pytest

from agentix.client import RuntimeClient
from agentix.deployment import SandboxConfig
from agentix.errors import (
    DeploymentError,
    SandboxGoneError,
    SandboxNotFoundError,
    SandboxStartError,
    UsageError,
)
from agentix.local import LocalDeployment
from agentix.local.bundle import make_namespace_bundle
from tests.deployments.conftest import Target
from tests.deployments.local.conftest import ShellRuntime
from tests.deployments.local.processes import children, descendants, ending, launchers

NAMESPACES = Path(__file__).parents[1] / "namespaces"
PROGRAM = Path(__file__).parent / "programs" / "own_one.py"
CONFIG = SandboxConfig(image="/")
GONE_WITHIN = 20.0
"""Seconds from an owner's death to the end of its sandboxes."""
DEADLINE = 60.0

USER = () if os.geteuid() == 0 else ("--user", "--map-root-user")
NEW_PID_NAMESPACE = ("unshare", *USER, "--pid", "--fork", "--mount-proc")


def entries(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def groups(control: Path) -> list[Path]:
    """Return the control groups of sandboxes that are there, of all that were written down."""
    noted = [journal.read_text().splitlines() for journal in control.glob("*/*/groups")]
    return [Path(group) for lines in noted for group in lines if Path(group).exists()]


def running_for(owner: int) -> list[int]:
    """Return the launchers and inits that an owner's launches left, the dead passed over."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            arguments = (path / "cmdline").read_bytes().split(b"\0")
            if any(argument.endswith(b"/launcher.py") for argument in arguments):
                found += [int(path.name)] * (str(owner).encode() in arguments)
    return found


@pytest.fixture(scope="module")
def blocker(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Make the bundle of a namespace whose calls block their runtime."""
    place = tmp_path_factory.mktemp("bundles") / "blocker"
    return str(make_namespace_bundle(NAMESPACES / "blocker", place))


@asynccontextmanager
async def owner_of(
    target: Target, config: SandboxConfig, act: str = "nothing", wrapper: tuple[str, ...] = ()
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a process that makes a sandbox in which something bad goes on."""
    process = await asyncio.create_subprocess_exec(
        *wrapper,
        *(sys.executable, str(PROGRAM), target.imports, target.expression),
        *(config.model_dump_json(), act),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        assert await asyncio.wait_for(process.stdout.readline(), DEADLINE)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.parametrize("act", ["nothing", "stop", "block"])
async def test_sandbox_ends_with_its_killed_owner(
    local_target: Target, blocker: str, act: str
) -> None:
    config = CONFIG.model_copy(update={"namespaces": (blocker,)})
    async with owner_of(local_target, config, act) as owner:
        sandbox = descendants(owner.pid)
        assert len(sandbox) >= 3, "a launcher, an init and a runtime"
        async with ending(*sandbox, within=GONE_WITHIN):
            owner.kill()


async def test_sandbox_without_isolation_ends_with_its_killed_owner(local_target: Target) -> None:
    expression = local_target.expression.removesuffix(")") + ", isolation='none')"
    target = replace(local_target, expression=expression)
    async with owner_of(target, CONFIG, "stop") as owner:
        sandbox = descendants(owner.pid)
        assert len(sandbox) >= 3, "a launcher, an init and a runtime"
        async with ending(*sandbox, within=GONE_WITHIN):
            owner.kill()
    assert local_target.leftovers() == set()


async def test_what_a_task_without_isolation_left_when_it_killed_its_launcher_is_deleted(
    host_bundles: Path, control: Path
) -> None:
    deployment = LocalDeployment(bundles=host_bundles, directory=control, isolation="none")
    async with deployment:
        sandbox = await deployment.create(CONFIG)
        if not groups(control):
            pytest.skip("control groups cannot be made here")
        async with RuntimeClient(sandbox.runtime_url, token=sandbox.token) as client:
            left = "(setsid sleep 1000 >/dev/null 2>&1 & echo $!)"
            orphan = int((await client.run(left)).stdout)
            async with ending(orphan):
                with contextlib.suppress(SandboxGoneError):
                    await client.run(f"kill -9 {launchers()[0]}")
                await deployment.delete(sandbox.id)


async def test_sandbox_ends_with_the_session_of_its_owner(local_target: Target) -> None:
    async with (
        owner_of(local_target, CONFIG, "stop") as owner,
        ending(*descendants(owner.pid), within=GONE_WITHIN),
    ):
        os.killpg(owner.pid, signal.SIGKILL)


async def test_sandbox_ends_with_the_pid_namespace_of_its_owner(local_target: Target) -> None:
    async with owner_of(local_target, CONFIG, "stop", NEW_PID_NAMESPACE) as unshare:
        [owner] = children(unshare.pid)
        async with ending(*descendants(owner), within=GONE_WITHIN):
            os.kill(owner, signal.SIGKILL)
    async with local_target.make():
        pass
    assert local_target.leftovers() == set()


async def test_stopped_owner_keeps_its_sandbox(local_target: Target) -> None:
    async with owner_of(local_target, CONFIG) as owner:
        owner.send_signal(signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            async with ending(*descendants(owner.pid), within=2.0):
                pass
        async with local_target.make():
            assert len(local_target.leftovers()) == 1


async def test_sandbox_of_a_killed_launcher_ends_and_the_next_owner_finds_nothing(
    host_bundles: Path, control: Path, local_target: Target
) -> None:
    expression = (
        f"LocalDeployment(bundles=Path({str(host_bundles)!r}), directory=Path({str(control)!r}))"
    )
    target = replace(local_target, expression=expression)
    async with owner_of(target, CONFIG) as owner:
        [launcher] = children(owner.pid)
        owner.send_signal(signal.SIGSTOP)  # it shall not clean up
        async with ending(*descendants(launcher), within=GONE_WITHIN):
            os.kill(launcher, signal.SIGKILL)
        owner.kill()
    left = groups(control)
    assert len(left) >= 2 or os.geteuid() != 0
    async with LocalDeployment(directory=control):
        assert len(entries(control)) == 2, "its own directory and lock"
    assert [group for group in left if group.exists()] == []


async def test_launcher_killed_at_any_moment_takes_its_sandbox_along(
    host_bundles: Path, control: Path
) -> None:
    """Init asks to die with the launcher after the fork: the launcher may be dead by then."""
    async with LocalDeployment(bundles=host_bundles, directory=control) as deployment:
        for moment in range(20):
            making = asyncio.create_task(deployment.create(CONFIG))
            async with asyncio.timeout(DEADLINE):
                while not launchers():  # noqa: ASYNC110 - the kernel has no event for it
                    await asyncio.sleep(0)
            [launcher] = launchers()
            await asyncio.sleep(moment * 0.004)  # each time a little later
            os.kill(launcher, signal.SIGKILL)
            with contextlib.suppress(SandboxStartError):
                await deployment.delete((await making).id)
            async with asyncio.timeout(GONE_WITHIN):
                while running_for(os.getpid()):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)


DYING_OWNERS = """
import asyncio, itertools, os, signal, sys
from pathlib import Path
from agentix.deployment import SandboxConfig
from agentix.local import LocalDeployment

STEPS = {"os.mkdir", "open", "os.open", "socket.bind", "os.chmod", "subprocess.Popen"}

async def own(step):
    deployment = LocalDeployment(bundles=Path(sys.argv[1]), directory=Path(sys.argv[2]))
    left = step
    def watch(event, arguments):
        nonlocal left
        if event in STEPS:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(watch)
    async with deployment, deployment.session(SandboxConfig(image="/")):
        os.kill(os.getpid(), signal.SIGTERM)

for step in itertools.count(1):
    owner = os.fork()
    if owner == 0:
        asyncio.run(own(step))
    _, status = os.waitpid(owner, 0)
    print(owner, flush=True)
    if os.WTERMSIG(status) == signal.SIGTERM:
        break
"""
"""Owners that are killed right before each step of making a sandbox, in turn; the last is ready."""


async def test_owner_killed_at_any_step_leaves_nothing_after_the_next(
    host_bundles: Path, control: Path
) -> None:
    command = [sys.executable, "-c", DYING_OWNERS, str(host_bundles), str(control)]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    output, _ = await asyncio.wait_for(process.communicate(), 5 * DEADLINE)
    owners = [int(line) for line in output.split()]
    assert process.returncode == 0
    assert len(owners) > 20
    left = groups(control)
    async with LocalDeployment(directory=control):
        assert len(entries(control)) == 2, "its own directory and lock"
    assert entries(control) == []
    assert [group for group in left if group.exists()] == []
    async with asyncio.timeout(GONE_WITHIN):
        while any(running_for(owner) for owner in owners):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


KILLED_OWNERS = """
import asyncio, os, random, signal, sys, time
from pathlib import Path
from agentix.deployment import SandboxConfig
from agentix.local import LocalDeployment

async def own():
    deployment = LocalDeployment(bundles=Path(sys.argv[1]), directory=Path(sys.argv[2]))
    async with deployment, deployment.session(SandboxConfig(image="/")):
        await asyncio.Event().wait()

for _ in range(24):
    owner = os.fork()
    if owner == 0:
        asyncio.run(own())
    time.sleep(random.uniform(0.0, 0.25))
    os.kill(owner, signal.SIGKILL)
    os.waitpid(owner, 0)
"""


async def test_owners_killed_at_random_leave_nothing_after_the_next(
    host_bundles: Path, control: Path
) -> None:
    command = [sys.executable, "-c", KILLED_OWNERS, str(host_bundles), str(control)]
    process = await asyncio.create_subprocess_exec(*command)
    assert await asyncio.wait_for(process.wait(), 5 * DEADLINE) == 0
    left = groups(control)
    async with LocalDeployment(directory=control):
        assert len(entries(control)) == 2, "its own directory and lock"
    assert entries(control) == []
    assert [group for group in left if group.exists()] == []


async def test_launcher_whose_owner_dies_before_it_has_its_plan_ends(tmp_path: Path) -> None:
    """A fork of the owner holds the pipe open, so that reading from it would never end."""
    program = (
        "import os, subprocess, sys, time\n"
        "from agentix.local import launcher\n"
        "command = [sys.executable, '-I', '-S', launcher.__file__, str(os.getpid())]\n"
        "started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)\n"
        "if os.fork() == 0:\n"
        "    os.close(1)\n"
        "    time.sleep(60)\n"
        "print(started.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=subprocess.PIPE, start_new_session=True
    )
    assert owner.stdout is not None
    launcher = int(await owner.stdout.readline())
    async with asyncio.timeout(DEADLINE):
        while not watches_its_owner(launcher):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    async with ending(launcher, within=GONE_WITHIN):
        owner.kill()
        await owner.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(owner.pid, signal.SIGKILL)


def watches_its_owner(launcher: int) -> bool:
    descriptors = Path(f"/proc/{launcher}/fd")
    return any("pidfd" in os.readlink(descriptors / name) for name in os.listdir(descriptors))


@pytest.fixture
async def deployment(host_bundles: Path, control: Path) -> AsyncIterator[LocalDeployment]:
    async with LocalDeployment(bundles=host_bundles, directory=control) as deployment:
        yield deployment


async def test_stopped_runtime_is_unresponsive(deployment: LocalDeployment) -> None:
    async with deployment.session(CONFIG) as sandbox:
        [init] = children(launchers()[0])
        [runtime] = children(init)
        assert (await deployment.get(sandbox.id)).status == "running"
        os.kill(runtime, signal.SIGSTOP)
        begin = monotonic()
        assert (await deployment.get(sandbox.id)).status == "unresponsive"
        assert monotonic() - begin < 4.0
        begin = monotonic()
        assert [info.status for info in await deployment.list()] == ["running"]
        assert monotonic() - begin < 0.5, "no runtime is asked"
        os.kill(runtime, signal.SIGCONT)
        assert (await deployment.get(sandbox.id)).status == "running"


async def test_killed_runtime_has_exited_at_once(deployment: LocalDeployment) -> None:
    async with deployment.session(CONFIG) as sandbox:
        [init] = children(launchers()[0])
        [runtime] = children(init)
        begin = monotonic()
        os.kill(runtime, signal.SIGKILL)
        info = await deployment.get(sandbox.id)
        assert (info.status, info.exit_code) == ("exited", 128 + signal.SIGKILL)
        assert monotonic() - begin < 0.5


async def test_task_that_kills_all_it_can_ends_its_own_sandbox_only(
    deployment: LocalDeployment,
) -> None:
    other = await deployment.create(CONFIG)
    sandbox = await deployment.create(CONFIG)
    async with RuntimeClient(sandbox.runtime_url, token=sandbox.token) as client:
        with contextlib.suppress(SandboxGoneError):
            await client.run("kill -9 -1")
    assert (await deployment.get(sandbox.id)).status == "exited"
    assert (await deployment.get(other.id)).status == "running"
    await deployment.delete(sandbox.id)


async def test_error_of_the_block_is_kept_where_cleaning_up_fails(
    host_bundles: Path, control: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentix.local.limits.REMOVAL_PATIENCE", 0.1)
    deployment = LocalDeployment(bundles=host_bundles, directory=control)
    with kept_groups(control) as keep, pytest.raises(ZeroDivisionError) as raised:
        await leave(deployment, keep, ZeroDivisionError())
    [note] = raised.value.__notes__
    assert note.startswith("and the deployment left something behind: control group /")


async def test_failed_clean_up_is_raised_where_nothing_else_is(
    host_bundles: Path, control: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentix.local.limits.REMOVAL_PATIENCE", 0.1)
    deployment = LocalDeployment(bundles=host_bundles, directory=control)
    with kept_groups(control) as keep, pytest.raises(DeploymentError, match="is still in use"):
        await leave(deployment, keep, None)


async def leave(deployment: LocalDeployment, keep: "Keep", error: Exception | None) -> None:
    """Leave a deployment, by an error or not, though its sandbox cannot be removed."""
    async with deployment:
        keep((await deployment.create(CONFIG)).id)
        if error is not None:
            raise error


@contextlib.contextmanager
def kept_groups(control: Path) -> Iterator["Keep"]:
    """Make groups that cannot be removed for the length of a block, as groups below others are."""
    keep = Keep(control)
    try:
        yield keep
    finally:
        keep.end()


class Keep:
    def __init__(self, control: Path) -> None:
        self._control = control
        self._inner: list[Path] = []

    def __call__(self, sandbox_id: str) -> None:
        found = [group for group in groups(self._control) if group.name == sandbox_id]
        if not found:
            pytest.skip("control groups cannot be made here")
        for group in found:
            self._inner.append(group / "inner")
            self._inner[-1].mkdir()

    def end(self) -> None:
        for inner in self._inner:
            inner.rmdir()
            inner.parent.rmdir()


async def test_leaving_while_a_sandbox_starts_leaves_nothing(
    host_bundles: Path, control: Path
) -> None:
    for turns in range(60):
        async with LocalDeployment(bundles=host_bundles, directory=control) as deployment:
            making = asyncio.create_task(deployment.create(CONFIG))
            for _ in range(turns):
                await asyncio.sleep(0)
        with pytest.raises((DeploymentError, UsageError)) as raised:
            await making
        assert re.search("was deleted while it started|is closed", str(raised.value))
        assert launchers() == []
        assert entries(control) == []


async def test_sandbox_that_starts_can_be_deleted(
    deployment: LocalDeployment, shell_runtime: ShellRuntime
) -> None:
    runtime = shell_runtime("", before="sleep 1000")
    making = asyncio.create_task(deployment.create(SandboxConfig(image="/", runtime=runtime)))
    while not launchers():  # noqa: ASYNC110
        await asyncio.sleep(0)
    [info] = await deployment.list()
    assert info.status == (await deployment.get(info.id)).status == "starting"
    await deployment.delete(info.id)
    with pytest.raises(DeploymentError, match=f"sandbox {info.id} was deleted while it started"):
        await making
    with pytest.raises(SandboxNotFoundError):
        await deployment.get(info.id)
    assert launchers() == []
