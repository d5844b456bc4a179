"""The rules about what an image holds under `/nix`, and a bundle in its directory.

Both are looked at as files on disk: a bundle where it is, an image after it was unpacked.
"""

import mmap
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from agentix.namespace_sdk.check.finding import Finding
from agentix.namespace_sdk.check.manifest import check_manifest
from agentix.namespace_sdk.check.source import check_tree
from agentix.namespace_sdk.check.tree import Tree

__all__ = ["ClosureFiles", "check_bundle", "check_closure", "check_interpreters"]

HASH = "[0-9a-df-np-sv-z]{32}"
"""A digest in Nix's base 32."""

STORE_NAME = re.compile(rf"{HASH}-[\w+.?=-]+", re.ASCII)
REFERENCE = re.compile(rf"/nix/store/({HASH})-[\w+.?=-]*".encode(), re.ASCII)
STORE = "/nix/store/"


@dataclass
class ClosureFiles:
    """The files of a closure.

    Args:
        root: The directory that stands for `/nix`; absolute links lead below it where they can.
        shown: How the directory is shown.
    """

    root: Path
    shown: str

    @property
    def entry(self) -> Path:
        """The directory, or the link to it, that is `/nix/entry`."""
        return self.root / "entry"

    @property
    def store(self) -> Path:
        """The directory that is `/nix/store`."""
        return self.root / "store"

    def show(self, path: Path) -> str:
        """Gives a path as the user knows it."""
        return str(Path(self.shown, path.relative_to(self.root)))

    def find(self, path: Path) -> Path | None:
        """Follows a path of the closure through all links; `None` where it leads out or nowhere.

        Args:
            path: A path below the root.
        """
        for _ in range(40):  # as many links as the kernel follows
            for part in [*reversed(path.parents), path]:
                if part.is_symlink() and part.is_relative_to(self.root) and part != self.root:
                    target = self.target(part)
                    if target is None:
                        return None
                    path = target / path.relative_to(part)
                    break
            else:
                return path if path.exists() and path.is_relative_to(self.root) else None
        return None

    def target(self, link: Path) -> Path | None:
        """Gives where a link leads, one step; `None` where that is outside of the closure."""
        target = str(link.readlink())
        if target.startswith(STORE):
            return self.root / "store" / target.removeprefix(STORE)
        if target.startswith("/"):
            return None
        joined = Path(_normal(link.parent / target))
        return joined if joined.is_relative_to(self.root) else None

    @cached_property
    def files(self) -> list[Path]:
        """Everything below the root, in the order of names; links are not followed."""
        return sorted(_walk(self.root))

    @cached_property
    def hashes(self) -> set[bytes]:
        """The digests of the store paths that are there."""
        names = (path.name for path in self.store.iterdir()) if self.store.is_dir() else ()
        return {name[:32].encode() for name in names}


def _normal(path: Path) -> str:
    """Takes `..` out of a path, as far as its own parts tell."""
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return str(Path(*parts))


def _walk(directory: Path) -> Iterator[Path]:
    for path in directory.iterdir():
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _walk(path)


def check_bundle(directory: Path) -> list[Finding]:
    """Checks a bundle: the content of `/nix` as a directory.

    Args:
        directory: The directory with `entry`, and `store` where there is one.
    """
    closure = ClosureFiles(directory.resolve(), str(directory))
    findings = check_closure(closure)
    if closure.store.is_dir():
        findings += check_interpreters(closure)
    return findings


def check_closure(closure: ClosureFiles, needs_store: bool = False) -> list[Finding]:
    """Checks the files of a closure, and the namespace that is its entry.

    Args:
        closure: The files.
        needs_store: Whether there must be a store, as there must in an image.
    """
    findings = [*_check_entry(closure), *_check_store(closure, needs_store)]
    findings += _check_modes(closure)
    findings += _check_references(closure)
    entry = closure.find(closure.entry)
    if entry is None or not entry.is_dir():
        return findings
    tree = Tree.of_entry(entry, closure.show(closure.entry))
    manifest, wrong = check_manifest(tree)
    return findings + wrong + ([] if manifest is None else check_tree(tree, manifest))


