"""FileService: a tree of files that can be mounted, and its interface by path."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, Self

from agentix.oanix.errors import (
    AlreadyExistsError,
    Code,
    FsError,
    NamespaceError,
    NoSuchFileError,
    NotAFileError,
)
from agentix.oanix.node import FsNode, Handle, Kind, OpenFlags
from agentix.oanix.walk import ResolvedPath, entry, find, locate, make, move

__all__ = ["DirEntry", "File", "FileService", "Metadata", "Spec", "open_place", "unfinished_path"]

Spec = dict[str, Any]
"""A service as JSON: its `kind` and the arguments that make another one like it."""

CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Metadata:
    """What is known about the file at a path."""

    is_dir: bool
    """The file is a directory."""
    size: int
    """Bytes of content."""
    modified: int
    """Nanoseconds since 1970."""
    kind: Kind
    """The type of the file."""


@dataclass(frozen=True, slots=True)
class DirEntry:
    """One name in a directory."""

    name: str
    """The name, without slashes."""
    is_dir: bool
    """The name is a directory's."""
    size: int
    """Bytes of content."""


class File:
    """An open file with a position, as `FileService.open` returns it; a context manager."""

    def __init__(self, handle: Handle, append: bool = False) -> None:
        self._handle = handle
        self._append = append
        self.position = 0
        """Where the next read or write is, in bytes."""

    def read(self, size: int = -1) -> bytes:
        """Read up to `size` bytes, or to the end where it is negative."""
        if size >= 0:
            return self._read_once(size)
        parts = []
        while part := self._read_once(CHUNK):
            parts.append(part)
        return b"".join(parts)

    def _read_once(self, size: int) -> bytes:
        buffer = bytearray(size)
        count = self._handle.read(memoryview(buffer), self.position)
        self.position += count
        return bytes(buffer[:count])

    def write(self, data: bytes) -> int:
        """Write all bytes, and return their number."""
        view = memoryview(data)
        if self._append:
            self.position = self._handle.append(view)
            return len(data)
        written = 0
        while written < len(data):
            written += self._handle.write(view[written:], self.position + written)
        self.position = 0 if self._handle.messages else self.position + written
        return written

    def seek(self, position: int) -> None:
        """Set the position, in bytes from the start."""
        self.position = position

    def flush(self) -> None:
        """Make what was written so far lasting."""
        self._handle.sync()

    def close(self) -> None:
        """Close the file."""
        self._handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class FileService(ABC):
    """A tree of files that can be mounted in a namespace.

    A service implements `attach`; the operations by path are made of it. Paths may begin with a
    slash, and `/` is the root. Every operation raises `FsError`.

    ```python
    from agentix.oanix import FileService, MapFs, MemFs

    def copy(name: str, source: FileService, target: FileService) -> None:
        target.write(name, source.read(name))

    memory = MemFs()
    copy("/note", MapFs({"note": b"buy milk"}), memory)
    assert memory.stat("/note").size == 8
    ```
    """

    kind: ClassVar[str] = ""
    """The name of the service in a namespace's specification."""

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> "FileService":
        """Make the service that `spec` described.

        Raises:
            NamespaceError: Services of this class are not made from JSON.
        """
        raise NamespaceError(f"a {cls.__name__} cannot be made from JSON")

    @abstractmethod
    def attach(self) -> FsNode:
        """Return the root of the tree, a directory or a single file."""

    def spec(self) -> Spec:
        """Describe the service as JSON.

        Raises:
            NamespaceError: The service holds something that JSON cannot.
        """
        raise NamespaceError(f"a {type(self).__name__} cannot be written as JSON")

    def open(self, path: str, flags: OpenFlags = OpenFlags()) -> File:  # noqa: B008 - immutable
        """Open the file at a path.

        Raises:
            NoSuchFileError: There is no such file and `flags.create` is not set.
            NotAFileError: The path is a directory's.
        """
        place = locate(self.attach(), _relative(path))
        return File(open_place(place, flags), flags.append)

    def readdir(self, path: str = "/") -> list[DirEntry]:
        """List a directory in the order of names."""
        node = find(self.attach(), _relative(path))
        return [_dir_entry(node, name) for name in sorted(e.name for e in node.entries())]

    def stat(self, path: str) -> Metadata:
        """Return what is known about the file at a path, following symbolic links."""
        found = find(self.attach(), _relative(path)).stat()
        return Metadata(
            is_dir=found.kind is Kind.DIRECTORY,
            size=found.size,
            modified=found.modified,
            kind=found.kind,
        )

    def mkdir(self, path: str) -> None:
        """Make a directory."""
        place = entry(self.attach(), _relative(path).rstrip("/") or ".")
        if place.node is not None:
            raise AlreadyExistsError(path)
        place.parent.mkdir(place.name)

    def remove(self, path: str) -> None:
        """Remove a file, a symbolic link or an empty directory."""
        place = _existing(self.attach(), path)
        if place.node is not None and place.node.kind is Kind.DIRECTORY:
            place.parent.rmdir(place.name)
        else:
            place.parent.unlink(place.name)

    def rename(self, old: str, new: str) -> None:
        """Move a file or a directory, replacing what the new path names."""
        root = self.attach()
        move(_existing(root, old), entry(root, _relative(new)))

    def read(self, path: str) -> bytes:
        """Read a whole file."""
        with self.open(path) as file:
            return file.read()

    def write(self, path: str, data: bytes) -> None:
        """Write a whole file, made where it is missing."""
        with self.open(path, OpenFlags(False, write=True, create=True, truncate=True)) as file:
            file.write(data)

    def replace(self, path: str, data: bytes) -> None:
        """Write a whole file so that at every moment it has its old content or the new."""
        unfinished = unfinished_path(path)
        self.write(unfinished, data)
        self.rename(unfinished, path)


def unfinished_path(path: str) -> str:
    """Return the path at which a file is made that then takes the place of another."""
    parent, _, name = path.rpartition("/")
    return f"{parent}/.{name}.unfinished"


def open_place(place: ResolvedPath, flags: OpenFlags) -> Handle:
    """Open what a walk ended at, making the file where the flags say so."""
    node = place.node
    if node is None:
        if not flags.create:
            raise NoSuchFileError(place.name)
        if place.directory:
            raise NotAFileError(place.name)
        node = make(place)
    if node.kind is Kind.SYMLINK:
        raise FsError(place.name, Code.LOOP)
    handle = node.open(flags)
    if flags.truncate:
        handle.resize(0)
    return handle


def _existing(root: FsNode, path: str) -> ResolvedPath:
    place = entry(root, _relative(path))
    if place.node is None:
        raise NoSuchFileError(path)
    if not place.name:
        raise FsError(path, Code.BUSY)
    return place


def _relative(path: str) -> str:
    return path.lstrip("/") or "."


def _dir_entry(directory: FsNode, name: str) -> DirEntry:
    found = directory.lookup(name).stat()
    return DirEntry(name, found.kind is Kind.DIRECTORY, found.size)


ServiceFactory = Callable[[Mapping[str, Any]], FileService]
"""Makes a service of its specification."""
