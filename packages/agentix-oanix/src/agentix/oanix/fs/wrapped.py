"""Nodes that stand for others: for one that they limit, or for those that names belong to."""

from abc import abstractmethod

from agentix.oanix.node import FsNode, Kind, NodeEntry, Stat

__all__ = ["PlacedDirectory", "WrappedNode"]


class WrappedNode(FsNode):
    """A file as it is seen through something that limits what can be done to it."""

    __slots__ = ("_inner", "kind")

    def __init__(self, inner: FsNode) -> None:
        self._inner = inner
        self.kind: Kind = inner.kind

    @abstractmethod
    def _wrapped(self, node: FsNode) -> FsNode:
        """Return another file as it is seen through the same."""

    @property
    def owner(self) -> object:
        """The service that holds the file."""
        return self._inner.owner

    def hold(self) -> FsNode:
        """Return the directory to keep open."""
        return self._wrapped(self._inner.hold())

    def stat(self) -> Stat:
        """Return what is known about the file."""
        return self._inner.stat()

    def lookup(self, name: str) -> FsNode:
        """Return the file of a name."""
        return self._wrapped(self._inner.lookup(name))

    def entries(self) -> list[NodeEntry]:
        """List the names."""
        return self._inner.entries()

    def readlink(self) -> str:
        """Return the path that a symbolic link holds."""
        return self._inner.readlink()


class PlacedDirectory(FsNode):
    """A directory made of others, each of whose names belongs to one of them."""

    __slots__ = ()

    kind = Kind.DIRECTORY

    @abstractmethod
    def _place(self, name: str) -> FsNode:
        """Return the directory that a new name goes to.

        Raises:
            AlreadyExistsError: There is such a name.
            ReadOnlyError: No directory takes new names.
        """

    @abstractmethod
    def _holder(self, name: str) -> FsNode:
        """Return the directory that a name is to be taken from.

        Raises:
            FsError: There is none, or it may not be changed.
        """

    def create(self, name: str) -> FsNode:
        """Make an empty file."""
        return self._place(name).create(name)

    def mkdir(self, name: str) -> FsNode:
        """Make an empty directory."""
        return self._place(name).mkdir(name)

    def symlink(self, name: str, target: str) -> None:
        """Make a symbolic link."""
        self._place(name).symlink(name, target)

    def link(self, name: str, node: FsNode) -> None:
        """Add a name for a file."""
        self._place(name).link(name, node)

    def unlink(self, name: str) -> None:
        """Remove a name that is not a directory's."""
        self._holder(name).unlink(name)

    def rmdir(self, name: str) -> None:
        """Remove an empty directory."""
        self._holder(name).rmdir(name)

    def rename(self, name: str, parent: FsNode, new_name: str) -> None:
        """Move a name from the directory that has it."""
        self._holder(name).rename(name, parent, new_name)
