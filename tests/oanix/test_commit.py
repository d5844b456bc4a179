"""Commits of copies to a host's directory: whole or not at all, file by file."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentix.oanix import Change, CowFs, WorkspaceFs

FILES = 8
SIZE = 100_000

COMMIT = f"""
import os, signal, sys
from agentix.oanix import CowFs, WorkspaceFs

root, name, left = sys.argv[1], sys.argv[2], int(sys.argv[3])
real = getattr(os, name)

def deadly(*arguments, **options):
    global left
    left -= 1
    if left == 0:
        if name == "pwrite":
            real(arguments[0], arguments[1][: len(arguments[1]) // 2], arguments[2])
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments, **options)

copy = CowFs(WorkspaceFs(root))
for number in range({FILES}):
    copy.write(f"/f{{number}}", b"n" * {SIZE})
setattr(os, name, deadly)
copy.commit()
print("done")
"""


def commit(root: Path, killed_at: str, times: int) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", COMMIT, str(root), killed_at, str(times)]
    return subprocess.run(command, capture_output=True)


@pytest.mark.parametrize("killed_at", ["pwrite", "fsync", "rename"])
def test_a_commit_that_is_killed_leaves_every_file_old_or_new(
    tmp_path: Path, killed_at: str
) -> None:
    for number in range(FILES):
        (tmp_path / f"f{number}").write_bytes(b"o" * SIZE)
    (tmp_path / "f0").chmod(0o755)
    killed = commit(tmp_path, killed_at, 4)
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, b"")
    contents = [(tmp_path / f"f{number}").read_bytes() for number in range(FILES)]
    assert contents == [b"n" * SIZE] * 3 + [b"o" * SIZE] * 5
    finished = commit(tmp_path, killed_at, -1)
    assert (finished.stdout, finished.stderr) == (b"done\n", b"")
    assert sorted(os.listdir(tmp_path)) == [f"f{number}" for number in range(FILES)]
    assert {(tmp_path / f"f{number}").read_bytes() for number in range(FILES)} == {b"n" * SIZE}
    assert (tmp_path / "f0").stat().st_mode & 0o777 == 0o755


def test_a_commit_replaces_links_and_kinds_of_files(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("old")
    (tmp_path / "file").write_text("file")
    (tmp_path / "dir").mkdir()
    copy = CowFs(WorkspaceFs(tmp_path))
    root = copy.attach()
    root.unlink("link")
    root.symlink("link", "new")
    root.unlink("file")
    root.mkdir("file")
    root.rmdir("dir")
    copy.write("/dir", b"now a file")
    assert copy.commit() == [
        Change("removed", "/dir"),
        Change("added", "/dir"),
        Change("removed", "/file"),
        Change("added", "/file"),
        Change("changed", "/link"),
    ]
    assert os.readlink(tmp_path / "link") == "new"
    assert (tmp_path / "file").is_dir()
    assert (tmp_path / "dir").read_text() == "now a file"
    assert sorted(os.listdir(tmp_path)) == ["dir", "file", "link"]


def test_a_commit_through_a_link_that_was_put_there_meanwhile_stays_inside(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    (root / "dir").mkdir(parents=True)
    (root / "dir" / "file").write_text("old")
    copy = CowFs(WorkspaceFs(root))
    copy.write("/dir/file", b"new")
    assert copy.diff() == [Change("changed", "/dir/file")]
    (root / "dir").rename(root / "kept")
    (root / "dir").symlink_to(outside)
    copy.commit()
    assert os.listdir(outside) == []
    assert (root / "dir" / "file").read_text() == "new"
