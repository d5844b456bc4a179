"""FsNode and Handle: what every file of every service is made of.

A service answers `attach()` with its root node; a program walks from there by names. A handle is an
open file. The interface by path, `FileService`, stands on top of this one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from agentix.oanix.errors import (
    Code,
    FsError,
    NotAFileError,
    NotDirectoryError,
    PermissionDeniedError,
)

__all__ = ["FsNode", "Handle", "Kind", "NodeEntry", "OpenFlags", "Stat"]


class Kind(IntEnum):
    """The file types of WASI preview 1 (`filetype` in wasi_snapshot_preview1.witx)."""

    UNKNOWN = 0
    CHARACTER = 2
    DIRECTORY = 3
    REGULAR = 4
    SYMLINK = 7


class Stat(NamedTuple):
    """What is known about a file."""

    kind: Kind
    """The type of the file."""
    ino: int
    """The number of the file within its service."""
    size: int = 0
    """Bytes of content; 0 where it is not known before reading."""
    links: int = 1
    """Names that lead to the file."""
    accessed: int = 0
    """Nanoseconds since 1970."""
    modified: int = 0
    """Nanoseconds since 1970."""
    changed: int = 0
    """Nanoseconds since 1970."""


class NodeEntry(NamedTuple):
    """One name in a directory."""

    name: str
    """The name, without slashes."""
    kind: Kind
    """The type of the file that it names."""
    ino: int
    """The number of that file within its service."""


@dataclass(frozen=True, slots=True)
class OpenFlags:
    r"""How a file is opened.

    ```python
    from agentix.oanix import MemFs, OpenFlags

    files = MemFs({"log": b"one\n"})
    with files.open("/log", OpenFlags(write=True, append=True)) as log:
        log.write(b"two\n")
    assert files.read("/log") == b"one\ntwo\n"
    ```
    """

    read: bool = True
    """Reading is asked for."""
    write: bool = False
    """Writing is asked for."""
    create: bool = False
    """A missing file is created."""
    truncate: bool = False
    """Existing content is dropped."""
    append: bool = False
    """Every write goes to the end."""


class Handle:
    """An open file; a handle of a file that is not a stream keeps no position of its own."""

    __slots__ = ()

    stream = False
    """A stream has no positions: reading may wait, and what was read is gone."""

    messages = False
    """Writes are messages: they move no position, and reading starts at the beginning again."""

    def read(self, buffer: memoryview, offset: int) -> int:
        """Read into a buffer from a position, and return the bytes read; 0 is the end."""
        raise FsError("the file cannot be read", Code.BADF)

    def write(self, data: memoryview, offset: int) -> int:
        """Write at a position, zero-filling a gap before it, and return the bytes written."""
        raise FsError("the file cannot be written", Code.BADF)

    def append(self, data: memoryview) -> int:
        """Write at the end, and return the position after the written bytes."""
        end = self.size()
        return end + self.write(data, end)

    def size(self) -> int:
        """Return the size of the content in bytes."""
        return 0

    def resize(self, size: int) -> None:
        """Cut the content, or fill it up with zeros, to a size in bytes."""
        raise FsError("the file has no size to set", Code.INVAL)

    def stat(self) -> Stat | None:
        """Return what is known about the open file, where its node would find it by name only."""
        return None

    def set_times(self, accessed: int | None, modified: int | None) -> bool:
        """Set the open file's times, or return False where its node can do so.

        Args:
            accessed: Nanoseconds since 1970; `None` leaves it as it is.
            modified: The same.
        """
        return False

    def sync(self) -> None:
        """Make what was written so far lasting."""

    def close(self) -> None:
        """Close the file; what a service does with the written bytes, it does here."""

    def ready(self, writing: bool) -> bool:
        """Return whether reading, or writing, would go on without waiting."""
        return True

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake`, from any thread, when `ready` may have changed; return the undoing."""
        return _nothing


def _nothing() -> None:
    """Undo a watch of a file that is always ready."""


class FsNode(ABC):
    """A file of a service: content, a directory or a symbolic link.

    Every operation raises `FsError`; one that a service does not offer is `PermissionDeniedError`.
    """

    __slots__ = ()

    kind = Kind.REGULAR
    """The type of the file."""

    @property
    def owner(self) -> object:
        """The service that holds the file; renaming and linking stay within one."""
        return None

    def underlying(self) -> "FsNode":
        """Return the directory that changes go to; another one where mounts lie over it."""
        return self

    def hold(self) -> "FsNode":
        """Return the directory to keep open: the same one when it is renamed or removed."""
        return self

    def check_unmounted(self, name: str) -> None:
        """Refuse a name that a mount occupies.

        Raises:
            FsError: BUSY: the name is a mount's, or leads to one.
        """
        return

    @abstractmethod
    def stat(self) -> Stat:
        """Return what is known about the file."""

    def lookup(self, name: str) -> "FsNode":
        """Return the file of a name in this directory.

        Raises:
            NoSuchFileError: The directory has no such name.
            NotDirectoryError: This is not a directory.
        """
        raise NotDirectoryError(name)

    def entries(self) -> list[NodeEntry]:
        """List the names in this directory, without `.` and `..`.

        Raises:
            NotDirectoryError: This is not a directory.
        """
        raise NotDirectoryError

    def open(self, flags: OpenFlags) -> Handle:
        """Open the file; `create` and `append` are the caller's business.

        Raises:
            NotAFileError: This is a directory.
        """
        if self.kind is Kind.DIRECTORY:
            raise NotAFileError
        raise PermissionDeniedError("the file cannot be opened")

    def readlink(self) -> str:
        """Return the path that a symbolic link holds.

        Raises:
            FsError: INVAL: this is not a symbolic link.
        """
        raise FsError("not a symbolic link", Code.INVAL)

    def create(self, name: str) -> "FsNode":
        """Make an empty file in this directory."""
        raise self._denied(name)

    def mkdir(self, name: str) -> "FsNode":
        """Make an empty directory in this directory."""
        raise self._denied(name)

    def symlink(self, name: str, target: str) -> None:
        """Make a symbolic link in this directory."""
        raise self._denied(name)

    def link(self, name: str, node: "FsNode") -> None:
        """Add a name in this directory for a file of the same service."""
        raise self._denied(name)

    def unlink(self, name: str) -> None:
        """Remove a name that is not a directory's."""
        raise self._denied(name)

    def rmdir(self, name: str) -> None:
        """Remove an empty directory."""
        raise self._denied(name)

    def rename(self, name: str, parent: "FsNode", new_name: str) -> None:
        """Move a name from this directory into another of the same service, replacing there."""
        raise self._denied(name)

    def set_times(self, accessed: int | None, modified: int | None) -> None:
        """Set times, in nanoseconds since 1970; `None` leaves one as it is."""
        raise PermissionDeniedError("the times of the file cannot be set")

    def _denied(self, name: str) -> FsError:
        if self.kind is not Kind.DIRECTORY:
            return NotDirectoryError(name)
        return PermissionDeniedError(name)
