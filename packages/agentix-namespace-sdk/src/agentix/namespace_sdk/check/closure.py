"""Closures held against the rules: what an image holds under `/nix`, and a bundle in its directory.

Both are read as files on disk: a bundle where it is, an image after it was unpacked.
"""

import mmap
import re
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from agentix.namespace_sdk.check.rules import Breach, Finding, rule
from agentix.namespace_sdk.check.source import check_manifest, check_tree
from agentix.namespace_sdk.check.tree import NamespacePackage, Tree

__all__ = [
    "ClosureFiles",
    "check_bundle",
    "check_closure",
    "interpreter_of",
    "no_volume",
    "unusable_program",
]

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
        """Return a path as the user knows it."""
        return str(Path(self.shown, path.relative_to(self.root)))

    def breach(self, path: Path, message: str) -> Breach:
        """Return a breach at one of the files."""
        return Breach(self.show(path), message)

    def find(self, path: Path) -> Path | None:
        """Return where a path ends after all links; `None` where it leads out or nowhere.

        Args:
            path: A path below the root.
        """
        for _ in range(40):  # as many links as the kernel follows (man 7 path_resolution)
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
        """Return where a link leads, one step; `None` where that is outside of the closure."""
        target = str(link.readlink())
        if target.startswith(STORE):
            return self.root / "store" / target.removeprefix(STORE)
        if target.startswith("/"):
            return None
        joined = Path(_normal(link.parent / target))
        return joined if joined.is_relative_to(self.root) else None

    @cached_property
    def programs(self) -> dict[str, Path]:
        """The programs in `bin` of the entry, each with its path, by name."""
        directory = self.find(self.entry / "bin")
        paths = sorted(directory.iterdir()) if directory is not None else ()
        return {path.name: path for path in paths}

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
    """Return a path without `..`, links not looked up."""
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
    """Check a bundle: the content of `/nix` as a directory.

    Args:
        directory: The directory with `entry`, and `store` where there is one.
    """
    closure = ClosureFiles(directory.resolve(), str(directory))
    findings = check_closure(closure)
    if closure.store.is_dir():
        findings += unusable_program(closure)
    return findings


def check_closure(closure: ClosureFiles, needs_store: bool = False) -> list[Finding]:
    """Check the files of a closure, and the namespace that is its entry.

    Args:
        closure: The files.
        needs_store: Whether there must be a store, as there must in an image.
    """
    findings = [
        *bad_entry(closure),
        *bad_store(closure, needs_store),
        *writable_file(closure),
        *escaping_reference(closure),
    ]
    entry = closure.find(closure.entry)
    if entry is None or not entry.is_dir():
        return findings
    tree = Tree.of_entry(entry, closure.show(closure.entry))
    manifest, wrong = check_manifest(tree)
    package = [] if manifest is None else check_tree(NamespacePackage(tree, manifest))
    return findings + wrong + package


@rule(
    "AGX501",
    "the image does not declare `VOLUME /nix`",
    fix="write `VOLUME /nix` in the Dockerfile",
)
def no_volume(reference: str, volumes: Collection[str]) -> Iterator[Breach]:
    """A deployment mounts a volume at `/nix` of a container that it makes of the image.

    The engine fills the volume because the image declares it. Without the declaration, an empty
    volume is mounted, and the sandbox has no namespace.
    """
    if "/nix" not in volumes:
        yield Breach(reference, "VOLUME /nix is missing")


@rule(
    "AGX502",
    "no entry, or one that is not relative",
    fix="make `/nix/entry` a directory, or a relative link to one in the store",
)
def bad_entry(closure: ClosureFiles) -> Iterator[Breach]:
    """In a sandbox the content of `/nix` lies at `/mnt/c<digest>`.

    `entry` is a directory, or a link into the store beside it, and a relative one: an absolute
    link would lead to where nothing is.
    """
    entry = closure.entry
    if entry.is_symlink() and str(entry.readlink()).startswith("/"):
        yield closure.breach(entry, f"it is an absolute link, to {entry.readlink()}")
    elif entry.is_symlink() and closure.find(entry) is None:
        yield closure.breach(entry, f"it leads to {entry.readlink()}, which is not there")
    elif not entry.is_dir():
        yield closure.breach(entry, "there is no directory entry")


