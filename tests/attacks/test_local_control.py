"""What a task in a local sandbox can do to its host: leave nothing there, and speak for nobody."""

import ctypes
import json
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agentix.client import RuntimeClient
from agentix.deployment import Sandbox, SandboxConfig
from agentix.local import LocalDeployment
from tests.deployments.local.conftest import ShellRuntime
from tests.deployments.local.processes import children, descendants, ending, launchers

CONFIG = SandboxConfig(image="/")

MOUNTS = """
import json
found = []
for line in open("/proc/self/mountinfo"):
    place, _, kind = line.partition(" - ")
    _, _, device, _, where, options, *_ = place.split()
    found.append([where, device, "rw" in options.split(","), kind.split()[0]])
print(json.dumps(found))
"""
"""Prints every mount: its place, its device, whether it is writable, and its type."""

WRITABLE = """
import json, os
passed_over = {os.stat("/proc").st_dev, os.stat("/dev/pts").st_dev}
found = []
for directory, names, _ in os.walk("/"):
    names[:] = [name for name in names if os.lstat(f"{directory}/{name}").st_dev not in passed_over]
    place = f"{directory}/attack"
    try:
        os.mkdir(place)
    except OSError:
        continue
    os.rmdir(place)
    device = os.stat(directory).st_dev
    found.append([directory, f"{os.major(device)}:{os.minor(device)}"])
print(json.dumps(found))
"""
"""Prints each directory in which something could be made, and its device."""

SETUID_SHELL = """
for place in /workspace /tmp /run /var/tmp /dev/shm /dev /nix /mnt {control}; do
    cp "$(command -v sh)" $place/rootsh && chmod 4777 $place/rootsh && chmod 0777 $place
done 2>/dev/null; true
"""

FAKE = """
import os, socket, sys
path = sys.argv[1]
os.makedirs(os.path.dirname(path), exist_ok=True)
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen()
print("listening", flush=True)
listener.accept()
print("stolen", flush=True)
"""
"""Listens where the host connects, as far as the sandbox can tell."""


@asynccontextmanager
async def attacked(
    bundles: Path, control: Path, config: SandboxConfig = CONFIG
) -> AsyncIterator[tuple[Sandbox, RuntimeClient]]:
    async with (
        LocalDeployment(bundles=bundles, directory=control) as deployment,
        deployment.session(config) as sandbox,
        RuntimeClient(sandbox.runtime_url, token=sandbox.token) as client,
    ):
        yield sandbox, client


async def output(client: RuntimeClient, command: str) -> str:
    result = await client.run(command)
    assert result.exit_code == 0, result.stderr
    return result.stdout.strip()


async def python(client: RuntimeClient, program: str, *arguments: str) -> str:
    return await output(client, shlex.join(["python3", "-c", program, *arguments]))


def host_devices() -> set[str]:
    return {line.split()[2] for line in Path("/proc/self/mountinfo").read_text().splitlines()}


def files_with(text: str, directory: Path) -> list[str]:
    """Return the names of the files below a directory that hold a text."""
    files = (path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())
    return [path.name for path in files if text in path.read_text()]


