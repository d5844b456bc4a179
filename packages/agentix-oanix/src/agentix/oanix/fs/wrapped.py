"""Nodes that stand for others: what a mount limits, and directories that are seen as one."""

from abc import abstractmethod
from collections.abc import Sequence

from agentix.oanix.errors import AlreadyExistsError, NoSuchFileError, ReadOnlyError
from agentix.oanix.node import FsNode, Handle, Kind, NodeEntry, OpenFlags, Stat

__all__ = [
    "PlacedDirectory",
    "ReadOnlyNode",
    "UnionNode",
    "WrappedNode",
]


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


class UnionNode(PlacedDirectory):
    """Directories seen as one: the first that has a name gives it, as in Plan 9.

    New files go to the first directory that is not read-only; a name is removed from the directory
    that shows it, and one behind it may appear. The union is one level deep: a directory found in
    one of them is that one's alone.

    Args:
        layers: The directories, the first one first.
    """

    __slots__ = ("_layers",)

    def __init__(self, layers: Sequence[FsNode]) -> None:
        self._layers = tuple(layers)

    @property
    def owner(self) -> object:
        """The service that new files go to."""
        return self._writable.owner if self._can_write else self._layers[0].owner

    def underlying(self) -> FsNode:
        """Return the directory that new files go to."""
        return self._writable if self._can_write else self

    def hold(self) -> FsNode:
        """Return the directories to keep open."""
        return UnionNode([layer.hold() for layer in self._layers])

    def stat(self) -> Stat:
        """Return what is known about the first directory."""
        return self._layers[0].stat()

    def lookup(self, name: str) -> FsNode:
        """Return the file of a name from the first directory that has it."""
        return self._holder(name).lookup(name)

    def entries(self) -> list[NodeEntry]:
        """List the names of all directories, each name once."""
        found: dict[str, NodeEntry] = {}
        for layer in self._layers:
            for entry in layer.entries():
                found.setdefault(entry.name, entry)
        return list(found.values())

    def set_times(self, accessed: int | None, modified: int | None) -> None:
        """Set the times of the first directory."""
        self._layers[0].set_times(accessed, modified)

    def _holder(self, name: str) -> FsNode:
        for layer in self._layers:
            try:
                layer.lookup(name)
            except NoSuchFileError:
                continue
            return layer
        raise NoSuchFileError(name)

    def _place(self, name: str) -> FsNode:
        try:
            self._holder(name)
        except NoSuchFileError:
            return self._writable
        raise AlreadyExistsError(name)

    @property
    def _can_write(self) -> bool:
        return any(not isinstance(layer, ReadOnlyNode) for layer in self._layers)

    @property
    def _writable(self) -> FsNode:
        for layer in self._layers:
            if not isinstance(layer, ReadOnlyNode):
                return layer
        raise ReadOnlyError
