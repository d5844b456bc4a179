"""A bundle: a closure as a directory, for deployments without Docker.

    DIRECTORY/store/<hash>-<name>/    every path of the closure
    DIRECTORY/entry                   a relative link into the store

It holds what a namespace image holds under `/nix`.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from nix.closures import Closure


def write_bundle(closure: Closure, directory: Path) -> None:
    """Makes the directory hold exactly the closure, copying only the paths it lacks.

    A store path appears complete or not at all, the entry changes in one step, and
    what the new closure does not need goes last.
    """
    store = directory / "store"
    store.mkdir(parents=True, exist_ok=True)
    for path in closure.paths:
        if not (store / path.name).exists():
            copy_store_path(closure.physical(path), store / path.name)
    point_entry(directory, closure.entry.name)
    needed = {path.name for path in closure.paths}
    for leftover in store.iterdir():
        if leftover.name not in needed:
            remove(leftover)


def copy_store_path(source: Path, destination: Path) -> None:
    """Copies a store path; its directories stay writable, so that their owner can delete them."""
    partial = destination.with_name(f".{destination.name}.partial")
    remove(partial)
    if source.is_dir():
        shutil.copytree(source, partial, symlinks=True)
        make_writable(partial)
    else:
        shutil.copy2(source, partial, follow_symlinks=False)
    partial.rename(destination)


def point_entry(directory: Path, name: str) -> None:
    """Makes `entry` lead to a store path of the bundle."""
    entry = directory / "entry"
    target = f"store/{name}"
    if entry.is_symlink() and entry.readlink() == Path(target):
        return
    link = directory / ".entry.partial"
    link.unlink(missing_ok=True)
    link.symlink_to(target)
    link.replace(entry)


def make_writable(tree: Path) -> None:
    """Lets the owner of a copied tree change its directories, which the store forbids."""
    for folder, _, _ in os.walk(tree):
        Path(folder).chmod(stat.S_IRWXU | 0o055)


def remove(path: Path) -> None:
    """Removes a file or a tree, if it is there."""
    if path.is_dir() and not path.is_symlink():
        make_writable(path)
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
