"""ReadOnlyNode: a tree as it is seen through a read-only mount."""

from agentix.oanix.errors import ReadOnlyError
from agentix.oanix.fs.wrapped import WrappedNode
from agentix.oanix.node import FsNode, Handle, OpenFlags

__all__ = ["ReadOnlyNode"]


class ReadOnlyNode(WrappedNode):
    """A file that can be read, and changed by nobody who sees it here."""

    __slots__ = ()

    def _wrapped(self, node: FsNode) -> FsNode:
        return ReadOnlyNode(node)

    def open(self, flags: OpenFlags) -> Handle:
        """Open the file for reading."""
        if flags.write or flags.truncate:
            raise ReadOnlyError
        return self._inner.open(flags)

    def set_times(self, accessed: int | None, modified: int | None) -> None:
        """Refuse."""
        raise ReadOnlyError

    def create(self, name: str) -> FsNode:
        """Refuse."""
        raise ReadOnlyError(name)

    def mkdir(self, name: str) -> FsNode:
        """Refuse."""
        raise ReadOnlyError(name)

    def symlink(self, name: str, target: str) -> None:
        """Refuse."""
        raise ReadOnlyError(name)

    def link(self, name: str, node: FsNode) -> None:
        """Refuse."""
        raise ReadOnlyError(name)

    def unlink(self, name: str) -> None:
        """Refuse."""
        raise ReadOnlyError(name)

    def rmdir(self, name: str) -> None:
        """Refuse."""
        raise ReadOnlyError(name)

    def rename(self, name: str, parent: FsNode, new_name: str) -> None:
        """Refuse."""
        raise ReadOnlyError(name)