def of_process(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text()


def on_host(control: Path) -> dict[str, tuple[str, int]]:
    """Return the type and the mode of all that lies below a control root."""
    found = {}
    for path in control.rglob("*"):
        mode = path.lstat().st_mode
        kind = "socket" if path.is_socket() else "directory" if path.is_dir() else "file"
        found[path.name] = (kind, mode & 0o7777)
    return found


@pytest.fixture
def seen_control() -> Iterator[Path]:
    """Make a control root where a sandbox with the host's root would see it."""
    with tempfile.TemporaryDirectory(prefix=".agentix-", dir=Path.home()) as directory:
        yield Path(directory)


@pytest.mark.parametrize("network", ["host", "none"])
async def test_every_writable_mount_is_the_sandbox_s_own_memory(
    host_bundles: Path, control: Path, network: str
) -> None:
    config = CONFIG.model_copy(update={"network": network})
    async with attacked(host_bundles, control, config) as (_, client):
        mounts = json.loads(await python(client, MOUNTS))
    writable = {where: device for where, device, writes, _ in mounts if writes}
    own = {"/workspace", "/tmp", "/run", "/var/tmp", "/dev/shm"}
    assert set(writable) - {"/var/tmp"} == (own | {"/proc", "/dev/pts"}) - {"/var/tmp"}
    assert not set(writable.values()) & host_devices()
    # They are one file system, so that they are bounded together.
    assert len({device for where, device in writable.items() if where in own}) == 1


async def test_nothing_can_be_made_on_a_file_system_of_the_host(
    host_bundles: Path, control: Path
) -> None:
    async with attacked(host_bundles, control) as (_, client):
        made = json.loads(await python(client, WRITABLE))
    host = host_devices()
    assert [place for place, device in made if device in host] == []
    assert {"/workspace", "/tmp", "/tmp/home", "/run"} <= {place for place, _ in made}


async def test_setuid_shell_is_nowhere_on_the_host(host_bundles: Path, control: Path) -> None:
    async with attacked(host_bundles, control) as (sandbox, client):
        directory = Path(sandbox.runtime_url.removeprefix("unix:")).parent
        await client.run(SETUID_SHELL.format(control=f"/run/agentix {directory}"))
        deployment = directory.parent.name
        assert on_host(control) == {
            f"{deployment}.owner": ("file", 0o600),
            deployment: ("directory", 0o700),
            directory.name: ("directory", 0o700),
            "socket": ("socket", 0o600),
            "groups": ("file", 0o644),
        }
        # Nor is it worth anything in the sandbox.
        assert "nosuid" in await output(client, "grep ' /workspace ' /proc/mounts")


async def test_files_of_a_task_take_no_room_on_the_host(host_bundles: Path, control: Path) -> None:
    def room() -> int:
        return sum(path.lstat().st_size for path in control.rglob("*") if path.is_file())

    async with attacked(host_bundles, control) as (_, client):
        before = room()
        for place in ("/run", "/tmp", "/workspace", "/var/tmp", "/dev/shm"):
            await client.run(f"head -c 20000000 /dev/zero > {place}/large")
        assert room() == before < 1000


async def test_control_directory_is_not_in_the_sandbox(
    host_bundles: Path, seen_control: Path
) -> None:
    async with attacked(host_bundles, seen_control) as (sandbox, client):
        directory = Path(sandbox.runtime_url.removeprefix("unix:")).parent
        assert await output(client, f"ls -A {seen_control}; ls -A /run") == ""
        assert "No such file" in (await client.run(f"ls {directory}")).stderr
        assert "Read-only file system" in (await client.run(f"mkdir {seen_control}/x")).stderr
        assert (await client.run(f"umount {seen_control}")).exit_code != 0


async def test_another_socket_in_the_same_place_gets_no_connection(
    host_bundles: Path, control: Path
) -> None:
    async with attacked(host_bundles, control) as (sandbox, client):
        path = sandbox.runtime_url.removeprefix("unix:")
        events = client.run_stream(shlex.join(["python3", "-c", FAKE, path]))
        assert getattr(await anext(aiter(events)), "text", None) == "listening\n"
        async with RuntimeClient(sandbox.runtime_url, token=sandbox.token) as other:
            assert (await other.run("echo real")).stdout == "real\n"
        await client.run(f"ln -sf /var/run/docker.sock {path}; ls -l {path}")
        async with RuntimeClient(sandbox.runtime_url, token=sandbox.token) as other:
            assert (await other.run("echo real")).stdout == "real\n"
        await client.run("pkill -f listening || kill $(pgrep -f stolen)")


async def test_token_lies_in_no_file(host_bundles: Path, control: Path) -> None:
    async with attacked(host_bundles, control) as (sandbox, client):
        assert files_with(sandbox.token, control) == []
        part = sandbox.token[:20]
        places = "/run /tmp /workspace /nix /dev/shm"
        assert await output(client, f"grep -rl {part} {places} 2>/dev/null; ls -A /run") == ""


async def test_token_file_of_a_sandbox_without_isolation_is_removed(
    host_bundles: Path, control: Path
) -> None:
    deployment = LocalDeployment(bundles=host_bundles, directory=control, isolation="none")
    async with deployment, deployment.session(CONFIG) as sandbox:
        assert files_with(sandbox.token, control) == []


async def test_launcher_tells_nothing(host_bundles: Path, control: Path) -> None:
    async with attacked(host_bundles, control) as (sandbox, _):
        [launcher] = launchers()
        for pid in (launcher, *children(launcher)):
            assert of_process(pid, "environ") == "LANG=C.UTF-8\0"
            assert sandbox.token not in of_process(pid, "cmdline")


async def test_commands_inherit_no_descriptor(host_bundles: Path, control: Path) -> None:
    async with attacked(host_bundles, control) as (_, client):
        # The fourth is that of the directory that is listed.
        assert await output(client, "ls /proc/self/fd | tr '\\n' ' '") == "0 1 2 3"
        links = await output(client, "readlink /proc/self/fd/0 /proc/self/fd/2")
    assert links.startswith("/dev/null\npipe:[")


async def test_only_the_runtime_has_the_listening_socket(host_bundles: Path, control: Path) -> None:
    async with attacked(host_bundles, control) as (sandbox, _):
        [launcher] = launchers()
        [init] = children(launcher)
        [runtime] = children(init)
        for keeper in (launcher, init):
            os.kill(keeper, signal.SIGSTOP)
        try:
            async with ending(runtime):
                os.kill(runtime, signal.SIGKILL)
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(5)
                with pytest.raises(ConnectionRefusedError):
                    client.connect(sandbox.runtime_url.removeprefix("unix:"))
        finally:
            for keeper in (launcher, init):
                os.kill(keeper, signal.SIGCONT)


async def test_pipes_to_the_owner_are_out_of_reach(host_bundles: Path, control: Path) -> None:
    async with attacked(host_bundles, control) as (_, client):
        for place in ("1/fd/1", "1/fd/2", "$PPID/fd/1", "$PPID/fd/2", "$PPID/fd/3"):
            forged = f"echo agentix-server ready unix:/evil > /proc/{place}"
            assert "ermission denied" in (await client.run(forged)).stderr, place


async def test_lines_after_readiness_say_nothing(
    host_bundles: Path, control: Path, shell_runtime: ShellRuntime
) -> None:
    forged = (
        "echo 'agentix-server ready unix:/evil';"
        " echo 'agentix-launcher: refused: everything' >&2; exit 125"
    )
    config = SandboxConfig(image="/", runtime=shell_runtime(forged))
    async with LocalDeployment(directory=control) as deployment:
        sandbox = await deployment.create(config)
        for launcher in launchers():
            async with ending(launcher):
                pass
        assert sandbox.runtime_url.startswith(f"unix:{control}/")
        info = await deployment.get(sandbox.id)
        assert (info.status, info.exit_code) == ("exited", 125)


async def test_no_device_can_be_made(host_bundles: Path, control: Path) -> None:
    async with attacked(host_bundles, control) as (_, client):
        for place in ("/workspace", "/tmp", "/run", "/dev/shm"):
            made = await client.run(f"mknod {place}/disk b 8 0")
            assert "Operation not permitted" in made.stderr
        assert "nodev" in await output(client, "grep ' /workspace ' /proc/mounts")


async def test_crash_leaves_no_core(host_bundles: Path, control: Path) -> None:
    """A program of the host may take core dumps, and put them on the host's disk."""
    async with attacked(host_bundles, control) as (_, client):
        limits = await output(client, "grep core /proc/self/limits")
        assert limits.split()[4:6] == ["1", "1"]
        crashed = await client.run("ulimit -c unlimited; kill -SEGV $$", cwd="/workspace")
        assert crashed.exit_code == -signal.SIGSEGV
        assert await output(client, "ls -A /workspace") == ""


SYS_ADD_KEY, SYS_KEYCTL = {"x86_64": (248, 250), "aarch64": (217, 219)}.get(
    os.uname().machine, (0, 0)
)
KEY_SPEC_SESSION_KEYRING = -3
KEYCTL_SEARCH, KEYCTL_JOIN_SESSION_KEYRING = 10, 1

OWNER_WITH_A_KEY = """
import asyncio, ctypes, sys
from pathlib import Path
from agentix.client import RuntimeClient
from agentix.deployment import SandboxConfig
from agentix.local import LocalDeployment

async def main(bundles, control, add_key, keyctl, search):
    call = ctypes.CDLL(None, use_errno=True).syscall
    assert call(int(keyctl), 1, None) > 0
    assert call(int(add_key), b"user", b"owner's", b"secret", 6, ctypes.c_long(-3)) > 0
    deployment = LocalDeployment(bundles=Path(bundles), directory=Path(control))
    async with (
        deployment,
        deployment.session(SandboxConfig(image="/")) as sandbox,
        RuntimeClient(sandbox.runtime_url, token=sandbox.token) as client,
    ):
        own = await asyncio.create_subprocess_shell(search, stdout=-1)
        print((await own.communicate())[0].decode().strip())
        print((await client.run(search)).stdout.strip())

asyncio.run(main(*sys.argv[1:]))
"""

SEARCH = (
    "import ctypes; call = ctypes.CDLL(None).syscall;"
    f"print(call({SYS_KEYCTL}, {KEYCTL_SEARCH}, ctypes.c_long({KEY_SPEC_SESSION_KEYRING}),"
    " b'user', b\"owner's\", 0) > 0)"
)


@pytest.mark.skipif(not SYS_KEYCTL, reason="keyctl(2) has another number on this machine")
def test_keys_of_the_owner_are_not_in_the_sandbox(host_bundles: Path, control: Path) -> None:
    if ctypes.CDLL(None).syscall(SYS_KEYCTL, 0, ctypes.c_long(KEY_SPEC_SESSION_KEYRING), 0) < 0:
        pytest.skip("this kernel keeps no keys for this process")
    search = shlex.join(["python3", "-c", SEARCH])
    command = [sys.executable, "-c", OWNER_WITH_A_KEY, str(host_bundles), str(control)]
    finished = subprocess.run(
        [*command, str(SYS_ADD_KEY), str(SYS_KEYCTL), search],
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.split() == ["True", "False"]


async def test_secrets_of_the_owner_s_environment_are_not_in_the_sandbox(
    host_bundles: Path, control: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = secrets.token_hex(16)
    monkeypatch.setenv("OWNER_SECRET", secret)
    async with attacked(host_bundles, control) as (_, client):
        found = "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c OWNER_SECRET"
        assert (await client.run(found)).stdout == "0\n"
        assert len(descendants(launchers()[0])) == 2
