"""Image archives and bundles: their layout, and that one source gives one image."""

import json
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from agentix.namespace_sdk.build.archive import Archive
from agentix.namespace_sdk.store import Closure, write_bundle
from nix.closures import Builder
from nix.images import Image, ensure_image
from tests.images.conftest import CACHE


def read_json(archive: tarfile.TarFile, name: str) -> Any:
    file = archive.extractfile(name)
    assert file is not None
    return json.load(file)


def configuration(path: Path) -> Any:
    with tarfile.open(path) as archive:
        return read_json(archive, read_json(archive, "manifest.json")[0]["Config"])


def layer_members(path: Path) -> list[tarfile.TarInfo]:
    members: list[tarfile.TarInfo] = []
    with tarfile.open(path) as archive:
        for name in read_json(archive, "manifest.json")[0]["Layers"]:
            layer = archive.extractfile(name)
            assert layer is not None
            with tarfile.open(fileobj=BytesIO(layer.read())) as unpacked:
                members += unpacked.getmembers()
    return members


@pytest.fixture(params=["runtime_archive", "namespace_archive"])
def archive(request: pytest.FixtureRequest) -> Archive:
    found: Archive = request.getfixturevalue(request.param)
    return found


def test_two_builds_in_two_stores_give_one_image(
    builder: Builder, runtime_image: Image, runtime_archive: Archive, tmp_path: Path
) -> None:
    elsewhere = Builder(CACHE, store=tmp_path / "store")
    closure = elsewhere.build([runtime_image.expression])[0]
    again = ensure_image(runtime_image, closure, tmp_path / "images")
    assert again.image_id == runtime_archive.image_id
    assert again.path.read_bytes() == runtime_archive.path.read_bytes()


def test_archive_of_the_same_closure_is_not_written_again(
    runtime_image: Image, runtime_closure: Closure, runtime_archive: Archive
) -> None:
    before = runtime_archive.path.stat().st_mtime_ns
    assert ensure_image(runtime_image, runtime_closure, CACHE / "images") == runtime_archive
    assert runtime_archive.path.stat().st_mtime_ns == before


def test_image_declares_the_volume_and_its_labels(archive: Archive) -> None:
    described = configuration(archive.path)["config"]
    assert described["Volumes"] == {"/nix": {}}
    assert described["Labels"]["org.agentix.closure"] == "1"
    assert described["Labels"]["org.opencontainers.image.title"] in archive.path.parts
    assert described["Labels"]["org.opencontainers.image.version"] == archive.path.stem


def test_entry_is_a_relative_link_into_the_store(archive: Archive) -> None:
    members = {member.name: member for member in layer_members(archive.path)}
    entry = members["nix/entry"]
    assert entry.issym()
    assert entry.linkname.startswith("store/")
    assert members[f"nix/{entry.linkname}"].isdir()
    assert {name.split("/")[0] for name in members} == {"nix"}
    assert {name.split("/")[1] for name in members if "/" in name} == {"entry", "store"}


def test_layers_tell_nothing_of_when_and_where_they_were_built(archive: Archive) -> None:
    members = layer_members(archive.path)
    assert {(member.mtime, member.uid, member.gid) for member in members} == {(1, 0, 0)}
    assert configuration(archive.path)["created"].startswith("1970-01-01T00:00:01")


def test_nothing_in_an_image_is_writable_by_everyone(archive: Archive) -> None:
    writable = [
        member.name
        for member in layer_members(archive.path)
        if member.mode & 0o002 and not member.issym()
    ]
    assert writable == []


def test_bundle_holds_the_closure_and_the_entry(namespace_closure: Closure, tmp_path: Path) -> None:
    write_bundle(namespace_closure, tmp_path)
    names = {path.name for path in namespace_closure.paths}
    assert {path.name for path in (tmp_path / "store").iterdir()} == names
    assert (tmp_path / "entry").readlink() == Path("store", namespace_closure.entry.name)
    assert (tmp_path / "entry" / "manifest.json").is_file()


def test_bundle_of_another_closure_replaces_what_differs(
    namespace_closure: Closure, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    write_bundle(namespace_closure, tmp_path)
    kept = {path.name: path.stat().st_ino for path in store.iterdir()}
    (store / "leftover").mkdir()
    (tmp_path / "entry").unlink()
    write_bundle(namespace_closure, tmp_path)
    assert {path.name: path.stat().st_ino for path in store.iterdir()} == kept
    assert (tmp_path / "entry" / "manifest.json").is_file()
