"""WorkspaceFs: a directory of the host, that no symbolic link and no rename race leads out of.

Every path is opened by openat2(2) with RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS from a descriptor of
the root. Symbolic links are followed by the walk itself, inside the mount.
"""

import ctypes
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from struct import Struct
from typing import Any, ClassVar, Self

from agentix.oanix.errors import Code, FsError, NamespaceError, from_os_error
from agentix.oanix.node import FsNode, Handle, Kind, NodeEntry, OpenFlags, Stat
from agentix.oanix.service import FileService, Spec, unfinished_path

__all__ = ["WorkspaceFs"]

OPENAT2 = 437
"""The number of the system call, the same on every architecture (openat2(2), Linux 5.6)."""

NO_MAGIC, NO_SYMLINKS, BENEATH = 0x02, 0x04, 0x08
HOW = Struct("=QQQ")
RESOLVE = NO_MAGIC | NO_SYMLINKS | BENEATH
DIRECTORY = os.O_PATH | os.O_DIRECTORY

_syscall: Callable[..., int] = ctypes.CDLL(None, use_errno=True).syscall


class Anchor:
    """An open directory of the host, that paths are opened beneath.

    Args:
        number: The directory's descriptor; it is closed with the last node that needs it.
    """

    __slots__ = ("_number",)

    def __init__(self, number: int) -> None:
        self._number = number

    def __del__(self) -> None:
        os.close(self._number)

    def open_below(self, path: str, flags: int, mode: int = 0) -> int:
        """Open a path below the directory, through no symbolic link, and return the descriptor.

        Raises:
            OSError: As open(2) has it; EXDEV and ELOOP where the path would lead elsewhere.
        """
        how = HOW.pack(flags | os.O_CLOEXEC, mode, RESOLVE)
        name = os.fsencode(path or ".")
        number = _syscall(OPENAT2, self._number, name, how, len(how))
        if number < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return number


