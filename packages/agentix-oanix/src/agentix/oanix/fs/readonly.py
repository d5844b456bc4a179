"""ReadOnlyNode: a tree as it is seen through a read-only mount."""

from agentix.oanix.errors import ReadOnlyError
from agentix.oanix.node import Entry, Handle, Kind, Node, OpenFlags, Stat

__all__ = ["ReadOnlyNode"]


class ReadOnlyNode(Node):
    """A file that can be read, and changed by nobody who sees it here."""

    __slots__ = ("_inner", "kind")

    def __init__(self, inner: Node) -> None:
        self._inner = inner
        self.kind: Kind = inner.kind

    @property
    def owner(self) -> object:
        """The service that holds the file."""
        return self._inner.owner

    def hold(self) -> Node:
        """Gives the directory to keep open."""
        return ReadOnlyNode(self._inner.hold())

    def stat(self) -> Stat:
        """Tells what is known about the file."""
        return self._inner.stat()

    def lookup(self, name: str) -> Node:
        """Gives the file of a name, read-only too."""
        return ReadOnlyNode(self._inner.lookup(name))

    def entries(self) -> list[Entry]:
        """Lists the names."""
        return self._inner.entries()

    def readlink(self) -> str:
        """Gives the path that a symbolic link holds."""
        return self._inner.readlink()

    def open(self, flags: OpenFlags) -> Handle:
        """Opens the file for reading."""
        if flags.write or flags.truncate:
            raise ReadOnlyError
        return self._inner.open(flags)

    def set_times(self, accessed: int | None, modified: int | None) -> None:
        """Refuses."""
        raise ReadOnlyError

    def create(self, name: str) -> Node:
        """Refuses."""
        raise ReadOnlyError(name)

    def mkdir(self, name: str) -> Node:
        """Refuses."""
        raise ReadOnlyError(name)

    def symlink(self, name: str, target: str) -> None:
        """Refuses."""
        raise ReadOnlyError(name)

    def link(self, name: str, node: Node) -> None:
        """Refuses."""
        raise ReadOnlyError(name)

    def unlink(self, name: str) -> None:
        """Refuses."""
        raise ReadOnlyError(name)

    def rmdir(self, name: str) -> None:
        """Refuses."""
        raise ReadOnlyError(name)

    def rename(self, name: str, parent: Node, new_name: str) -> None:
        """Refuses."""
        raise ReadOnlyError(name)
