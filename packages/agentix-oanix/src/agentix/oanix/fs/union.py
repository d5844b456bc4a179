"""UnionNode: several directories seen as one, as after binds before and after each other."""

from collections.abc import Sequence

from agentix.oanix.errors import AlreadyExistsError, NoSuchFileError, ReadOnlyError
from agentix.oanix.fs.readonly import ReadOnlyNode
from agentix.oanix.fs.wrapped import PlacedDirectory
from agentix.oanix.node import FsNode, NodeEntry, Stat

__all__ = ["UnionNode"]


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
