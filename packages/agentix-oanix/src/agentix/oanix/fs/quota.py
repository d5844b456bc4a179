"""Quota: how much a tree may grow through a mount, and the nodes that keep to it."""

import threading
from collections import Counter

from agentix.oanix.errors import Code, FsError, NamespaceError, NoSuchFileError, QuotaError
from agentix.oanix.fs.wrapped import WrappedNode
from agentix.oanix.node import FsNode, Handle, Kind, OpenFlags, Stat

__all__ = ["Quota", "QuotaNode"]


class Quota:
    """Bytes and files by which programs can make a tree grow; what they remove makes room.

    Mounts that are given the same quota share it.

    ```python
    from agentix.oanix import MemFs, Namespace, Quota
    from agentix.oanix.errors import QuotaError

    quota = Quota(max_bytes=4)
    namespace = Namespace.builder().mount("/tmp", MemFs(), quota=quota).build()
    namespace.write("/tmp/a", b"four")
    try:
        namespace.write("/tmp/b", b"more")
    except QuotaError:
        assert quota.used_bytes == 4
    ```

    Args:
        max_bytes: Bytes of content that can be added; `None` for no limit.
        max_files: Files, directories and links that can be added; `None` for no limit.

    Raises:
        NamespaceError: A limit is negative.
    """

    def __init__(self, *, max_bytes: int | None = None, max_files: int | None = None) -> None:
        if min(max_bytes or 0, max_files or 0) < 0:
            raise NamespaceError(f"a quota of {max_bytes} bytes and {max_files} files is negative")
        self.max_bytes = max_bytes
        self.max_files = max_files
        self.used_bytes = 0
        """Bytes added so far, less those removed."""
        self.used_files = 0
        """Files added so far, less those removed."""
        self._lock = threading.Lock()
        self._open: Counter[int] = Counter()
        self._unnamed: set[int] = set()

    def take(self, count: int, files: int = 0) -> None:
        """Take bytes and files, or return them where they are negative.

        Raises:
            QuotaError: They are not left; nothing was taken.
        """
        with self._lock:
            added, more = self.used_bytes + count, self.used_files + files
            if count > 0 and self.max_bytes is not None and added > self.max_bytes:
                raise QuotaError(f"{self.max_bytes} bytes are the quota")
            if files > 0 and self.max_files is not None and more > self.max_files:
                raise QuotaError(f"{self.max_files} files are the quota")
            self.used_bytes, self.used_files = added, more

    def opened(self, ino: int) -> None:
        """Note that a file is open."""
        with self._lock:
            self._open[ino] += 1

    def closed(self, ino: int) -> bool:
        """Note that a file was closed; return whether its content goes with it."""
        with self._lock:
            self._open[ino] -= 1
            if self._open[ino]:
                return False
            del self._open[ino]
            gone = ino in self._unnamed
            self._unnamed.discard(ino)
            return gone

    def dropped(self, found: Stat) -> None:
        """Free what a file took whose name was removed; the content of an open one later."""
        if found.kind is Kind.DIRECTORY:
            self.take(0, -1)
        elif found.links <= 1:
            with self._lock:
                stays = found.ino in self._open
                if stays:
                    self._unnamed.add(found.ino)
            self.take(0 if stays or found.kind is not Kind.REGULAR else -found.size, -1)


