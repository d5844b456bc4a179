"""The root of a local sandbox: the task image, read-only, and what is the sandbox's own."""

import os
import sys
import tempfile
from pathlib import Path

import pytest

from agentix.client import RuntimeClient
from agentix.deployment import SandboxConfig
from agentix.errors import DeploymentError, UsageError
from agentix.local import LocalDeployment
from agentix_namespaces import mock_agent

HOST_RESOLVER = Path("/etc/resolv.conf")


async def outputs(deployment: LocalDeployment, config: SandboxConfig, *commands: str) -> list[str]:
    """Run commands in a new sandbox and return what each printed, errors included."""
    async with (
        deployment.session(config) as sandbox,
        RuntimeClient(sandbox.runtime_url, token=sandbox.token) as client,
    ):
        results = [await client.run(f"({command}) 2>&1") for command in commands]
    return [result.stdout.strip() for result in results]


async def test_host_root_is_read_only(deployment: LocalDeployment, config: SandboxConfig) -> None:
    places = ["/x", "/etc/x", "/usr/x", "/var/x", "/mnt/x", "/nix/x", "/nix/store/x", "/dev/x"]
    places.append("/sys/x")
    for answer in await outputs(deployment, config, *(f"touch {place}" for place in places)):
        assert "Read-only file system" in answer


async def test_mounts_below_the_host_root_are_read_only(
    deployment: LocalDeployment, config: SandboxConfig
) -> None:
    own = r" (/dev/pts|/dev/shm|/proc|/run|/tmp|/var/tmp|/workspace) "
    [writable] = await outputs(deployment, config, f"grep ' rw,' /proc/mounts | grep -vE '{own}'")
    assert writable == ""


async def test_host_tmp_is_invisible(deployment: LocalDeployment, config: SandboxConfig) -> None:
    with tempfile.NamedTemporaryFile(dir="/tmp", prefix="agentix-secret-") as secret:
        answers = await outputs(deployment, config, f"ls {secret.name}", "ls -A /tmp", "ls -A /run")
    assert "No such file" in answers[0]
    # A runtime of the host's interpreter brings the directories that this suite is installed in.
    brought = {path.parts[2] for path in map(Path, sys.path) if path.parts[1:2] == ("tmp",)}
    assert set(answers[1].split()) - brought == {"home"}
    assert answers[2] == ""


async def test_own_directories_are_writable(
    deployment: LocalDeployment, config: SandboxConfig
) -> None:
    places = [".", "/tmp", "/var/tmp", "/run", "/dev/shm", "$HOME"]
    answers = await outputs(deployment, config, *(f"touch {place}/x" for place in places))
    assert answers == [""] * len(places)


async def test_mounts_cannot_be_changed(deployment: LocalDeployment, config: SandboxConfig) -> None:
    answers = await outputs(
        deployment,
        config,
        "mount -o remount,rw,bind /etc",
        "umount /proc/sys",
        "mount -t tmpfs tmpfs /tmp",
        "unshare --user --map-root-user --mount mount -o remount,rw,bind /etc",
        'cd /proc/sys/kernel; pattern=$(cat core_pattern); echo "$pattern" > core_pattern',
        "chmod 600 /dev/null",
        "kill -9 1; echo alive",
    )
    for answer in answers[:4]:
        assert "denied" in answer or "not permitted" in answer or "must be superuser" in answer
    assert "Read-only file system" in answers[4]
    assert "Read-only file system" in answers[5]
    assert answers[6] == "alive"


async def test_devices_work(deployment: LocalDeployment, config: SandboxConfig) -> None:
    answers = await outputs(
        deployment,
        config,
        "echo x > /dev/null && head -c 2 /dev/zero /dev/urandom > /dev/null && echo fine",
        "ls /dev | tr '\\n' ' '",
        "python3 -c 'import os; print(os.ttyname(os.openpty()[1]))'",
    )
    assert answers[0] == "fine"
    names = "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero"
    assert answers[1].split() == names.split()
    assert answers[2] == "/dev/pts/0"


async def test_host_processes_are_invisible(
    deployment: LocalDeployment, config: SandboxConfig
) -> None:
    [first, name] = await outputs(
        deployment, config, "tr '\\0' ' ' < /proc/1/cmdline", "cat /proc/sys/kernel/hostname"
    )
    assert "launcher.py" in first
    assert name.startswith("agentix-")


async def test_loopback_is_private_and_up(
    deployment: LocalDeployment, config: SandboxConfig
) -> None:
    program = (
        'import socket; s = socket.create_server(("127.0.0.1", 80));'
        " socket.create_connection(s.getsockname()); print(socket.if_nameindex())"
    )
    private = config.model_copy(update={"network": "none"})
    [answer] = await outputs(deployment, private, f"python3 -c '{program}'")
    assert answer == "[(1, 'lo')]"


