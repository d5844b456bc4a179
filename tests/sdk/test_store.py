"""Store paths: their names are those that Nix gives, and their content decides them alone."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from agentix.namespace_sdk.store import STORE, Closure, add_to_store, store_name, write_bundle

TREE = "qifd26pk33n973a9c8cd4pn3lz3y6jz1-tree"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a tree with a file of every kind."""
    tree = tmp_path / "tree"
    (tree / "folder").mkdir(parents=True)
    (tree / "folder" / "program").write_text("#!/bin/sh\n")
    (tree / "folder" / "program").chmod(0o755)
    (tree / "empty").touch()
    (tree / "é").write_bytes(bytes(range(256)))
    (tree / "link").symlink_to("folder/program")
    return tree


def test_name_is_the_one_that_nix_gives(tree: Path, tmp_path: Path) -> None:
    if shutil.which("nix-store") is None:
        assert os.environ.get("AGENTIX_REQUIRE_DOCKER") != "1", "nix-store is not installed"
        pytest.skip("nix-store is not installed")
    command = ["nix-store", "--store", str(tmp_path / "store"), "--add", str(tree)]
    added = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert Path(added.strip()) == STORE / store_name(tree, "tree")


def test_name_does_not_depend_on_times_and_other_bits(tree: Path) -> None:
    assert store_name(tree, "tree") == TREE
    for path in [tree, *tree.rglob("*")]:
        os.utime(path, (7, 7), follow_symlinks=False)
        if not path.is_symlink():
            path.chmod(0o700 if path.stat().st_mode & 0o100 else 0o600)
    assert store_name(tree, "tree") == TREE


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: (tree / "empty").write_text("x"),
        lambda tree: (tree / "empty").chmod(0o755),
        lambda tree: (tree / "empty").rename(tree / "full"),
        lambda tree: (tree / "empty").unlink(),
        lambda tree: (tree / "new").symlink_to("empty"),
        lambda tree: (tree / "new").mkdir(),
    ],
)
def test_name_depends_on_content(tree: Path, change: object) -> None:
    assert callable(change)
    change(tree)
    assert store_name(tree, "tree") != TREE


def test_name_takes_what_a_store_takes(tree: Path) -> None:
    assert store_name(tree, "..a name/ü").endswith("-a-name--")


def test_content_that_is_there_is_not_added_again(tree: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(tree, other, symlinks=True)
    path = add_to_store(tree, "tree", tmp_path / "root")
    placed = tmp_path / "root" / path.relative_to("/")
    inode = placed.stat().st_ino
    assert add_to_store(other, "tree", tmp_path / "root") == path == STORE / TREE
    assert placed.stat().st_ino == inode
    assert not tree.exists()
    assert not other.exists()


def test_bundle_loses_what_a_new_closure_does_not_need(tree: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    requirement = tmp_path / "requirement"
    requirement.write_text("needed")
    first = Closure(
        add_to_store(tree, "tree", root), (add_to_store(requirement, "requirement", root),), root
    )
    write_bundle(first, tmp_path / "bundle")
    assert {path.name for path in (tmp_path / "bundle/store").iterdir()} == {
        path.name for path in first.paths
    }
    write_bundle(Closure(first.entry, (), root), tmp_path / "bundle")
    assert [path.name for path in (tmp_path / "bundle/store").iterdir()] == [TREE]
    assert (tmp_path / "bundle/entry/link").read_text() == "#!/bin/sh\n"
