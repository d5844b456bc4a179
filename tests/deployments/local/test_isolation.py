"""Who may make local sandboxes, and what happens where the kernel forbids them."""

import asyncio
import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agentix.client import RuntimeClient
from agentix.deployment import SandboxConfig
from agentix.errors import UsageError
from agentix.local import LocalDeployment
from agentix_namespaces import mock_agent

REPOSITORY = Path(__file__).resolve().parents[3]

ORDINARY = """
import asyncio, json, os, sys, tempfile
from pathlib import Path
from agentix.client import RuntimeClient
from agentix.deployment import SandboxConfig
from agentix.errors import UsageError
from agentix.local import LocalDeployment
from agentix.local.bundle import make_namespace_bundle, make_runtime_bundle
from agentix_namespaces import mock_agent

async def main(directory):
    make_runtime_bundle(directory / "runtime")
    make_namespace_bundle(Path(sys.argv[1]), directory / "agent")
    config = SandboxConfig(
        image="/",
        runtime=str(directory / "runtime"),
        namespaces=(str(directory / "agent"),),
        network="none",
    )
    async with LocalDeployment() as deployment:
        answers = {"outside": os.geteuid()}
        async with (
            deployment.session(config) as sandbox,
            RuntimeClient(sandbox.runtime_url, token=sandbox.token) as client,
        ):
            answers["remote"] = (await client.remote(mock_agent.run, "x")).exit_code
            answers["inside"] = (await client.run("id -u; touch /workspace/x")).stdout
            answers["etc"] = (await client.run("touch /etc/x 2>&1")).stdout
            answers["capabilities"] = (await client.run("grep CapBnd /proc/self/status")).stdout
            answers["processes"] = (await client.run("ls -d /proc/[0-9]* | wc -l")).stdout
            writable = "grep ' rw,' /proc/mounts | cut -d' ' -f2"
            answers["writable"] = (await client.run(writable)).stdout.split()
            answers["lo"] = (await client.run("cat /sys/class/net/lo/flags /proc/net/route")).stdout
        for change in ({"user": "1000"}, {"pids": 10}):
            try:
                await deployment.create(config.model_copy(update=change))
            except UsageError as error:
                answers[next(iter(change))] = str(error)
        answers["left"] = len(await deployment.list())
    print(json.dumps(answers))

with tempfile.TemporaryDirectory(prefix="agentix-ordinary-") as directory:
    asyncio.run(main(Path(directory)))
"""


def test_ordinary_user(ordinary_python: list[str]) -> None:
    command = [*ordinary_python, "-c", ORDINARY, str(REPOSITORY / "namespaces/mock-agent")]
    finished = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    answers = json.loads(finished.stdout)
    assert answers["outside"] != 0
    assert answers["inside"] == "0\n"
    assert answers["remote"] == 0
    assert "Read-only file system" in answers["etc"]
    assert int(answers["capabilities"].split()[1], 16) & (1 << 21) == 0
    assert int(answers["processes"]) < 8
    assert answers["user"].endswith("an ordinary user's sandbox has one user, its root")
    assert answers["left"] == 0
    own = {"/dev/pts", "/dev/shm", "/proc", "/run", "/tmp", "/var/tmp", "/workspace"}
    assert set(answers["writable"]) | {"/var/tmp"} == own


FORBIDDEN = """
import asyncio, sys
from pathlib import Path
from agentix.deployment import SandboxConfig
from agentix.errors import DeploymentError
from agentix.local import LocalDeployment

async def main():
    config = SandboxConfig(image="/")
    bundles, directory = map(Path, sys.argv[1:])
    async with LocalDeployment(bundles=bundles, directory=directory) as deployment:
        try:
            await deployment.create(config)
        except DeploymentError as error:
            print(type(error).__name__, error)
    async with LocalDeployment(
        bundles=bundles, directory=directory, isolation="none"
    ) as deployment:
        await deployment.create(config)
        print("runs without")

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("limit", "refused"),
    [("pid_namespaces", "unshare(CLONE_NEWUSER)"), ("mnt_namespaces", "unshare(CLONE_NEWNS")],
)
def test_refused_namespaces_are_named(
    host_bundles: Path, control: Path, limit: str, refused: str
) -> None:
    """Limits of a user namespace stand for a kernel that forbids; they hold in it alone."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("unshare of util-linux is not installed")
    script = (
        "for limit in user_namespaces $1; do echo 0 > /proc/sys/user/max_$limit; done;"
        ' shift; exec "$@"'
    )
    command = [unshare, "--user", "--map-root-user", "sh", "-euc", script, "-", limit]
    program = [sys.executable, "-c", FORBIDDEN, str(host_bundles), str(control)]
    finished = subprocess.run([*command, *program], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    refusal, runs = finished.stdout.splitlines()
    assert refusal.startswith(
        f"DeploymentError this machine does not let a sandbox be made: it refused {refused}"
    )
    assert "isolation='none'" in refusal
    assert runs == "runs without"


async def test_without_isolation(
    host_bundles: Path, control: Path, config: SandboxConfig, caplog: pytest.LogCaptureFixture
) -> None:
    configured = config.model_copy(update={"env": {"GREETING": "hello"}})
    with caplog.at_level(logging.WARNING):
        deployment = LocalDeployment(bundles=host_bundles, directory=control, isolation="none")
        async with (
            deployment,
            deployment.session(configured) as sandbox,
            RuntimeClient(sandbox.runtime_url, token=sandbox.token) as client,
        ):
            assert (await client.remote(mock_agent.run, "fix it")).exit_code == 0
            written = await client.upload(b"content", "file")
            result = await client.run(
                "pwd; cat file; echo $GREETING; mock-agent-cli hi", paths_from=["*"]
            )
    workspace = Path(written.path).parent
    assert workspace.is_relative_to(control)
    assert result.stdout.split() == [str(workspace), "contenthello", "hi"]
    assert "isolation is off" in caplog.text


async def test_orphans_end_without_isolation(
    host_bundles: Path, control: Path, config: SandboxConfig
) -> None:
    deployment = LocalDeployment(bundles=host_bundles, directory=control, isolation="none")
    async with deployment, deployment.session(config) as sandbox:
        async with RuntimeClient(sandbox.runtime_url, token=sandbox.token) as client:
            command = "(setsid sleep 1000 >/dev/null 2>&1 & echo $!)"
            orphan = int((await client.run(command)).stdout)
        descriptor = os.pidfd_open(orphan)
        await deployment.delete(sandbox.id)
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(descriptor, ended.set)
        async with asyncio.timeout(10):
            await ended.wait()
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)


@pytest.mark.parametrize("change", [{"network": "none"}, {"image": "/usr"}])
async def test_without_isolation_what_needs_it_is_refused(
    host_bundles: Path, config: SandboxConfig, change: dict[str, str]
) -> None:
    async with LocalDeployment(bundles=host_bundles, isolation="none") as deployment:
        with pytest.raises(UsageError, match="isolation"):
            await deployment.create(config.model_copy(update=change))