async def test_rootfs_directory_is_the_task_image(
    nix_bundles: Path, busybox_root: Path, control: Path
) -> None:
    config = SandboxConfig(image=str(busybox_root), namespaces=[mock_agent])
    async with LocalDeployment(bundles=nix_bundles, directory=control) as deployment:
        answers = await outputs(
            deployment,
            config,
            "cat /etc/marker",
            "touch /etc/x /home/x",
            "ls /",
            "cat /etc/resolv.conf",
        )
        async with (
            deployment.session(config) as sandbox,
            RuntimeClient(sandbox.runtime_url, token=sandbox.token) as client,
        ):
            program = await client.run("mock-agent-cli hello", paths_from=["*"])
            result = await client.remote(mock_agent.run, "fix it")
    assert answers[0] == "the task image"
    assert answers[1].count("Read-only file system") == 2
    own = {"dev", "mnt", "nix", "proc", "run", "sys", "tmp", "workspace"}
    assert set(answers[2].split()) == {"bin", "etc", "home", "var"} | own
    assert answers[3] == HOST_RESOLVER.read_text().strip()  # noqa: ASYNC240
    assert program.stdout == "hello\n"
    assert result.exit_code == 0
    assert not (busybox_root / "etc/x").exists()


async def test_writable_root_is_private(
    nix_bundles: Path, busybox_root: Path, control: Path
) -> None:
    config = SandboxConfig(image=str(busybox_root), namespaces=[mock_agent])
    deployment = LocalDeployment(bundles=nix_bundles, directory=control, writable_root=True)
    commands = "cat /etc/marker; rm /etc/marker; echo new > /etc/new", "ls /etc", "touch /mnt/x"
    async with deployment:
        for _ in range(2):
            answers = await outputs(deployment, config, *commands)
            assert answers[:2] == ["the task image", "new\nresolv.conf"]
            assert "Read-only file system" in answers[2]
    assert (busybox_root / "etc/marker").exists()
    assert not (busybox_root / "etc/new").exists()


async def test_changes_of_a_writable_root_are_bounded_with_all_other_files(
    nix_bundles: Path, busybox_root: Path, control: Path
) -> None:
    config = SandboxConfig(image=str(busybox_root), memory=128 * 1024 * 1024)
    deployment = LocalDeployment(bundles=nix_bundles, directory=control, writable_root=True)
    fill = "cat /dev/zero > {0}/x; echo; ls -l {0}/x"
    async with deployment:
        answers = await outputs(deployment, config, fill.format("/etc"), fill.format("/workspace"))
    assert [answer.count("No space left on device") for answer in answers] == [1, 1]
    sizes = [int(answer.split()[-5]) for answer in answers]
    assert 48 * 1024 * 1024 < sizes[0] <= 56 * 1024 * 1024
    assert sizes[1] == 0
    assert not (busybox_root / "etc/x").exists()


async def test_host_interpreter_needs_the_host_root(
    deployment: LocalDeployment, busybox_root: Path
) -> None:
    with pytest.raises(DeploymentError, match="only with image='/'"):
        await deployment.create(SandboxConfig(image=str(busybox_root)))


async def test_image_reference_is_no_task_image(deployment: LocalDeployment) -> None:
    with pytest.raises(DeploymentError, match=r"no task image 'ubuntu:24.04'.*docker export"):
        await deployment.create(SandboxConfig(image="ubuntu:24.04"))


async def test_bridge_is_refused(deployment: LocalDeployment, config: SandboxConfig) -> None:
    with pytest.raises(UsageError, match="use DockerDeployment for it, or 'none'"):
        await deployment.create(config.model_copy(update={"network": "bridge"}))


async def test_commands_run_as_the_configured_user(
    deployment: LocalDeployment, config: SandboxConfig
) -> None:
    other = config.model_copy(update={"user": "1234:1234"})
    assert await outputs(deployment, other, "id -u") == ["1234"]


async def test_missing_control_directory_is_made(host_bundles: Path, control: Path) -> None:
    place = str(control / "missing")
    deployment = LocalDeployment(bundles=host_bundles, directory=Path(place))
    async with deployment, deployment.session(SandboxConfig(image="/")) as sandbox:
        assert sandbox.runtime_url.startswith(f"unix:{place}/")
        assert os.stat(place).st_mode & 0o777 == 0o700
    assert os.listdir(place) == []
    os.rmdir(place)


async def test_control_directory_that_cannot_be_one(control: Path) -> None:
    file = str(control / "file")
    os.close(os.open(file, os.O_CREAT))
    with pytest.raises(DeploymentError, match=f"control root {file}: .*File exists"):
        await LocalDeployment(directory=Path(file)).__aenter__()
    os.unlink(file)


async def test_control_directory_that_others_may_write_to(control: Path) -> None:
    os.chmod(control, 0o777)
    with pytest.raises(DeploymentError, match=f"control root {control} is not a directory in"):
        await LocalDeployment(directory=control).__aenter__()


async def test_closed_deployment_makes_no_sandbox(
    host_bundles: Path, config: SandboxConfig
) -> None:
    async with LocalDeployment(bundles=host_bundles) as deployment:
        pass
    with pytest.raises(UsageError, match="closed"):
        await deployment.create(config)


async def test_directory_that_is_too_long_for_a_socket(host_bundles: Path, tmp_path: Path) -> None:
    directory = tmp_path / ("x" * 100)
    directory.mkdir()
    deployment = LocalDeployment(bundles=host_bundles, directory=directory)
    with pytest.raises(UsageError, match="too long for Unix sockets below it"):
        await deployment.create(SandboxConfig(image="/"))
    assert await deployment.list() == []
    assert os.listdir(directory) == []
