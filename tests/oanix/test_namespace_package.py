"""The namespace `oanix`: its functions called in sandboxes of both deployments."""

import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agentix import Deployment, LocalDeployment, RemoteCallError, RuntimeClient, SandboxConfig
from agentix.docker import DockerDeployment
from agentix.local.bundle import make_namespace_bundle, make_runtime_bundle
from agentix_namespaces import oanix
from agentix_namespaces.oanix import AgentTool, Mount, Script, Wasi, _register
from nix.closures import Builder
from tests.images.conftest import builder
from tests.oanix.programs import ROOT, compile_guest
from tests.task_images import TASK_IMAGES

__all__ = ["builder"]

GUESTS = Path(__file__).parent / "guests"
VERSION = oanix.__image__.rpartition(":")[2]


@pytest.fixture(scope="module")
def bundles() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="agentix-bundles-") as directory:
        made = Path(directory)
        make_runtime_bundle(made / f"agentix/runtime/{VERSION}")
        make_namespace_bundle(ROOT / "namespaces/oanix", made / f"agentix/oanix/{VERSION}")
        yield made


@pytest.fixture(scope="module")
def docker_images(docker_engine: str, builder: Builder) -> None:
    command = [sys.executable, "-m", "nix.images", "load", "runtime", "oanix"]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr


@asynccontextmanager
async def connected(deployment: Deployment, image: str) -> AsyncIterator[RuntimeClient]:
    """A client of a sandbox with the namespace and the programs of the tests in /workspace."""
    config = SandboxConfig(image=image, namespaces=[oanix])
    async with (
        deployment,
        deployment.session(config) as sandbox,
        RuntimeClient(sandbox.runtime_url, token=sandbox.token) as client,
    ):
        for name in ("files", "steps", "shell"):
            wasm = compile_guest(GUESTS / f"{name}.c")
            await client.upload(wasm, f"/workspace/{name}.wasm")
        yield client


def test_every_stub_has_an_impl() -> None:
    bound = [binding.stub.method for binding in _register.register()]
    assert bound == ["run_wasi", "submit", "submit_spec", "status", "cancel", "logs"]


async def test_programs_and_jobs_run_in_a_local_sandbox(bundles: Path) -> None:
    """The bundle is made without Nix, and its command is the host's."""
    async with connected(LocalDeployment(bundles=bundles), "/") as client:
        await check_runs(client)
        await check_streaming_and_cancelling(client)
        assert await listed(client, OANIX_PYTHON=sys.executable) == ["cancelled"]


async def test_programs_and_jobs_run_in_a_container(docker_images: None) -> None:
    """The closure is Nix's, in a task image that has busybox and nothing else."""
    image = TASK_IMAGES["busybox"]("docker")
    async with connected(DockerDeployment(pull=False), image) as client:
        await check_runs(client)
        await check_streaming_and_cancelling(client)
        await check_jobs(client)
        await check_errors(client)
        ended = ["cancelled", "completed", "completed", "completed", "failed"]
        assert await listed(client) == ended


async def listed(client: RuntimeClient, **environment: str) -> list[str]:
    """Return the states of the sandbox's jobs, as the namespace's command prints them."""
    shown = await client.run(
        "agentix-oanix job list", paths_from=["agentix_namespaces.oanix"], env=environment
    )
    assert (shown.exit_code, shown.stderr) == (0, "")
    return [line.split()[1] for line in shown.stdout.splitlines()]


async def check_runs(client: RuntimeClient) -> None:
    files = Path("/workspace/files.wasm")
    shown = await client.remote(
        oanix.run_wasi, files, ["show", "--", "é"], environment={"A": "b=c"}
    )
    assert (shown.exit_code, shown.reason, shown.message) == (0, "exit", "")
    assert shown.stdout.decode() == "arg[files.wasm]\narg[show]\narg[--]\narg[é]\nenv[A=b=c]\n"
    assert shown.fuel > 0
    assert shown.host_calls > 0

    copied = await client.remote(oanix.run_wasi, files, ["copy"], stdin=b"\x00\xff")
    assert (copied.stdout, copied.bytes_read) == (b"\x00\xff", 2)

    await client.run("mkdir -p /workspace/data")
    data = Path("/workspace/data")
    mounts = [Mount("/w", data), Mount("/r", data, readonly=True)]
    put = await client.remote(oanix.run_wasi, files, ["put", "/w/f", "text"], mounts=mounts)
    assert (put.exit_code, put.files_written) == (0, ["/w/f"])
    assert await client.read_file("/workspace/data/f") == b"text"
    refused = await client.remote(oanix.run_wasi, files, ["put", "/r/g", "x"], mounts=mounts)
    assert (refused.exit_code, refused.stdout) == (1, b"open=Read-only file system\n")
    unseen = await client.remote(oanix.run_wasi, files, ["cat", "/workspace/data/f"])
    assert unseen.stdout == b"open=No such file or directory\n"

    trapped = await client.remote(oanix.run_wasi, files, ["abort"])
    assert (trapped.exit_code, trapped.reason, trapped.trap_code) == (134, "trap", "UNREACHABLE")
    late = await client.remote(oanix.run_wasi, files, ["loop"], timeout=0.2)
    assert (late.exit_code, late.reason) == (124, "timeout")


