"""Build the runtime and the namespaces into images and bundles.

    python3 -m nix.images bundles [IMAGE ...]     directories for deployments without Docker
    python3 -m nix.images archives [IMAGE ...]    archives for `docker load`
    python3 -m nix.images load [IMAGE ...]        the same, loaded into Docker and tagged
    python3 -m nix.images closures [IMAGE ...]    nothing but the store paths, printed

IMAGE is `runtime`, the name of a directory in `namespaces/`, or the path of any
directory that holds a namespace's `default.nix` and `manifest.json`; without any,
the runtime and every namespace of this repository. Bundles go to
`.cache/bundles/<image>/<version>/`, archives to `.cache/images/<image>/<version>.tar`,
and tags are `<image>:<version>`, with `agentix/` before every image's name.

Without changes nothing is built, copied or loaded again.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nix.bundle import write_bundle
from nix.closures import NIX, Builder, BuildError, Closure, default_store, run
from nix.image_archive import write_image_archive
from nix.offline.command import FetchError

REPOSITORY = NIX.parent
NAMESPACES = REPOSITORY / "namespaces"
RUNTIME_PROJECT = REPOSITORY / "packages" / "agentix-runtime" / "pyproject.toml"
ARCHIVE_FORMAT = 1
"""Raised when the same closure gives another archive than before."""


@dataclass(frozen=True)
class Image:
    """An image to build."""

    name: str
    version: str
    expression: Path

    @property
    def repository(self) -> str:
        """The image's name in tags and directories."""
        return f"agentix/{self.name}"

    @property
    def tag(self) -> str:
        """The reference a deployment is given."""
        return f"{self.repository}:{self.version}"

    @property
    def labels(self) -> dict[str, str]:
        """The image's own labels."""
        return {
            "org.opencontainers.image.title": self.name,
            "org.opencontainers.image.version": self.version,
        }


def runtime_image() -> Image:
    """Describes the runtime's image."""
    project = tomllib.loads(RUNTIME_PROJECT.read_text())["project"]
    return Image("runtime", project["version"], NIX / "runtime.nix")


def namespace_image(directory: Path) -> Image:
    """Describes the image of the namespace in a directory.

    Raises:
        BuildError: The directory holds no namespace.
    """
    for name in ("manifest.json", "default.nix"):
        if not (directory / name).is_file():
            raise BuildError(f"{directory} is no namespace: it has no {name}")
    manifest = json.loads((directory / "manifest.json").read_text())
    return Image(manifest["name"], manifest["version"], directory)


def find_images(names: Sequence[str]) -> list[Image]:
    """Finds the named images, or every image of this repository."""
    if not names:
        namespaces = sorted(path.parent for path in NAMESPACES.glob("*/default.nix"))
        return [runtime_image(), *map(namespace_image, namespaces)]
    return [find_image(name) for name in names]


def find_image(name: str) -> Image:
    """Finds one image by its name or its directory."""
    if name == "runtime":
        return runtime_image()
    if os.sep in name or name == ".":
        return namespace_image(Path(name).resolve())
    return namespace_image(NAMESPACES / name)


@dataclass(frozen=True)
class Archive:
    """An image's archive in the cache."""

    path: Path
    image_id: str


def ensure_archive(image: Image, closure: Closure, directory: Path) -> Archive:
    """Writes the image's archive, unless the one there is of the same closure.

    A small file beside the archive tells which closure and image it is of.
    """
    path = directory / image.repository / f"{image.version}.tar"
    record = path.with_suffix(".json")
    made_of = {"entry": str(closure.entry), "format": ARCHIVE_FORMAT, "tag": image.tag}
    if path.exists() and record.exists():
        known = json.loads(record.read_text())
        if known["made_of"] == made_of:
            return Archive(path, known["image_id"])
    record.unlink(missing_ok=True)
    image_id = write_image_archive(closure, image.tag, image.labels, path)
    record.write_text(json.dumps({"made_of": made_of, "image_id": image_id}, indent=2) + "\n")
    return Archive(path, image_id)


def ensure_loaded(image: Image, archive: Archive) -> None:
    """Loads an archive into Docker, unless its tag names that image already."""
    found = subprocess.run(
        ["docker", "image", "inspect", "--format", "{{.Id}}", image.tag],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    if found.stdout.strip() != archive.image_id:
        run(["docker", "load", "--quiet", "--input", str(archive.path)])


def build(command: str, images: Sequence[Image], builder: Builder) -> None:
    """Builds images and says what became of each, one line an image."""
    closures = builder.build([image.expression for image in images])
    for image, closure in zip(images, closures, strict=True):
        match command:
            case "closures":
                print(closure.entry)
            case "bundles":
                bundle = builder.cache / "bundles" / image.repository / image.version
                write_bundle(closure, bundle)
                print(f"{image.tag} {bundle}")
            case "archives":
                archive = ensure_archive(image, closure, builder.cache / "images")
                print(f"{image.tag} {archive.image_id} {archive.path}")
            case _:
                archive = ensure_archive(image, closure, builder.cache / "images")
                ensure_loaded(image, archive)
                print(f"{image.tag} {archive.image_id}")


@contextmanager
def exclusive(cache: Path) -> Iterator[None]:
    """Holds the cache, so that builds started at the same time take turns."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main(arguments: Sequence[str] | None = None) -> int:
    """Builds what the command line names."""
    parser = argparse.ArgumentParser(
        prog="python3 -m nix.images",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=("bundles", "archives", "load", "closures"))
    parser.add_argument("images", nargs="*", metavar="IMAGE")
    parser.add_argument(
        "--nixpkgs", action="store_true", help="build with <nixpkgs> rather than the offline set"
    )
    parser.add_argument("--cache", type=Path, default=REPOSITORY / ".cache")
    parser.add_argument(
        "--store", type=Path, help="a directory to build in instead of the machine's store"
    )
    parser.add_argument(
        "--locked", action="store_true", help="fail where a locked file is no longer to be had"
    )
    options = parser.parse_args(arguments)
    cache = options.cache.resolve()
    store = options.store.resolve() if options.store else default_store(cache)
    builder = Builder(cache, nixpkgs=options.nixpkgs, store=store, strict=options.locked)
    try:
        with exclusive(cache):
            build(options.command, find_images(options.images), builder)
    except (BuildError, FetchError) as error:
        print(f"nix.images: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
