"""Control directories: who may see them, and how those of dead owners go."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentix.errors import DeploymentError, UsageError
from agentix.linux.control import ControlDirectories, default_control_root, listen_unix
from agentix.linux.groups import note_group

LONGEST_ROOT = 54
"""Bytes of the longest root below which each socket still has a path of 107 bytes."""

OWNER = """
import os, signal, sys
from pathlib import Path
from agentix.linux.control import ControlDirectories

directories = ControlDirectories(Path(sys.argv[1]))
directories.open()
(directories.add("sandbox") / "file").write_text("content")
print(os.getpid(), flush=True)
if "fork" in sys.argv and (fork := os.fork()):
    print(fork, flush=True)
signal.pause()
"""


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="agentix-root-") as directory:
        yield Path(directory)


@contextmanager
def owner(root: Path, *options: str, wrapper: tuple[str, ...] = ()) -> Iterator[list[int]]:
    """Run an owner with one sandbox; its number, and that of its fork, as it knows them."""
    command = [*wrapper, sys.executable, "-c", OWNER, str(root), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        pids = [int(process.stdout.readline()) for _ in range(1 + len(options))]
        try:
            yield pids
        finally:
            process.kill()


def names(root: Path) -> list[str]:
    """Return what kinds of things a root has, by how their names end."""
    return sorted(path.suffix or "directory" for path in root.iterdir())


def open_and_close(root: Path) -> None:
    directories = ControlDirectories(root)
    directories.open()
    directories.close()


def test_directories_are_private(root: Path) -> None:
    directories = ControlDirectories(root / "deep/root")
    directories.open()
    sandbox = directories.add("sandbox")
    private = [root / "deep/root", sandbox.parent, sandbox]
    assert [path.stat().st_mode & 0o777 for path in private] == [0o700] * 3
    directories.remove("sandbox")
    assert not sandbox.exists()
    directories.close()
    assert os.listdir(root / "deep/root") == []


def test_opening_twice_makes_one_directory(root: Path) -> None:
    directories = ControlDirectories(root)
    assert not directories.is_open
    directories.open()
    directories.open()
    assert directories.is_open
    assert names(root) == [".owner", "directory"]
    directories.close()
    directories.close()
    assert names(root) == []


def test_killed_owner_s_directory_is_removed_by_the_next(root: Path) -> None:
    with owner(root):
        open_and_close(root)
        assert names(root) == [".owner", "directory"]
    assert names(root) == [".owner", "directory"]
    open_and_close(root)
    assert names(root) == []


def test_fork_of_an_owner_is_not_its_owner(root: Path) -> None:
    with owner(root, "fork") as [_, fork]:
        open_and_close(root)
        assert names(root) == [".owner", "directory"]
    open_and_close(root)
    assert names(root) == []
    os.kill(fork, signal.SIGKILL)


def test_owner_in_another_pid_namespace(root: Path) -> None:
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("unshare of util-linux is not installed")
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    wrapper = (unshare, *user, "--pid", "--fork", "--kill-child", "--mount-proc")
    with owner(root, wrapper=wrapper) as [pid]:
        assert pid == 1
        open_and_close(root)
        assert names(root) == [".owner", "directory"]
    [file] = root.glob("*.owner")
    wait_until_unlocked(file)
    open_and_close(root)
    assert names(root) == []


def wait_until_unlocked(file: Path) -> None:
    """Wait for the end of whoever has a file locked."""
    subprocess.run(["flock", "--wait", "10", str(file), "true"], check=True)


def test_unfinished_owner_file_is_removed(root: Path) -> None:
    """An owner may die before it has locked its file, or made its directory."""
    (root / "abc.owner").touch()
    open_and_close(root)
    assert names(root) == []


def test_other_files_are_left_alone(root: Path) -> None:
    (root / "abc").mkdir()
    (root / "link.owner").symlink_to(root / "abc")
    open_and_close(root)
    assert sorted(path.name for path in root.iterdir()) == ["abc", "link.owner"]


def test_what_cannot_be_removed_is_left_to_the_next(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("agentix.linux.groups.PATIENCE", 0.05)
    busy = root / "busy"
    (busy / "child").mkdir(parents=True)
    with owner(root):
        [directory] = root.glob("*/sandbox")
        note_group(directory, busy)
    open_and_close(root)
    assert f"control group {busy} is still in use" in caplog.text
    assert names(root) == [".owner", "directory", "directory"]
    (busy / "child").rmdir()
    open_and_close(root)
    assert names(root) == []


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o707])
def test_root_that_others_may_write_to_is_refused(root: Path, mode: int) -> None:
    root.chmod(mode)
    with pytest.raises(DeploymentError, match="only this user can"):
        ControlDirectories(root).open()
    assert names(root) == []


def test_sticky_root_is_taken(root: Path) -> None:
    root.chmod(0o1777)
    open_and_close(root)


def test_link_is_no_root(root: Path) -> None:
    (root / "link").symlink_to(root)
    with pytest.raises(DeploymentError, match="only this user can"):
        ControlDirectories(root / "link").open()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a directory away")
def test_another_user_s_root_is_refused(root: Path) -> None:
    os.chown(root, 65534, 65534)
    with pytest.raises(DeploymentError, match="only this user can"):
        ControlDirectories(root).open()


def test_failed_opening_can_be_repeated(root: Path) -> None:
    file = root / "file"
    file.touch()
    directories = ControlDirectories(file)
    with pytest.raises(DeploymentError, match="File exists"):
        directories.open()
    assert not directories.is_open
    file.unlink()
    directories.open()
    directories.close()


def long_root(root: Path, length: int) -> Path:
    return root / ("x" * (length - len(os.fsencode(root)) - 1))


def test_root_that_is_too_long_for_sockets(root: Path) -> None:
    with pytest.raises(UsageError, match="too long for Unix sockets"):
        ControlDirectories(long_root(root, LONGEST_ROOT + 1)).open()
    assert names(root) == []


def test_longest_socket_can_be_made(root: Path) -> None:
    place = long_root(root, LONGEST_ROOT)
    directories = ControlDirectories(place)
    directories.open()
    sandbox = directories.add(f"agentix-{'0' * 16}")
    (sandbox / "handoff").mkdir()
    listen_unix(sandbox / "handoff/socket").close()
    directories.close()


def test_listening_socket(root: Path) -> None:
    with listen_unix(root / "socket") as listener, socket.socket(socket.AF_UNIX) as client:
        assert (root / "socket").stat().st_mode & 0o777 == 0o600
        client.connect(str(root / "socket"))
        assert listener.getsockname() == str(root / "socket")
    with socket.socket(socket.AF_UNIX) as client, pytest.raises(ConnectionRefusedError):
        client.connect(str(root / "socket"))


def test_listening_socket_takes_no_other_s_place(root: Path) -> None:
    (root / "socket").touch()
    with pytest.raises(OSError, match="Address already in use"):
        listen_unix(root / "socket")


def test_default_root_is_in_the_runtime_directory_of_this_user(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(root))
    assert default_control_root() == root / "agentix"


@pytest.mark.parametrize("change", ["missing", "link", "another user's"])
def test_default_root_is_not_in_a_directory_of_somebody_else(
    root: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    place = root / "place"
    if change == "link":
        place.symlink_to(root)
    if change == "another user's":
        place.mkdir()
        monkeypatch.setattr("os.geteuid", lambda: place.lstat().st_uid + 1)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    assert not default_control_root().is_relative_to(root)


READ_ONLY = """
import sys
from pathlib import Path
from agentix.linux.control import ControlDirectories