class QuotaNode(WrappedNode):
    """A file as it is seen through a mount with a quota."""

    __slots__ = ("_quota",)

    def __init__(self, inner: FsNode, quota: Quota) -> None:
        super().__init__(inner)
        self._quota = quota

    def _wrapped(self, node: FsNode) -> FsNode:
        return QuotaNode(node, self._quota)

    def open(self, flags: OpenFlags) -> Handle:
        """Open the file; what it grows by is counted, where it has a size."""
        before = self._inner.stat()
        handle = self._inner.open(flags)
        if before.kind is not Kind.REGULAR or handle.stream or handle.messages:
            return handle
        if flags.truncate:
            self._quota.take(min(0, handle.size() - before.size))
        return QuotaHandle(handle, self._quota, before.ino)

    def create(self, name: str) -> FsNode:
        """Make an empty file."""
        self._quota.take(0, 1)
        with _Refund(self._quota):
            return QuotaNode(self._inner.create(name), self._quota)

    def mkdir(self, name: str) -> FsNode:
        """Make an empty directory."""
        self._quota.take(0, 1)
        with _Refund(self._quota):
            return QuotaNode(self._inner.mkdir(name), self._quota)

    def symlink(self, name: str, target: str) -> None:
        """Make a symbolic link."""
        self._quota.take(0, 1)
        with _Refund(self._quota):
            self._inner.symlink(name, target)

    def link(self, name: str, node: FsNode) -> None:
        """Add a name for a file, which takes nothing."""
        self._inner.link(name, self._other(node, name))

    def unlink(self, name: str) -> None:
        """Remove a name."""
        found = self._inner.lookup(name).stat()
        self._inner.unlink(name)
        self._quota.dropped(found)

    def rmdir(self, name: str) -> None:
        """Remove an empty directory."""
        found = self._inner.lookup(name).stat()
        self._inner.rmdir(name)
        self._quota.dropped(found)

    def rename(self, name: str, parent: FsNode, new_name: str) -> None:
        """Move a name to a directory of the same quota, replacing there."""
        into = self._other(parent, name)
        moved, replaced = self._inner.lookup(name).stat(), _stat(into, new_name)
        self._inner.rename(name, into, new_name)
        if replaced is not None and replaced.ino != moved.ino:
            self._quota.dropped(replaced)

    def set_times(self, accessed: int | None, modified: int | None) -> None:
        """Set times, in nanoseconds since 1970."""
        self._inner.set_times(accessed, modified)

    def _other(self, node: FsNode, name: str) -> FsNode:
        if not isinstance(node, QuotaNode) or node._quota is not self._quota:
            raise FsError(name, Code.XDEV)
        return node._inner


class QuotaHandle(Handle):
    """An open file whose growth is counted."""

    __slots__ = ("_closed", "_inner", "_ino", "_quota")

    def __init__(self, inner: Handle, quota: Quota, ino: int) -> None:
        self._inner = inner
        self._quota = quota
        self._ino = ino
        self._closed = False
        quota.opened(ino)

    def read(self, buffer: memoryview, offset: int) -> int:
        """Read into a buffer from a position."""
        return self._inner.read(buffer, offset)

    def write(self, data: memoryview, offset: int) -> int:
        """Write at a position."""
        with _Growth(self._inner, self._quota, offset + len(data) if len(data) else 0):
            return self._inner.write(data, offset)

    def append(self, data: memoryview) -> int:
        """Write at the end."""
        with _Growth(self._inner, self._quota, self._inner.size() + len(data)):
            return self._inner.append(data)

    def size(self) -> int:
        """Return the size of the content in bytes."""
        return self._inner.size()

    def resize(self, size: int) -> None:
        """Cut the content, or fill it up with zeros."""
        with _Growth(self._inner, self._quota, size):
            self._inner.resize(size)

    def stat(self) -> Stat | None:
        """Return what is known about the open file."""
        return self._inner.stat()

    def set_times(self, accessed: int | None, modified: int | None) -> bool:
        """Set the open file's times."""
        return self._inner.set_times(accessed, modified)

    def sync(self) -> None:
        """Make what was written so far lasting."""
        self._inner.sync()

    def close(self) -> None:
        """Close the file; the room of one without a name comes back with its last handle."""
        if self._closed:
            return
        self._closed = True
        size = self._inner.size()
        if self._quota.closed(self._ino):
            self._quota.take(-size)
        self._inner.close()


class _Refund:
    """A context that frees what a file took, where it could not be made."""

    def __init__(self, quota: Quota) -> None:
        self._quota = quota

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None:
            self._quota.take(0, -1)


class _Growth:
    """A context that takes the bytes that a file is to grow by, and then keeps what it grew by."""

    def __init__(self, handle: Handle, quota: Quota, end: int) -> None:
        self._handle = handle
        self._quota = quota
        self._before = handle.size()
        self._taken = max(0, end - self._before)

    def __enter__(self) -> None:
        self._quota.take(self._taken)

    def __exit__(self, *rest: object) -> None:
        self._quota.take(self._handle.size() - self._before - self._taken)


def _stat(directory: FsNode, name: str) -> Stat | None:
    try:
        return directory.lookup(name).stat()
    except NoSuchFileError:
        return None
