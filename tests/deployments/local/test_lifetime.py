"""How local sandboxes end, and that nothing of them outlives their owner."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentix.deployment import SandboxConfig
from agentix.errors import SandboxStartError
from agentix.local import LocalDeployment
from tests.deployments.local.conftest import ShellRuntime
from tests.deployments.local.processes import children, ending, launchers

DEADLINE = 20


def sandboxes(control: Path) -> list[str]:
    """Return what control directories there are, of whichever deployment."""
    return [path.name for path in control.glob("*/*")]


async def exited(deployment: LocalDeployment, sandbox_id: str) -> int | None:
    async with asyncio.timeout(DEADLINE):
        # The contract has no event for it.
        while (info := await deployment.get(sandbox_id)).status != "exited":  # noqa: ASYNC110
            await asyncio.sleep(0)
    return info.exit_code


async def test_sandbox_ends_with_its_launcher(
    deployment: LocalDeployment, shell_runtime: ShellRuntime
) -> None:
    config = SandboxConfig(image="/", runtime=shell_runtime("exec sleep 1000"))
    sandbox = await deployment.create(config)
    [launcher] = launchers()
    [init] = children(launcher)
    [runtime] = children(init)
    async with ending(runtime):
        os.kill(launcher, signal.SIGKILL)
    assert await exited(deployment, sandbox.id) is not None


async def test_sigterm_reaches_the_runtime(
    deployment: LocalDeployment, shell_runtime: ShellRuntime
) -> None:
    runtime = shell_runtime("read line < /workspace/pipe", "trap 'exit 7' TERM; mkfifo pipe")
    sandbox = await deployment.create(SandboxConfig(image="/", runtime=runtime))
    [launcher] = launchers()
    os.kill(launcher, signal.SIGTERM)
    assert await exited(deployment, sandbox.id) == 7


async def test_launcher_is_gone_after_delete(
    deployment: LocalDeployment, shell_runtime: ShellRuntime
) -> None:
    config = SandboxConfig(image="/", runtime=shell_runtime("sleep 1000 & setsid sleep 1000"))
    sandbox = await deployment.create(config)
    [init] = children(launchers()[0])
    async with ending(init):
        await deployment.delete(sandbox.id)
    assert launchers() == []


async def test_output_is_read_on_after_the_start(
    deployment: LocalDeployment, shell_runtime: ShellRuntime
) -> None:
    script = "head -c 10000000 /dev/zero; head -c 10000000 /dev/zero >&2; exit 5"
    sandbox = await deployment.create(SandboxConfig(image="/", runtime=shell_runtime(script)))
    assert await exited(deployment, sandbox.id) == 5


async def test_runtime_that_is_no_program(deployment: LocalDeployment, tmp_path: Path) -> None:
    (tmp_path / "entry").mkdir()
    with pytest.raises(SandboxStartError, match="bin/start: No such file") as raised:
        await deployment.create(SandboxConfig(image="/", runtime=str(tmp_path)))
    assert raised.value.exit_code == 127


OWNER = """
import asyncio, os, sys, time
from pathlib import Path
from agentix.deployment import SandboxConfig
from agentix.local import LocalDeployment

async def main():
    async with LocalDeployment(directory=Path(sys.argv[2])) as deployment:
        await deployment.create(SandboxConfig(image="/", runtime=sys.argv[1]))
        if os.fork() == 0:
            os.close(1)
            time.sleep(1000)
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_killed_owner_leaves_nothing_though_a_fork_holds_its_lease(
    control: Path, shell_runtime: ShellRuntime
) -> None:
    runtime = shell_runtime("exec sleep 1000")
    owner = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-W", "ignore", "-c", OWNER, runtime, str(control)], stdout=subprocess.PIPE
    )
    with owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"ready\n"
        [launcher, fork] = sorted(children(owner.pid))
        [init] = children(launcher)
        assert len(sandboxes(control)) == 1
        async with ending(launcher), ending(init):
            owner.kill()
        assert sandboxes(control) == []
        async with ending(fork):
            os.kill(fork, signal.SIGKILL)
    # The fork held the lock of the owner, too.
    async with LocalDeployment(directory=control):
        pass
    assert os.listdir(control) == []