def _check_entry(closure: ClosureFiles) -> Iterator[Finding]:
    entry = closure.entry
    shown = closure.show(entry)
    if entry.is_symlink() and str(entry.readlink()).startswith("/"):
        # A mount has another path than the image, so that an absolute link leads out of it.
        yield Finding(shown, None, "AGX502", f"it is an absolute link, to {entry.readlink()}")
    elif entry.is_symlink() and closure.find(entry) is None:
        yield Finding(shown, None, "AGX502", f"it leads to {entry.readlink()}, which is not there")
    elif not entry.is_dir():
        yield Finding(shown, None, "AGX502", "there is no directory entry")


def _check_store(closure: ClosureFiles, needed: bool) -> Iterator[Finding]:
    store = closure.store
    names = sorted(path.name for path in store.iterdir()) if store.is_dir() else []
    if needed and not names:
        yield Finding(closure.show(store), None, "AGX506", "there are no store paths")
    for name in names:
        if not STORE_NAME.fullmatch(name):
            reason = f"{name!r} is not <hash>-<name>, with 32 digits of Nix's base 32"
            yield Finding(closure.show(store / name), None, "AGX506", reason)


def _check_modes(closure: ClosureFiles) -> Iterator[Finding]:
    for path in [closure.root, *closure.files]:
        mode = path.lstat().st_mode
        if not stat.S_ISLNK(mode) and mode & stat.S_IWOTH:
            reason = f"its mode is {stat.S_IMODE(mode):o}"
            yield Finding(closure.show(path), None, "AGX505", reason)


def _check_references(closure: ClosureFiles) -> Iterator[Finding]:
    for path in closure.files:
        if path.is_symlink():
            if path != closure.entry and closure.find(path) is None:
                reason = f"the link leads to {path.readlink()}, which is not in the closure"
                yield Finding(closure.show(path), None, "AGX503", reason)
        elif path.is_file():
            for reference in _dangling(path, closure.hashes):
                reason = f"it refers to {reference}, which is not in the closure"
                yield Finding(closure.show(path), None, "AGX503", reason)


def _dangling(path: Path, known: set[bytes]) -> list[str]:
    """Gives the store paths that a file mentions and the closure lacks."""
    if path.stat().st_size == 0:
        return []
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        found = {match[0] for match in REFERENCE.finditer(content) if match[1] not in known}
    return sorted(reference.decode() for reference in found)


def check_interpreters(closure: ClosureFiles) -> Iterator[Finding]:
    """Checks what the kernel looks for when it starts a program, where none can be started."""
    programs = closure.find(closure.entry / "bin")
    for path in sorted(programs.iterdir()) if programs is not None else ():
        program, shown = closure.find(path), closure.show(closure.entry / "bin" / path.name)
        if program is None or not program.is_file():
            continue  # the dangling link is told already
        if not program.stat().st_mode & 0o111:
            yield Finding(shown, None, "AGX504", "nobody may execute it")
        interpreter = interpreter_of(program)
        if interpreter is not None and not interpreter.startswith(STORE):
            reason = f"it needs {interpreter}, which is not in the closure"
            yield Finding(shown, None, "AGX504", reason)


def interpreter_of(program: Path) -> str | None:
    """Gives what the kernel starts for a program: of `#!`, or of an ELF file's PT_INTERP (elf(5)).

    A static program has none, and neither has one of an unknown form.
    """
    with program.open("rb") as file:
        head = file.read(64)
        if head.startswith(b"#!"):
            file.seek(2)
            words = file.readline(255).split()
            return words[0].decode(errors="replace") if words else None
        if not head.startswith(b"\x7fELF\x02"):
            return None
        order: Literal["little", "big"] = "little" if head[5] == 1 else "big"
        table = int.from_bytes(head[32:40], order)
        size, count = (int.from_bytes(head[at : at + 2], order) for at in (54, 56))
        for number in range(count):
            file.seek(table + number * size)
            header = file.read(56)
            if int.from_bytes(header[0:4], order) == 3:
                file.seek(int.from_bytes(header[8:16], order))
                text = file.read(int.from_bytes(header[32:40], order))
                return text.rstrip(b"\0").decode(errors="replace")
    return None
