"""MemFs: files in memory, with directories, symbolic and hard links, times and a limit."""

import base64
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from agentix.oanix import determinism
from agentix.oanix.errors import (
    AlreadyExistsError,
    Code,
    FsError,
    NoSpaceError,
    NoSuchFileError,
    NotAFileError,
    NotDirectoryError,
)
from agentix.oanix.node import FsNode, Handle, Kind, NodeEntry, OpenFlags, Stat
from agentix.oanix.service import FileService, Spec

__all__ = ["MemFs"]

MAX_BYTES = 1 << 30
"""Bytes of content that a service holds unless it is told otherwise."""

MAX_FILES = 1_000_000
"""Files that a service holds unless it is told otherwise."""


class MemFs(FileService):
    """Files in memory.

    ```python
    from agentix.oanix import MemFs

    files = MemFs({"in": b"1 2 3"}, max_bytes=1 << 20)
    files.mkdir("/out")
    files.write("/out/sum", b"6")
    assert (files.read("/out/sum"), files.used) == (b"6", 6)
    ```

    Args:
        files: What the tree holds at first, content by path; directories are made as needed.
        max_bytes: Bytes of content that fit; more is NOSPC.
        max_files: Files and directories that fit; more is NOSPC.
    """

    kind: ClassVar[str] = "memory"

    def __init__(
        self,
        files: Mapping[str, bytes] | None = None,
        *,
        max_bytes: int = MAX_BYTES,
        max_files: int = MAX_FILES,
    ) -> None:
        self._limit = max_bytes
        self._file_limit = max_files
        self._made = 0
        self._files = 0
        self.used = 0
        """Bytes of content held."""
        self._initial = dict(files or {})
        self._root = MemoryDirectory(self)
        for path, data in self._initial.items():
            self._add(path, data)

    def attach(self) -> FsNode:
        """Return the root directory."""
        return self._root

    def spec(self) -> Spec:
        """Describe the service with the files that it held at first."""
        files = {
            path: base64.b64encode(data).decode() for path, data in sorted(self._initial.items())
        }
        return {"max_bytes": self._limit, "max_files": self._file_limit, "files": files}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Self:
        """Make the service that `spec` described."""
        files = {path: base64.b64decode(text) for path, text in spec["files"].items()}
        return cls(files, max_bytes=spec["max_bytes"], max_files=spec["max_files"])

    def reserve(self, count: int) -> None:
        """Take bytes of the limit, or return them where `count` is negative.

        Raises:
            NoSpaceError: They do not fit; nothing was taken.
        """
        if count > 0 and self.used + count > self._limit:
            raise NoSpaceError(f"{self._limit} bytes are the limit")
        self.used += count

    def number(self) -> int:
        """Count a new file and return its number.

        Raises:
            NoSpaceError: There are as many files as fit.
        """
        if self._files >= self._file_limit:
            raise NoSpaceError(f"{self._file_limit} files are the limit")
        self._files += 1
        self._made += 1
        return self._made

    def forget(self) -> None:
        """Count one file less."""
        self._files -= 1

    def _add(self, path: str, data: bytes) -> None:
        node = self._root
        *parents, name = [part for part in path.split("/") if part]
        for part in parents:
            child = node.children.get(part) or node.mkdir(part)
            assert isinstance(child, MemoryDirectory)
            node = child
        node.create(name).open(OpenFlags(write=True)).write(memoryview(data), 0)


class MemoryNode(FsNode):
    """What all files of a `MemFs` have: a number, names and times."""

    __slots__ = ("accessed", "changed", "fs", "ino", "links", "modified")

    def __init__(self, fs: MemFs) -> None:
        self.fs = fs
        self.ino = fs.number()
        self.links = 1
        self.accessed = self.modified = self.changed = determinism.now()

    @property
    def owner(self) -> object:
        """The service that holds the file."""
        return self.fs

    def stat(self) -> Stat:
        """Return what is known about the file."""
        return Stat(
            self.kind,
            self.ino,
            self.content_size(),
            self.links,
            self.accessed,
            self.modified,
            self.changed,
        )

    def content_size(self) -> int:
        """Return the size of the content in bytes."""
        return 0

    def set_times(self, accessed: int | None, modified: int | None) -> None:
        """Set times, in nanoseconds since 1970."""
        if accessed is not None:
            self.accessed = accessed
        if modified is not None:
            self.modified = modified
        self.changed = determinism.now()

    def dropped(self) -> None:
        """Take one name away."""
        self.links -= 1
        self.changed = determinism.now()
        if self.links == 0:
            self.fs.forget()