async def check_jobs(client: RuntimeClient) -> None:
    steps, data = Path("/workspace/steps.wasm"), Path("/workspace/data")
    await client.run("mkdir -p /workspace/bin && cp /workspace/shell.wasm /workspace/bin/sh.wasm")
    await client.upload(b"echo $1 $NAME\nwrite /w/out made\nexit 4\n", "/workspace/data/do.sh")
    first = await client.remote(oanix.submit, Wasi(steps, ["print", "one"]), tags=["first"])
    second = await client.remote(
        oanix.submit,
        Script("/w/do.sh", ["word"]),
        mounts=[Mount("/w", data), Mount("/bin", Path("/workspace/bin"), readonly=True)],
        environment={"NAME": "value"},
        after=[first],
    )
    assert [c async for c in client.remote(oanix.logs, first)] == [
        oanix.LogChunk("stdout", 0, b"one\n")
    ]
    assert [c.data async for c in client.remote(oanix.logs, second)] == [b"word value\n"]
    assert await client.read_file("/workspace/data/out") == b"made\n"
    ended = await client.remote(oanix.status, second)
    assert (ended.id, ended.status, ended.exit_code) == (second, "completed", 4)
    assert ended.attempts == 1

    tool = await client.remote(
        oanix.submit, AgentTool("read", ["/w/out"]), mounts=[Mount("/w", data)]
    )
    assert [c async for c in client.remote(oanix.logs, tool)] == []
    assert (await client.remote(oanix.status, tool)).value == "made\n"

    spec = {"kind": {"type": "agent_tool", "name": "nothing"}}
    failing = await client.remote(oanix.submit_spec, spec)
    assert [c async for c in client.remote(oanix.logs, failing)] == []
    failed = await client.remote(oanix.status, failing)
    assert (failed.status, failed.exit_code) == ("failed", None)
    assert failed.error.startswith("there is no tool 'nothing'; there are ")


async def check_streaming_and_cancelling(client: RuntimeClient) -> None:
    """What a job writes is there while it runs, and again from an offset."""
    what = Wasi(Path("/workspace/steps.wasm"), ["print", "begun", "loop"])
    job = await client.remote(oanix.submit, what)
    stream = client.remote(oanix.logs, job)
    assert (await anext(stream)).data == b"begun\n"
    assert (await client.remote(oanix.status, job)).status == "running"
    rest = client.remote(oanix.logs, job, follow=False, stdout_offset=2)
    assert [c async for c in rest] == [oanix.LogChunk("stdout", 2, b"gun\n")]
    await client.remote(oanix.cancel, job)
    assert [c async for c in stream] == []
    cancelled = await client.remote(oanix.status, job)
    assert (cancelled.status, cancelled.attempts) == ("cancelled", 1)


async def check_errors(client: RuntimeClient) -> None:
    with pytest.raises(RemoteCallError, match=r"CommandError: .*No such file.*/missing"):
        await client.remote(oanix.run_wasi, Path("/missing"))
    with pytest.raises(RemoteCallError, match="CommandError: there is no job 0000"):
        await client.remote(oanix.status, "00000000-0000-0000-0000-000000000000")
    with pytest.raises(RemoteCallError, match="ValueError: badly formed"):
        await client.remote(oanix.cancel, "--help")
    with pytest.raises(RemoteCallError, match="CommandError: this is no job"):
        await client.remote(oanix.submit_spec, {"kind": {"type": "unknown"}})