@rule(
    "AGX503",
    "a reference leads out of the closure",
    fix="copy the whole closure: `nix-store --query --requisites` lists it",
)
def escaping_reference(closure: ClosureFiles) -> Iterator[Breach]:
    """Files of a store path refer to others by absolute paths.

    A sandbox makes these true for the store paths that its mounts bring. A closure that lacks one
    works on the machine that built it, whose store has it, and nowhere else. The check reads every
    file for references, as Nix does, and follows every link.
    """
    for path in closure.files:
        if path.is_symlink():
            if path != closure.entry and closure.find(path) is None:
                reason = f"the link leads to {path.readlink()}, which is not in the closure"
                yield closure.breach(path, reason)
        elif path.is_file():
            for reference in _dangling(path, closure.hashes):
                reason = f"it refers to {reference}, which is not in the closure"
                yield closure.breach(path, reason)


def _dangling(path: Path, known: set[bytes]) -> list[str]:
    """Return the store paths that a file mentions and the closure lacks."""
    if path.stat().st_size == 0:  # which mmap refuses
        return []
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        found = {match[0] for match in REFERENCE.finditer(content) if match[1] not in known}
    return sorted(reference.decode() for reference in found)


@rule(
    "AGX504",
    "a program does not start in a bare image",
    fix="let its interpreter and libraries be store paths of the closure",
)
def unusable_program(closure: ClosureFiles) -> Iterator[Breach]:
    """A task image may have no shell, no Python and no C library.

    So a program brings all that it needs. The check starts each program of an image with `--help`,
    in a container of an image without any file; one that still runs after ten seconds has started,
    and what it makes of `--help` does not matter. In a bundle, and in an image for another
    processor than the engine's, it looks at the interpreter that the kernel would look for.
    """
    for name, path in closure.programs.items():
        shown = closure.entry / "bin" / name
        program = closure.find(path)
        if program is None or not program.is_file():
            continue  # a dangling link is AGX503
        if not program.stat().st_mode & 0o111:
            yield closure.breach(shown, "nobody may execute it")
        interpreter = interpreter_of(program)
        if interpreter is not None and not interpreter.startswith(STORE):
            yield closure.breach(shown, f"it needs {interpreter}, which is not in the closure")


@rule("AGX505", "something is writable for everybody", fix="take the permission away: `chmod o-w`")
def writable_file(closure: ClosureFiles) -> Iterator[Breach]:
    """What is in a closure is the same for all sandboxes that mount it.

    A file or a directory that everybody may write to can be changed by a task wherever it is not
    mounted read-only, and a change would be in all of them.
    """
    for path in [closure.root, *closure.files]:
        mode = path.lstat().st_mode
        if not stat.S_ISLNK(mode) and mode & stat.S_IWOTH:
            yield closure.breach(path, f"its mode is {stat.S_IMODE(mode):o}")


@rule(
    "AGX506",
    "the store is missing or not addressed by content",
    fix="let all of `/nix/store` be `<hash>-<name>`",
)
def bad_store(closure: ClosureFiles, needed: bool) -> Iterator[Breach]:
    """Sandboxes link the store paths of all mounts into one `/nix/store`.

    That works because a name is made of a digest of the content: where two mounts bring the same
    name, they bring the same files. `agentix-namespace build` and Nix give such names. An image
    needs a store; a bundle that runs on the host's own interpreter has none.
    """
    store = closure.store
    names = sorted(path.name for path in store.iterdir()) if store.is_dir() else []
    if needed and not names:
        yield closure.breach(store, "there are no store paths")
    for name in names:
        if not STORE_NAME.fullmatch(name):
            reason = f"{name!r} is not <hash>-<name>, with 32 digits of Nix's base 32"
            yield closure.breach(store / name, reason)


def interpreter_of(program: Path) -> str | None:
    """Return what the kernel starts for a program: of `#!`, or an ELF file's PT_INTERP (man 5 elf).

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
            if int.from_bytes(header[0:4], order) == 3:  # PT_INTERP
                file.seek(int.from_bytes(header[8:16], order))
                text = file.read(int.from_bytes(header[32:40], order))
                return text.rstrip(b"\0").decode(errors="replace")
    return None
