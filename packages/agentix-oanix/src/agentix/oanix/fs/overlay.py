"""CowFs: a service that is copied where it is written, and can list and commit what changed."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from agentix.oanix.errors import NoSuchFileError
from agentix.oanix.fs.memory import MemFs, MemoryDirectory, MemoryFile, MemoryLink, MemoryNode
from agentix.oanix.node import FsNode, Handle, Kind, OpenFlags
from agentix.oanix.service import FileService, Spec, unfinished_path
from agentix.oanix.walk import find, locate

__all__ = ["Change", "CowFs"]

CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between what is seen and what lies beneath.

    ```python
    from agentix.oanix import Change, CowFs, MapFs

    files = CowFs(MapFs({"a": b"old", "b": b"old"}))
    files.write("/a", b"new")
    files.remove("/b")
    assert files.diff() == [Change("changed", "/a"), Change("removed", "/b")]
    ```
    """

    kind: Literal["added", "changed", "removed"]
    """What happened to the file."""
    path: str
    """The file, from the root of the service."""


class CowFs(FileService):
    """Another service, with changes that stay in memory until they are committed.

    ```python
    from agentix.oanix import CowFs, MemFs

    base = MemFs({"config": b"old"})
    files = CowFs(base)
    files.write("/config", b"new")
    assert (files.read("/config"), base.read("/config")) == (b"new", b"old")
    files.commit()
    assert base.read("/config") == b"new"
    ```

    Args:
        base: What lies beneath; it must not be changed by others meanwhile.
        max_bytes: Bytes of changed content that fit; more is NOSPC.
    """

    kind: ClassVar[str] = "overlay"

    def __init__(self, base: FileService, *, max_bytes: int = 1 << 30) -> None:
        self._base = base
        self._max_bytes = max_bytes
        self.discard()

    def attach(self) -> FsNode:
        """Return the root directory."""
        return self._root

    def spec(self) -> Spec:
        """Describe the service by what lies beneath; the changes are not part of it."""
        return {"base": {"kind": self._base.kind, **self._base.spec()}}

    @property
    def base(self) -> FileService:
        """What lies beneath."""
        return self._base

    def discard(self) -> None:
        """Forget all changes."""
        memory = MemFs(max_bytes=self._max_bytes)
        self._root = CowDirectory(memory, self._base.attach(), "")

    def diff(self) -> list[Change]:
        """List what was changed, in the order of paths."""
        found = _differences(self._root, self._base.attach(), "")
        return sorted(found, key=lambda change: change.path)

    def commit(self) -> list[Change]:
        """Write the changes to the service beneath, each file whole or not at all.

        Returns:
            What was changed.

        Raises:
            FsError: The service beneath refuses; what was written before stays.
        """
        changes = self.diff()
        for change in changes:
            if change.kind != "removed":
                self._load(change.path)
        for change in reversed(changes):
            if change.kind == "removed":
                self._base.remove(change.path)
        for change in changes:
            if change.kind != "removed":
                self._write(change.path)
        self.discard()
        return changes

    def _load(self, path: str) -> None:
        """Copy a file that was moved, before its old place is taken away."""
        node = find(self._root, path.lstrip("/"), follow=False)
        if isinstance(node, CowFile):
            node.open(OpenFlags(write=True)).close()

    def _write(self, path: str) -> None:
        node = find(self._root, path.lstrip("/"), follow=False)
        if node.kind is Kind.DIRECTORY:
            self._base.mkdir(path)
        elif node.kind is Kind.SYMLINK:
            self._link(path, node.readlink())
        else:
            self._base.replace(path, _content(node))

    def _link(self, path: str, target: str) -> None:
        """Make a symbolic link, in the place of what is there."""
        unfinished = unfinished_path(path)
        place = locate(self._base.attach(), unfinished.lstrip("/"), follow=False)
        if place.node is not None:
            place.parent.unlink(place.name)
        place.parent.symlink(place.name, target)
        self._base.rename(unfinished, path)


class CowFile(MemoryFile):
    """A file of the service beneath until it is written."""

    __slots__ = ("lower", "origin")

    def __init__(self, fs: MemFs, lower: FsNode, origin: str) -> None:
        super().__init__(fs)
        self.lower: FsNode | None = lower
        self.origin = origin
        found = lower.stat()
        self.accessed, self.modified = found.accessed, found.modified
        self.changed = found.changed

    def content_size(self) -> int:
        """Return the size of the content in bytes."""
        return len(self.data) if self.lower is None else self.lower.stat().size

    def open(self, flags: OpenFlags) -> Handle:
        """Open the file, copying it where it may be written."""
        if self.lower is not None:
            if not flags.write and not flags.truncate:
                return LowerHandle(self, self.lower.open(flags))
            content = b"" if flags.truncate else _content(self.lower)
            self.fs.reserve(len(content))
            self.data, self.lower = bytearray(content), None
        return super().open(flags)


