"""A Docker image archive of a closure, the same bytes for the same closure.

Docker gives an image built or imported the usual ways a new id each time, and a
deployment fills one volume per id. Here nothing depends on when or where the
archive is written, so two builds of one source share one id and one volume.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from nix.closures import Closure

CREATED = "1970-01-01T00:00:01Z"
MODIFIED = 1
"""Seconds since the epoch; the time Nix gives every file of its store."""

CLOSURE_ABI = "1"


@dataclass(frozen=True)
class Layer:
    """One layer of an image."""

    path: Path
    digest: str


def write_image_archive(
    closure: Closure, tag: str, labels: Mapping[str, str], destination: Path
) -> str:
    """Writes an archive for `docker load` and returns the image's id.

    The entry has a layer of its own above what it needs, because it is what changes.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=destination.parent) as temporary:
        folder = Path(temporary)
        entry_target = f"store/{closure.entry.name}"
        layers = [
            write_layer(closure, closure.requirements, None, folder / "requirements.tar"),
            write_layer(closure, [closure.entry], entry_target, folder / "entry.tar"),
        ]
        configuration = image_configuration(layers, labels)
        archive = folder / "image.tar"
        write_archive(archive, configuration, layers, tag)
        archive.replace(destination)
    return f"sha256:{digest(configuration)}"


def write_layer(
    closure: Closure, paths: Sequence[Path], entry_target: str | None, destination: Path
) -> Layer:
    """Writes store paths, and the entry link where it has a target, as a layer."""
    with tarfile.open(destination, "w", format=tarfile.PAX_FORMAT) as layer:
        for name in ("nix", "nix/store"):
            add_directory(layer, name)
        for path in sorted(paths):
            add_tree(layer, closure.physical(path), f"nix/store/{path.name}")
        if entry_target:
            add_link(layer, "nix/entry", entry_target)
    with destination.open("rb") as file:
        return Layer(destination, hashlib.file_digest(file, "sha256").hexdigest())


def add_directory(layer: tarfile.TarFile, name: str) -> None:
    """Adds a directory."""
    member = tarfile.TarInfo(name)
    member.type = tarfile.DIRTYPE
    member.mode = 0o755
    layer.addfile(timeless(member))


def add_link(layer: tarfile.TarFile, name: str, target: str) -> None:
    """Adds a symbolic link."""
    member = tarfile.TarInfo(name)
    member.type = tarfile.SYMTYPE
    member.mode = 0o777
    member.linkname = target
    layer.addfile(timeless(member))


def add_tree(layer: tarfile.TarFile, path: Path, name: str) -> None:
    """Adds a file, a link or a directory with all it holds, in order of names."""
    member = timeless(layer.gettarinfo(path, name))
    if not member.isreg() and not member.islnk():
        layer.addfile(member)
    else:
        # The store may share equal files as hard links; the image must not depend on it.
        member.type = tarfile.REGTYPE
        member.size = path.stat().st_size
        with path.open("rb") as file:
            layer.addfile(member, file)
    if member.isdir():
        for child in sorted(path.iterdir()):
            add_tree(layer, child, f"{name}/{child.name}")


def timeless(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Takes owner and time off a member."""
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    member.mtime = MODIFIED
    return member


def image_configuration(layers: Sequence[Layer], labels: Mapping[str, str]) -> bytes:
    """Describes the image; the digest of this is its id."""
    configuration = {
        "architecture": "amd64",
        "os": "linux",
        "created": CREATED,
        "config": {
            "Cmd": ["/nix/entry/bin/start"],
            "Labels": {**labels, "org.agentix.closure": CLOSURE_ABI},
            "Volumes": {"/nix": {}},
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.digest}" for layer in layers]},
        "history": [{"created": CREATED} for _ in layers],
    }
    return json.dumps(configuration, sort_keys=True).encode()


def write_archive(path: Path, configuration: bytes, layers: Sequence[Layer], tag: str) -> None:
    """Writes the archive itself: configuration, layers and the manifest that names them."""
    configuration_name = f"{digest(configuration)}.json"
    manifest = [
        {
            "Config": configuration_name,
            "RepoTags": [tag],
            "Layers": [f"{layer.digest}/layer.tar" for layer in layers],
        }
    ]
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        add_bytes(archive, configuration_name, configuration)
        for layer in layers:
            member = tarfile.TarInfo(f"{layer.digest}/layer.tar")
            member.size = layer.path.stat().st_size
            with layer.path.open("rb") as file:
                archive.addfile(timeless(member), file)
        add_bytes(archive, "manifest.json", json.dumps(manifest).encode())


def add_bytes(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    """Adds a file with the given content."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(timeless(member), BytesIO(content))


def digest(content: bytes) -> str:
    """Digests bytes as Docker does."""
    return hashlib.sha256(content).hexdigest()