class WorkspaceFs(FileService):
    """A directory of the host.

    ```python
    from pathlib import Path

    from agentix.oanix import WorkspaceFs

    Path("code").mkdir()
    Path("code/main.py").write_text("print(1)")
    code = WorkspaceFs("code")
    assert code.read("/main.py") == b"print(1)"
    ```

    Args:
        path: The directory.

    Raises:
        NamespaceError: There is no such directory.
    """

    kind: ClassVar[str] = "workspace"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path).absolute()
        try:
            root = os.open(self._path, DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise NamespaceError(f"{path} is no directory to mount: {error.strerror}") from error
        self._root = Anchor(root)

    def attach(self) -> FsNode:
        """Return the root directory."""
        return HostNode(self, self._root, "", Kind.DIRECTORY)

    def spec(self) -> Spec:
        """Describe the service by its path."""
        return {"path": str(self._path)}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Self:
        """Make the service that `spec` described."""
        return cls(spec["path"])

    def replace(self, path: str, data: bytes) -> None:
        """Write a whole file so that at every moment it has its old content or the new.

        It keeps the old one's permissions, and what a killed one left is written over.
        """
        unfinished = unfinished_path(path)
        with _translated(path):
            mode = self._mode(path)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
            handle = HostHandle(self._root.open_below(unfinished.lstrip("/"), flags, 0o666))
            try:
                handle.fill(data, mode)
            finally:
                handle.close()
        self.rename(unfinished, path)

    def _mode(self, path: str) -> int | None:
        """Return a file's permissions; `None` where it is missing."""
        try:
            number = self._root.open_below(path.lstrip("/"), os.O_PATH)
        except FileNotFoundError:
            return None
        try:
            return stat.S_IMODE(os.fstat(number).st_mode)
        finally:
            os.close(number)


@contextmanager
def _translated(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise from_os_error(error, name) from error


class HostNode(FsNode):
    """A file of a `WorkspaceFs`, by its path below a directory that is open.

    Args:
        fs: The service.
        anchor: The service's root, or a directory below it that a program has opened.
        path: The path from there.
        kind: The type of the file.
    """

    __slots__ = ("_anchor", "_fs", "_path", "kind")

    def __init__(self, fs: WorkspaceFs, anchor: Anchor, path: str, kind: Kind) -> None:
        self._fs = fs
        self._anchor = anchor
        self._path = path
        self.kind: Kind = kind

    @property
    def owner(self) -> object:
        """The service that holds the file."""
        return self._fs

    def hold(self) -> FsNode:
        """Open the directory, so that it is the same one when it is renamed."""
        with _translated(self._path):
            number = self._anchor.open_below(self._path, DIRECTORY)
        return self._node("", Kind.DIRECTORY, Anchor(number))

    def _node(self, path: str, kind: Kind, anchor: Anchor | None = None) -> "HostNode":
        return HostNode(self._fs, anchor or self._anchor, path, kind)

    def stat(self) -> Stat:
        """Return what is known about the file."""
        with _translated(self._path):
            number = self._anchor.open_below(self._path, os.O_PATH | os.O_NOFOLLOW)
            try:
                return _stat(os.fstat(number))
            finally:
                os.close(number)

    def lookup(self, name: str) -> FsNode:
        """Return the file of a name."""
        with _translated(name), self._opened() as directory:
            found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        return self._node(self._below(name), _kind(found.st_mode))

    def entries(self) -> list[NodeEntry]:
        """List the names."""
        with _translated(self._path), self._opened(os.O_RDONLY | os.O_DIRECTORY) as directory:
            found = []
            with os.scandir(directory) as entries:
                for entry in entries:
                    mode = entry.stat(follow_symlinks=False).st_mode
                    found.append(NodeEntry(entry.name, _kind(mode), entry.inode()))
        return found

    def open(self, flags: OpenFlags) -> Handle:
        """Open a regular file."""
        if self.kind is not Kind.REGULAR:
            return super().open(flags)
        writing = flags.write or flags.truncate
        access = os.O_RDWR if writing and flags.read else os.O_WRONLY if writing else os.O_RDONLY
        with _translated(self._path):
            number = self._anchor.open_below(self._path, access | os.O_NONBLOCK | os.O_NOFOLLOW)
        if not stat.S_ISREG(os.fstat(number).st_mode):
            os.close(number)
            raise FsError(self._path, Code.ACCES)
        return HostHandle(number)

    def readlink(self) -> str:
        """Return the path that a symbolic link holds."""
        if self.kind is not Kind.SYMLINK:
            return super().readlink()
        parent, _, name = self._path.rpartition("/")
        with _translated(name), self._node(parent, Kind.DIRECTORY)._opened() as directory:
            return os.readlink(name, dir_fd=directory)

    def create(self, name: str) -> FsNode:
        """Make an empty file."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with _translated(name):
            os.close(self._anchor.open_below(self._below(name), flags, 0o666))
        return self._node(self._below(name), Kind.REGULAR)

    def mkdir(self, name: str) -> FsNode:
        """Make an empty directory."""
        with _translated(name), self._opened() as directory:
            os.mkdir(name, dir_fd=directory)
        return self._node(self._below(name), Kind.DIRECTORY)

    def symlink(self, name: str, target: str) -> None:
        """Make a symbolic link."""
        with _translated(name), self._opened() as directory:
            os.symlink(target, name, dir_fd=directory)

    def link(self, name: str, node: FsNode) -> None:
        """Add a name for a file of this service."""
        if not isinstance(node, HostNode) or node._fs is not self._fs:
            raise FsError(name, Code.XDEV)
        parent, _, old = node._path.rpartition("/")
        source = node._node(parent, Kind.DIRECTORY)
        with _translated(name), source._opened() as from_fd, self._opened() as to_fd:
            os.link(old, name, src_dir_fd=from_fd, dst_dir_fd=to_fd, follow_symlinks=False)

    def unlink(self, name: str) -> None:
        """Remove a name that is not a directory's."""
        with _translated(name), self._opened() as directory:
            os.unlink(name, dir_fd=directory)

    def rmdir(self, name: str) -> None:
        """Remove an empty directory."""
        with _translated(name), self._opened() as directory:
            os.rmdir(name, dir_fd=directory)

    def rename(self, name: str, parent: FsNode, new_name: str) -> None:
        """Move a name from this directory into another."""
        if not isinstance(parent, HostNode) or parent._fs is not self._fs:
            raise FsError(name, Code.XDEV)
        with _translated(name), self._opened() as from_fd, parent._opened() as to_fd:
            os.rename(name, new_name, src_dir_fd=from_fd, dst_dir_fd=to_fd)

    def set_times(self, accessed: int | None, modified: int | None) -> None:
        """Set times, in nanoseconds since 1970."""
        found = self.stat()
        times = (
            found.accessed if accessed is None else accessed,
            found.modified if modified is None else modified,
        )
        parent, _, name = self._path.rpartition("/")
        above = self._node(parent, Kind.DIRECTORY)
        with _translated(self._path), above._opened() as directory:
            os.utime(name or ".", ns=times, dir_fd=directory, follow_symlinks=False)

    def _below(self, name: str) -> str:
        return f"{self._path}/{name}" if self._path else name

    @contextmanager
    def _opened(self, flags: int = DIRECTORY) -> Iterator[int]:
        number = self._anchor.open_below(self._path, flags)
        try:
            yield number
        finally:
            os.close(number)


class HostHandle(Handle):
    """An open file of the host."""

    __slots__ = ("_number",)

    def __init__(self, number: int) -> None:
        self._number = number

    def read(self, buffer: memoryview, offset: int) -> int:
        """Read into a buffer from a position."""
        with _translated(""):
            return os.preadv(self._number, [buffer], offset)

    def write(self, data: memoryview, offset: int) -> int:
        """Write at a position."""
        with _translated(""):
            return os.pwrite(self._number, data, offset)

    def fill(self, data: bytes, mode: int | None) -> None:
        """Write all of an empty file's content, lasting, and set its permissions."""
        view = memoryview(data)
        while len(view):
            view = view[self.write(view, len(data) - len(view)) :]
        if mode is not None:
            os.fchmod(self._number, mode)
        self.sync()

    def stat(self) -> Stat:
        """Return what is known about the open file, whatever its name is by now."""
        return _stat(os.fstat(self._number))

    def set_times(self, accessed: int | None, modified: int | None) -> bool:
        """Set times, in nanoseconds since 1970."""
        found = self.stat()
        times = (
            found.accessed if accessed is None else accessed,
            found.modified if modified is None else modified,
        )
        with _translated(""):
            os.utime(self._number, ns=times)
        return True

    def size(self) -> int:
        """Return the size of the content in bytes."""
        return os.fstat(self._number).st_size

    def resize(self, size: int) -> None:
        """Cut the content, or fill it up with zeros."""
        with _translated(""):
            os.ftruncate(self._number, size)

    def sync(self) -> None:
        """Make what was written so far lasting."""
        with _translated(""):
            os.fsync(self._number)

    def close(self) -> None:
        """Close the file; once is enough."""
        number, self._number = self._number, -1
        if number >= 0:
            os.close(number)


def _kind(mode: int) -> Kind:
    if stat.S_ISDIR(mode):
        return Kind.DIRECTORY
    if stat.S_ISLNK(mode):
        return Kind.SYMLINK
    return Kind.REGULAR if stat.S_ISREG(mode) else Kind.UNKNOWN


def _stat(found: os.stat_result) -> Stat:
    return Stat(
        _kind(found.st_mode),
        found.st_ino,
        found.st_size,
        found.st_nlink,
        found.st_atime_ns,
        found.st_mtime_ns,
        found.st_ctime_ns,
    )