class LowerHandle(Handle):
    """A file of the service beneath, opened for reading before it was copied."""

    __slots__ = ("_file", "_lower")

    def __init__(self, file: CowFile, lower: Handle) -> None:
        self._file = file
        self._lower = lower

    def read(self, buffer: memoryview, offset: int) -> int:
        """Read what lies beneath, or the copy once there is one."""
        if self._file.lower is not None:
            return self._lower.read(buffer, offset)
        part = self._file.data[offset : offset + len(buffer)]
        buffer[: len(part)] = part
        return len(part)

    def size(self) -> int:
        """Return the size of the content in bytes."""
        return self._file.content_size()

    def close(self) -> None:
        """Close the file."""
        self._lower.close()


class CowDirectory(MemoryDirectory):
    """A directory that takes the names of the one beneath when it is first asked for names."""

    __slots__ = ("_lower", "_own", "origin")

    def __init__(self, fs: MemFs, lower: FsNode, origin: str) -> None:
        self._lower: FsNode | None = lower
        self._own: dict[str, MemoryNode] = {}
        self.origin = origin
        super().__init__(fs)
        found = lower.stat()
        self.accessed, self.modified = found.accessed, found.modified
        self.changed = found.changed

    @property
    def untouched(self) -> bool:
        """No name was asked for yet."""
        return self._lower is not None

    @property
    def children(self) -> dict[str, MemoryNode]:
        """The files by name."""
        lower, self._lower = self._lower, None
        if lower is not None:
            for entry in lower.entries():
                node = self._copy(lower.lookup(entry.name), f"{self.origin}/{entry.name}")
                if isinstance(node, MemoryDirectory):
                    node.up = self
                    self.links += 1
                self._own[entry.name] = node
        return self._own

    @children.setter
    def children(self, value: dict[str, MemoryNode]) -> None:
        """Keep what the directory took; the constructor of the base class sets nothing."""

    def _copy(self, lower: FsNode, origin: str) -> MemoryNode:
        if lower.kind is Kind.DIRECTORY:
            return CowDirectory(self.fs, lower, origin)
        if lower.kind is Kind.SYMLINK:
            return MemoryLink(self.fs, lower.readlink())
        return CowFile(self.fs, lower, origin)


def _differences(node: MemoryNode, base: FsNode | None, path: str) -> Iterator[Change]:
    """Compare a file with the one beneath at the same path."""
    if base is None:
        yield Change("added", path)
    elif node.kind is not base.kind:
        yield from _removed(base, path)
        yield Change("added", path)
        base = None
    elif not isinstance(node, MemoryDirectory) and not _same(node, base, path):
        yield Change("changed", path)
    if isinstance(node, MemoryDirectory):
        yield from _differences_below(node, base, path)


def _differences_below(node: MemoryDirectory, base: FsNode | None, path: str) -> Iterator[Change]:
    if isinstance(node, CowDirectory) and node.untouched and base and node.origin == path:
        return
    children = node.children
    names = {entry.name for entry in base.entries()} if base else set()
    for name, child in children.items():
        below = base.lookup(name) if base and name in names else None
        yield from _differences(child, below, f"{path}/{name}")
    for name in names - children.keys():
        assert base is not None
        yield from _removed(base.lookup(name), f"{path}/{name}")


def _removed(base: FsNode, path: str) -> Iterator[Change]:
    yield Change("removed", path)
    if base.kind is Kind.DIRECTORY:
        for entry in base.entries():
            yield from _removed(base.lookup(entry.name), f"{path}/{entry.name}")


def _same(node: MemoryNode, base: FsNode, path: str) -> bool:
    if node.kind is Kind.SYMLINK:
        return node.readlink() == base.readlink()
    if isinstance(node, CowFile) and node.lower is not None and node.origin == path:
        return True
    return _content(node) == _content(base)


def _content(node: FsNode) -> bytes:
    if node.kind is not Kind.REGULAR:
        raise NoSuchFileError("not a regular file")
    handle = node.open(OpenFlags())
    parts, offset = [], 0
    try:
        while count := handle.read(memoryview(buffer := bytearray(CHUNK)), offset):
            parts.append(bytes(buffer[:count]))
            offset += count
    finally:
        handle.close()
    return b"".join(parts)
