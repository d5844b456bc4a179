"""A Docker image archive of a closure, the same bytes for the same closure.

An image that Docker builds or imports has a new id each time, and a deployment fills one volume for
each id. This archive does not depend on when or where it is written, so that two builds of one
source share one id and one volume.
"""

import hashlib
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from agentix.manifest import AGENTIX_CLOSURE_ABI
from agentix.namespace_sdk.build.programs import loaded_id, run_program
from agentix.namespace_sdk.store import Closure

__all__ = [
    "ARCHIVE_FORMAT",
    "Archive",
    "Contents",
    "ensure_archive",
    "ensure_loaded",
    "load_archive",
    "write_archive",
]

ARCHIVE_FORMAT = 1
"""Increased when the same contents make another archive than before."""

CREATED = "1970-01-01T00:00:01Z"
MODIFIED = 1
"""Seconds since the epoch; the time Nix gives every file of its store."""


@dataclass(frozen=True)
class Contents:
    """What an image is made of."""

    closure: Closure
    """What it holds under `/nix`."""
    tag: str
    """Its reference, with a tag."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Its labels; the closure's ABI is added."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Files directly below `/nix`, by their names."""
    platform: str = "linux/amd64"
    """What it runs on: the system and the architecture, and perhaps a variant."""

    def identity(self) -> dict[str, object]:
        """Return, as JSON, all that decides what the archive is."""
        return {
            "entry": str(self.closure.entry),
            "files": {name: digest(content) for name, content in self.files.items()},
            "format": ARCHIVE_FORMAT,
            "labels": dict(self.labels),
            "platform": self.platform,
            "tag": self.tag,
        }


@dataclass(frozen=True)
class Archive:
    """An image's archive on disk."""

    path: Path
    """The file, for `docker load`."""
    image_id: str
    """The id that the image has in an engine."""

    @property
    def record(self) -> Path:
        """The small file beside the archive that names its contents."""
        return self.path.with_suffix(".json")


@dataclass(frozen=True)
class Layer:
    """One layer of an image."""

    path: Path
    """The file of the layer."""
    digest: str
    """Its SHA-256, in hexadecimal digits."""


def ensure_archive(contents: Contents, path: Path) -> Archive:
    """Write an image's archive, unless the one there is of the same contents.

    A small file beside the archive names its contents.
    """
    record = path.with_suffix(".json")
    made_of = contents.identity()
    if path.exists() and record.exists():
        known = json.loads(record.read_text())
        if known["made_of"] == made_of:
            return Archive(path, known["image_id"])
    record.unlink(missing_ok=True)
    image_id = write_archive(contents, path)
    record.write_text(json.dumps({"made_of": made_of, "image_id": image_id}, indent=2) + "\n")
    return Archive(path, image_id)


def ensure_loaded(archive: Archive, tag: str) -> None:
    """Load an archive into the engine, unless its tag names that image already.

    Raises:
        BuildError: No engine answers, or it refuses the archive.
    """
    if loaded_id(tag) != archive.image_id:
        load_archive(archive)


def load_archive(archive: Archive) -> None:
    """Load an archive into the engine.

    Raises:
        BuildError: No engine answers, or it refuses the archive.
    """
    run_program(["docker", "load", "--quiet", "--input", str(archive.path)])


def write_archive(contents: Contents, destination: Path) -> str:
    """Write an archive for `docker load`, and return the image's id.

    The entry has a layer of its own above what it needs, because it is what changes.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=destination.parent) as temporary:
        folder = Path(temporary)
        layers = [
            _write_requirements(contents, folder / "requirements.tar"),
            _write_entry(contents, folder / "entry.tar"),
        ]
        configuration = image_configuration(contents, layers)
        archive = folder / "image.tar"
        _write_image(archive, configuration, layers, contents.tag)
        archive.replace(destination)
    return f"sha256:{digest(configuration)}"


def _write_requirements(contents: Contents, destination: Path) -> Layer:
    with tarfile.open(destination, "w", format=tarfile.PAX_FORMAT) as layer:
        add_store_paths(layer, contents.closure, contents.closure.requirements)
    return _layer(destination)


def _write_entry(contents: Contents, destination: Path) -> Layer:
    entry = contents.closure.entry
    with tarfile.open(destination, "w", format=tarfile.PAX_FORMAT) as layer:
        add_store_paths(layer, contents.closure, [entry])
        add_link(layer, "nix/entry", f"store/{entry.name}")
        for name, content in sorted(contents.files.items()):
            add_bytes(layer, f"nix/{name}", content)
    return _layer(destination)


def _layer(path: Path) -> Layer:
    with path.open("rb") as file:
        return Layer(path, hashlib.file_digest(file, "sha256").hexdigest())


def add_store_paths(layer: tarfile.TarFile, closure: Closure, paths: Sequence[Path]) -> None:
    """Add the store with the given paths of a closure."""
    for name in ("nix", "nix/store"):
        add_directory(layer, name)
    for path in sorted(paths):
        add_tree(layer, closure.physical(path), f"nix/store/{path.name}")


def add_directory(layer: tarfile.TarFile, name: str) -> None:
    """Add a directory."""
    member = tarfile.TarInfo(name)
    member.type = tarfile.DIRTYPE
    member.mode = 0o755
    layer.addfile(timeless(member))


def add_link(layer: tarfile.TarFile, name: str, target: str) -> None:
    """Add a symbolic link."""
    member = tarfile.TarInfo(name)
    member.type = tarfile.SYMTYPE
    member.mode = 0o777
    member.linkname = target
    layer.addfile(timeless(member))


def add_tree(layer: tarfile.TarFile, path: Path, name: str) -> None:
    """Add a file, a link or a directory with all it holds, in order of names.

    Of a mode only the executable bit is kept, as in Nix's store.
    """
    member = timeless(layer.gettarinfo(path, name))
    if not member.issym():
        member.mode = 0o555 if member.isdir() or member.mode & 0o100 else 0o444
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
    """Return a member without owner and time."""
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    member.mtime = MODIFIED
    return member


def image_configuration(contents: Contents, layers: Sequence[Layer]) -> bytes:
    """Return the description of the image; the digest of this is its id."""
    system, architecture, *variant = contents.platform.split("/")
    configuration = {
        "architecture": architecture,
        "os": system,
        **({"variant": variant[0]} if variant else {}),
        "created": CREATED,
        "config": {
            "Cmd": ["/nix/entry/bin/start"],
            "Labels": {**contents.labels, "org.agentix.closure": str(AGENTIX_CLOSURE_ABI)},
            "Volumes": {"/nix": {}},
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.digest}" for layer in layers]},
        "history": [{"created": CREATED} for _ in layers],
    }
    return json.dumps(configuration, sort_keys=True).encode()


def _write_image(path: Path, configuration: bytes, layers: Sequence[Layer], tag: str) -> None:
    """Write the archive itself: configuration, layers and the manifest that names them."""
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
    """Add a file with the given content."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(timeless(member), BytesIO(content))


def digest(content: bytes) -> str:
    """Return the SHA-256 of bytes, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()