class MemoryFile(MemoryNode):
    """A regular file; it lives on, without a name, while it is open."""

    __slots__ = ("data", "handles")

    kind = Kind.REGULAR

    def __init__(self, fs: MemFs) -> None:
        super().__init__(fs)
        self.data = bytearray()
        self.handles = 0

    def content_size(self) -> int:
        """Return the size of the content in bytes."""
        return len(self.data)

    def open(self, flags: OpenFlags) -> Handle:
        """Open the file."""
        self.handles += 1
        return MemoryHandle(self)

    def dropped(self) -> None:
        """Take one name away, and the content with the last one unless the file is open."""
        super().dropped()
        self.release()

    def release(self) -> None:
        """Free the content's room once no name and no handle is left."""
        if self.links == 0 and self.handles == 0:
            self.fs.reserve(-len(self.data))
            self.data = bytearray()

    def resize(self, size: int) -> None:
        """Cut the content, or fill it up with zeros."""
        growth = size - len(self.data)
        self.fs.reserve(growth)
        if growth > 0:
            self.data.extend(bytes(growth))
        else:
            del self.data[size:]
        self.modified = self.changed = determinism.now()


class MemoryHandle(Handle):
    """An open `MemoryFile`."""

    __slots__ = ("closed", "file")

    def __init__(self, file: MemoryFile) -> None:
        self.file = file
        self.closed = False

    def read(self, buffer: memoryview, offset: int) -> int:
        """Read into a buffer from a position."""
        data = self.file.data
        count = min(len(buffer), len(data) - offset)
        if count <= 0:
            return 0
        with memoryview(data) as view:
            buffer[:count] = view[offset : offset + count]
        return count

    def write(self, data: memoryview, offset: int) -> int:
        """Write at a position, zero-filling a gap before it."""
        file, count = self.file, len(data)
        content = file.data
        size, end = len(content), offset + count
        if end > size and count:
            file.fs.reserve(end - size)
            if offset > size:
                content.extend(bytes(offset - size))
        if offset >= size:
            content += data
        else:
            _overwrite(content, data, offset, size)
        file.modified = file.changed = determinism.now()
        return count

    def size(self) -> int:
        """Return the size of the content in bytes."""
        return len(self.file.data)

    def resize(self, size: int) -> None:
        """Cut the content, or fill it up with zeros."""
        self.file.resize(size)

    def close(self) -> None:
        """Close the file; an unnamed file goes with its last handle."""
        if not self.closed:
            self.closed = True
            self.file.handles -= 1
            if self.file.links == 0:
                self.file.release()


def _overwrite(content: bytearray, data: memoryview, offset: int, size: int) -> None:
    """Write over existing content, and beyond its end what does not fit."""
    inside = min(len(data), size - offset)
    with memoryview(content) as view:
        view[offset : offset + inside] = data[:inside]
    content += data[inside:]


class MemoryLink(MemoryNode):
    """A symbolic link."""

    __slots__ = ("target",)

    kind = Kind.SYMLINK

    def __init__(self, fs: MemFs, target: str) -> None:
        super().__init__(fs)
        self.target = target

    def content_size(self) -> int:
        """Return the size of the target in bytes."""
        return len(self.target.encode())

    def readlink(self) -> str:
        """Return the path that the link holds."""
        return self.target