directories = ControlDirectories(Path(sys.argv[1]))
directories.open()
deep = directories.add("sandbox") / "module/deep"
deep.mkdir(parents=True)
(deep / "file").touch()
for path in (deep, deep.parent):
    path.chmod(0o500)
directories.remove("sandbox")
print(deep.parent.parent.exists())
directories.close()
"""


def test_read_only_directories_are_removed(root: Path, ordinary_python: list[str]) -> None:
    """What package managers leave, such as Go's module cache; root needs no permission."""
    root.chmod(0o755)
    place = root / "place"
    place.mkdir()
    place.chmod(0o1777)
    command = [*ordinary_python, "-c", READ_ONLY, str(place)]
    finished = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    assert (finished.returncode, finished.stdout) == (0, "False\n"), finished.stderr
    assert os.listdir(place) == []


def test_link_in_place_of_a_dead_owner_s_directory_is_not_followed(root: Path) -> None:
    """Others may put one there where the root is shared, as /tmp is."""
    place, elsewhere = root / "place", root / "elsewhere"
    place.mkdir()
    (elsewhere / "below").mkdir(parents=True)
    (elsewhere / "below").chmod(0o755)
    (place / "abc.owner").touch()
    (place / "abc").symlink_to(elsewhere)
    open_and_close(place)
    assert (elsewhere / "below").stat().st_mode & 0o777 == 0o755
    assert os.listdir(place) == ["abc"]
