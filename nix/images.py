"""Build the runtime and the namespaces into images and bundles.

    python -m nix.images bundles [IMAGE ...]     directories for deployments without Docker
    python -m nix.images archives [IMAGE ...]    archives for `docker load`
    python -m nix.images load [IMAGE ...]        the same, loaded into Docker and tagged
    python -m nix.images closures [IMAGE ...]    nothing but the store paths, printed

IMAGE is `runtime`, the name of a directory in `namespaces/`, or the path of any
directory that holds a namespace's `default.nix` and `manifest.json`; without any,
the runtime and every namespace of this repository. Bundles go to
`.cache/bundles/<image>/<version>/`, archives to `.cache/images/<image>/<version>.tar`,
and tags are `<image>:<version>`, with `agentix/` before every image's name.

Without changes nothing is built, copied or loaded again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentix.namespace_sdk.build.archive import Archive, Contents, ensure_archive, ensure_loaded
from agentix.namespace_sdk.store import Closure, exclusive, write_bundle
from nix.closures import NIX, Builder, BuildError, default_store
from nix.offline.command import FetchError

REPOSITORY = NIX.parent
NAMESPACES = REPOSITORY / "namespaces"
RUNTIME_PROJECT = REPOSITORY / "packages" / "agentix-runtime" / "pyproject.toml"


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


def ensure_image(image: Image, closure: Closure, directory: Path) -> Archive:
    """Writes the image's archive, unless the one there is of the same closure."""
    contents = Contents(closure, image.tag, image.labels)
    return ensure_archive(contents, directory / image.repository / f"{image.version}.tar")


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
                archive = ensure_image(image, closure, builder.cache / "images")
                print(f"{image.tag} {archive.image_id} {archive.path}")
            case _:
                archive = ensure_image(image, closure, builder.cache / "images")
                ensure_loaded(archive, image.tag)
                print(f"{image.tag} {archive.image_id}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Builds what the command line names."""
    parser = argparse.ArgumentParser(
        prog="python -m nix.images",
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
