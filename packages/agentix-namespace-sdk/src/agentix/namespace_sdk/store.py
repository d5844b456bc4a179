"""The store: trees of files whose names are digests of their content, and closures of them.

A tree gets the name that Nix gives it (`nix-store --add`), so that a closure is the same whether
Nix was there or not.
"""

import fcntl
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "STORE",
    "Closure",
    "add_to_store",
    "exclusive",
    "make_writable",
    "point_entry",
    "remove",
    "store_name",
    "write_bundle",
]

STORE = Path("/nix/store")
"""Where every store path lies in a sandbox."""

ALPHABET = "0123456789abcdfghijklmnpqrsvwxyz"
"""The digits of Nix's base 32."""

NAME_BYTES = 20
"""Bytes of a digest that a store path's name carries."""


@dataclass(frozen=True)
class Closure:
    """A built store path and all the store paths it refers to.

    ```python
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from agentix.namespace_sdk.store import Closure, add_to_store, write_bundle

    with TemporaryDirectory() as directory:
        root = Path(directory)
        (root / "hello").mkdir()
        (root / "hello" / "manifest.json").write_text("{}")
        closure = Closure(add_to_store(root / "hello", "hello", root), (), root)
        write_bundle(closure, root / "bundle")
        assert (root / "bundle" / "entry" / "manifest.json").read_text() == "{}"
    ```
    """

    entry: Path
    """The store path that becomes `entry`, below `/nix/store`."""
    requirements: tuple[Path, ...]
    """The other paths, sorted."""
    root: Path
    """Where the store lies on disk: `/`, or a directory that stands for it."""

    @classmethod
    def of(cls, entry: Path, requisites: str, root: Path) -> "Closure":
        """Return the closure that the output of `nix-store --query --requisites` describes."""
        paths = (Path(path) for path in requisites.split())
        return cls(entry, tuple(sorted(path for path in paths if path != entry)), root)

    def physical(self, path: Path) -> Path:
        """Return where a store path lies on disk."""
        return self.root / path.relative_to("/")

    @property
    def paths(self) -> tuple[Path, ...]:
        """Every path of the closure."""
        return (*self.requirements, self.entry)


def add_to_store(tree: Path, name: str, root: Path) -> Path:
    """Move a tree into the store below `root`, under the name that its content has.

    Args:
        tree: A file or directory on the same file system; it is gone afterwards.
        name: What the store path is called after its digest.
        root: The directory that stands for `/`.

    Returns:
        The store path, below `/nix/store`.
    """
    path = STORE / store_name(tree, name)
    target = root / path.relative_to("/")
    if target.exists():
        remove(tree)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        tree.rename(target)
    return path


def store_name(tree: Path, name: str) -> str:
    """Return the name of a tree in the store: of its content alone, not of times and owners.

    ```python
    from pathlib import Path

    from agentix.namespace_sdk.store import store_name

    assert store_name(Path("LICENSE"), "licence").endswith("-licence")
    ```

    Args:
        tree: A file, a link or a directory.
        name: What it is called; a character that the store does not take becomes `-`.
    """
    called = re.sub(r"[^0-9A-Za-z+._?=-]", "-", name).lstrip(".")
    identity = f"source:sha256:{_content_digest(tree).hex()}:{STORE}:{called}"
    digest = hashlib.sha256(identity.encode()).digest()
    folded = bytearray(NAME_BYTES)
    for index, byte in enumerate(digest):
        folded[index % NAME_BYTES] ^= byte
    return f"{_base32(bytes(folded))}-{called}"


def _base32(content: bytes) -> str:
    """Return bytes in Nix's base 32, which has the last digit first."""
    number = int.from_bytes(content, "little")
    digits = len(content) * 8 // 5
    return "".join(ALPHABET[number >> (5 * index) & 31] for index in reversed(range(digits)))


def _content_digest(tree: Path) -> bytes:
    """Return the SHA-256 of a tree in Nix's archive format, which has no times and owners."""
    digest = hashlib.sha256(_text(b"nix-archive-1"))
    for piece in _node(tree):
        digest.update(piece)
    return digest.digest()


def _node(path: Path) -> Iterator[bytes]:
    yield _texts("(", "type")
    if path.is_symlink():
        yield _texts("symlink", "target", os.fspath(path.readlink()))
    elif path.is_dir():
        yield _texts("directory")
        for child in sorted(path.iterdir(), key=lambda child: os.fsencode(child.name)):
            yield _texts("entry", "(", "name", child.name, "node")
            yield from _node(child)
            yield _texts(")")
    else:
        yield _texts("regular")
        if path.stat().st_mode & stat.S_IXUSR:
            yield _texts("executable", "")
        yield _texts("contents") + _text(path.read_bytes())
    yield _texts(")")


def _texts(*words: str) -> bytes:
    return b"".join(_text(os.fsencode(word)) for word in words)


def _text(content: bytes) -> bytes:
    return len(content).to_bytes(8, "little") + content + bytes(-len(content) % 8)


def write_bundle(closure: Closure, directory: Path) -> None:
    """Make a directory hold exactly the closure, copying only the paths it lacks.

        DIRECTORY/store/<hash>-<name>/    every path of the closure
        DIRECTORY/entry                   a relative link into the store

    A store path appears complete or not at all, the entry changes in one step, and
    what the new closure does not need goes last.
    """
    store = directory / "store"
    store.mkdir(parents=True, exist_ok=True)
    for path in closure.paths:
        if not (store / path.name).exists():
            _copy_store_path(closure.physical(path), store / path.name)
    point_entry(directory, closure.entry.name)
    needed = {path.name for path in closure.paths}
    for leftover in store.iterdir():
        if leftover.name not in needed:
            remove(leftover)


def _copy_store_path(source: Path, destination: Path) -> None:
    """Copy a store path; its directories stay writable, so that their owner can delete them."""
    partial = destination.with_name(f".{destination.name}.partial")
    remove(partial)
    if source.is_dir():
        shutil.copytree(source, partial, symlinks=True)
        make_writable(partial)
    else:
        shutil.copy2(source, partial, follow_symlinks=False)
    partial.rename(destination)


def point_entry(directory: Path, name: str) -> None:
    """Make `entry` lead to a store path of the bundle."""
    entry = directory / "entry"
    target = f"store/{name}"
    if entry.is_symlink() and entry.readlink() == Path(target):
        return
    link = directory / ".entry.partial"
    link.unlink(missing_ok=True)
    link.symlink_to(target)
    link.replace(entry)


def make_writable(tree: Path) -> None:
    """Permit the owner of a copied tree to change its directories, which the store forbids."""
    for folder, _, _ in os.walk(tree):
        Path(folder).chmod(stat.S_IRWXU | 0o055)


def remove(path: Path) -> None:
    """Remove a file or a tree, if it is there."""
    if path.is_dir() and not path.is_symlink():
        make_writable(path)
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def exclusive(cache: Path) -> Iterator[None]:
    """Hold the lock of a cache, so that builds started at the same time take turns."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
