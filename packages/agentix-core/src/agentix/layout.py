"""Lays out the entry of a namespace from its source tree (protocol: Image).

    manifest.json
    python/agentix_namespaces/<name>/
    bin/                                 where the source has programs

Bundles of a source tree and images that are built without Nix have their entry from here.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

from agentix.errors import ManifestError
from agentix.manifest import NAMESPACE_PARENT, NamespaceManifest, read_manifest

__all__ = ["copy_tree", "find_package", "lay_out_namespace", "shipped"]


def find_package(source: Path) -> tuple[NamespaceManifest, Path]:
    """Reads the manifest of a source tree and finds the package that it names.

    Raises:
        ManifestError: The manifest is missing or malformed, or its package is not there.
    """
    manifest = read_manifest(source / "manifest.json")
    package = source.joinpath(*manifest.package.split("."))
    if not package.is_dir():
        raise ManifestError(f"{source} has no package {manifest.package}: {package} is not there")
    return manifest, package


def lay_out_namespace(source: Path, entry: Path) -> NamespaceManifest:
    """Fills the entry of a namespace; nothing but the source decides what is in it.

    Args:
        source: The directory with `manifest.json`, `agentix_namespaces/<name>/` and, where the
            namespace has programs, `bin/`.
        entry: The directory to make, with those above it.

    Raises:
        ManifestError: The manifest is missing or malformed, or its package is not there.
    """
    manifest, package = find_package(source)
    copy_tree(package, entry / "python" / NAMESPACE_PARENT / package.name)
    shutil.copyfile(source / "manifest.json", entry / "manifest.json")
    (entry / "manifest.json").chmod(0o644)
    if (source / "bin").is_dir():
        copy_tree(source / "bin", entry / "bin")
    return manifest


def copy_tree(source: Path, target: Path) -> None:
    """Copies what a tree ships, with the modes 0644 and 0755, and links as they are."""
    target.mkdir(parents=True)
    for path in shipped(source):
        copied = target / path.name
        if path.is_symlink():
            copied.symlink_to(path.readlink())
        elif path.is_dir():
            copy_tree(path, copied)
        else:
            shutil.copyfile(path, copied)
            copied.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)


def shipped(directory: Path) -> Iterator[Path]:
    """Gives what of a directory belongs to a namespace, in order: not what tools leave behind."""
    for path in sorted(directory.iterdir()):
        left = path.name.startswith(".") or path.name == "__pycache__" or path.suffix == ".pyc"
        if not left and (path.is_symlink() or path.is_dir() or path.is_file()):
            yield path