class MemoryDirectory(MemoryNode):
    """A directory."""

    __slots__ = ("children", "up")

    kind = Kind.DIRECTORY

    def __init__(self, fs: MemFs) -> None:
        super().__init__(fs)
        self.links = 2
        self.up: MemoryDirectory | None = None
        self.children: dict[str, MemoryNode] = {}

    def lookup(self, name: str) -> FsNode:
        """Return the file of a name."""
        try:
            return self.children[name]
        except KeyError:
            raise NoSuchFileError(name) from None

    def entries(self) -> list[NodeEntry]:
        """List the names in the order in which they were made."""
        return [NodeEntry(name, node.kind, node.ino) for name, node in self.children.items()]

    def create(self, name: str) -> FsNode:
        """Make an empty file."""
        self._check_free(name)
        node = self.children[name] = MemoryFile(self.fs)
        self._touch()
        return node

    def mkdir(self, name: str) -> FsNode:
        """Make an empty directory."""
        self._check_free(name)
        node = self.children[name] = MemoryDirectory(self.fs)
        node.up = self
        self.links += 1
        self._touch()
        return node

    def symlink(self, name: str, target: str) -> None:
        """Make a symbolic link."""
        self._check_free(name)
        self.children[name] = MemoryLink(self.fs, target)
        self._touch()

    def link(self, name: str, node: FsNode) -> None:
        """Add a name for a file of this service."""
        self._check_free(name)
        if not isinstance(node, MemoryNode) or node.fs is not self.fs:
            raise FsError(name, Code.XDEV)
        if node.kind is Kind.DIRECTORY:
            raise FsError(name, Code.PERM)
        if node.links == 0:
            raise NoSuchFileError(name)
        node.links += 1
        node.changed = determinism.now()
        self.children[name] = node
        self._touch()

    def unlink(self, name: str) -> None:
        """Remove a name that is not a directory's."""
        node = self._child(name)
        if node.kind is Kind.DIRECTORY:
            raise NotAFileError(name)
        del self.children[name]
        node.dropped()
        self._touch()

    def rmdir(self, name: str) -> None:
        """Remove an empty directory."""
        node = self._child(name)
        if not isinstance(node, MemoryDirectory):
            raise NotDirectoryError(name)
        if node.children:
            raise FsError(name, Code.NOTEMPTY)
        del self.children[name]
        node.removed()
        self.links -= 1
        self._touch()

    def removed(self) -> None:
        """Leave the tree; nothing can be made in the directory any more."""
        self.links = 0
        self.fs.forget()

    def rename(self, name: str, parent: FsNode, new_name: str) -> None:
        """Move a name from this directory into another, replacing there."""
        node = self._child(name)
        if not isinstance(parent, MemoryDirectory) or parent.fs is not self.fs:
            raise FsError(name, Code.XDEV)
        if isinstance(node, MemoryDirectory) and node.holds(parent):
            raise FsError(name, Code.INVAL)
        if parent.links == 0:
            raise NoSuchFileError(new_name)
        old = parent.children.get(new_name)
        if old is node:
            return
        if old is not None:
            _check_replaceable(node, old, new_name)
            (parent.rmdir if old.kind is Kind.DIRECTORY else parent.unlink)(new_name)
        del self.children[name]
        parent.children[new_name] = node
        self._moved(node, parent)

    def _moved(self, node: MemoryNode, parent: "MemoryDirectory") -> None:
        node.changed = determinism.now()
        if isinstance(node, MemoryDirectory):
            node.up = parent
            self.links -= 1
            parent.links += 1
        self._touch()
        parent._touch()

    def holds(self, other: "MemoryDirectory") -> bool:
        """Return whether another directory is this one or below it."""
        above: MemoryDirectory | None = other
        while above is not None and above is not self:
            above = above.up
        return above is self

    def _child(self, name: str) -> MemoryNode:
        try:
            return self.children[name]
        except KeyError:
            raise NoSuchFileError(name) from None

    def _check_free(self, name: str) -> None:
        if name in self.children:
            raise AlreadyExistsError(name)
        if self.links == 0:
            raise NoSuchFileError(name)

    def _touch(self) -> None:
        self.modified = self.changed = determinism.now()


def _check_replaceable(node: MemoryNode, old: MemoryNode, name: str) -> None:
    """Apply rename(2)'s rules on what may replace what."""
    if isinstance(old, MemoryDirectory):
        if node.kind is not Kind.DIRECTORY:
            raise NotAFileError(name)
        if old.children:
            raise FsError(name, Code.NOTEMPTY)
    elif node.kind is Kind.DIRECTORY:
        raise NotDirectoryError(name)
