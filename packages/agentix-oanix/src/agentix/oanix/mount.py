"""Mount and the directories that mounts make: a tree that lies over the services' own."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from agentix.oanix.errors import (
    AlreadyExistsError,
    Code,
    FsError,
    NamespaceError,
    NoSuchFileError,
    ReadOnlyError,
)
from agentix.oanix.fs.quota import Quota, QuotaNode
from agentix.oanix.fs.wrapped import PlacedDirectory, ReadOnlyNode, UnionNode
from agentix.oanix.node import FsNode, Kind, NodeEntry, Stat
from agentix.oanix.service import FileService
from agentix.oanix.walk import find

__all__ = ["Mode", "Mount", "MountPoint", "split"]

Mode = Literal["replace", "before", "after"]
"""How a mount meets what is mounted at its path: instead of it, in front of it, or behind it."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A service at a path."""

    path: str
    """Where the service is seen, from the root, such as `/workspace`."""
    service: FileService
    """What is seen there."""
    readonly: bool = False
    """Nothing can be changed through this mount."""
    mode: Mode = "replace"
    """How the mount meets those at the same path before it."""
    source: str = "/"
    """The directory or file of the service that is seen; its root by default."""
    quota: Quota | None = None
    """How much the tree may grow through the mount; mounts can share one."""

    def attach(self) -> FsNode:
        """Return the node that is seen at the path."""
        node = find(self.service.attach(), self.source.strip("/") or ".")
        if self.readonly:
            return ReadOnlyNode(node)
        return node if self.quota is None else QuotaNode(node, self.quota)


def split(path: str) -> list[str]:
    """Split a path from the root into names.

    Raises:
        NamespaceError: The path does not begin with a slash, or has `.`, `..` or a zero byte.
    """
    names = [name for name in path.split("/") if name]
    if not path.startswith("/") or "\0" in path or not {".", ".."}.isdisjoint(names):
        raise NamespaceError(f"{path!r} is no path from the root: write it as /name/name")
    return names


class MountPoint:
    """A place in the tree of mounts: what is mounted here, and the places below."""

    def __init__(self) -> None:
        self.layers: list[Mount] = []
        """What is mounted here, the first one in front."""
        self.below: dict[str, MountPoint] = {}
        """The places below, by name."""

    @classmethod
    def tree(cls, mounts: Iterable[Mount]) -> "MountPoint":
        """Arrange mounts by their paths, in their order."""
        root = cls()
        for mount in mounts:
            point = root
            for name in split(mount.path):
                point = point.below.setdefault(name, cls())
            point.add(mount)
        return root

    def add(self, mount: Mount) -> None:
        """Mount here, by the mount's mode."""
        match mount.mode:
            case "replace":
                self.layers = [mount]
            case "before":
                self.layers.insert(0, mount)
            case "after":
                self.layers.append(mount)

    def node(self) -> FsNode:
        """Return the node that a program sees here.

        Raises:
            NamespaceError: A file is mounted where a directory is needed.
        """
        seen = self._seen()
        if not self.below:
            return MountedDirectory(None, {}) if seen is None else seen
        if seen is not None and seen.kind is not Kind.DIRECTORY:
            raise NamespaceError(f"a mount lies below {self.layers[0].path}, which is a file")
        return MountedDirectory(seen, {name: point.node() for name, point in self.below.items()})

    def _seen(self) -> FsNode | None:
        nodes = [mount.attach() for mount in self.layers]
        if len(nodes) < 2:
            return nodes[0] if nodes else None
        if any(node.kind is not Kind.DIRECTORY for node in nodes):
            raise NamespaceError(f"{self.layers[0].path} unites a file with others")
        return UnionNode(nodes)


class MountedDirectory(PlacedDirectory):
    """A directory with mounts in it: made for them alone, or a service's own beneath them."""

    __slots__ = ("_base", "_mounted")

    def __init__(self, base: FsNode | None, mounted: Mapping[str, FsNode]) -> None:
        self._base = base
        self._mounted = mounted

    @property
    def owner(self) -> object:
        """The service beneath the mounts; none where the directory is made for them."""
        return self if self._base is None else self._base.owner

    def underlying(self) -> FsNode:
        """Return the service's own directory."""
        return self if self._base is None else self._base.underlying()

    def hold(self) -> FsNode:
        """Return the directory to keep open, with the same mounts in it."""
        return self if self._base is None else MountedDirectory(self._base.hold(), self._mounted)

    def check_unmounted(self, name: str) -> None:
        """Refuse a name that a mount occupies."""
        if name in self._mounted:
            raise FsError(name, Code.BUSY)

    def stat(self) -> Stat:
        """Return what is known about the directory."""
        return Stat(Kind.DIRECTORY, 0) if self._base is None else self._base.stat()

    def lookup(self, name: str) -> FsNode:
        """Return the file of a name, a mount before the service's own."""
        node = self._mounted.get(name)
        if node is not None:
            return node
        if self._base is None:
            raise NoSuchFileError(name)
        return self._base.lookup(name)

    def entries(self) -> list[NodeEntry]:
        """List the mounts and the service's own names."""
        own = [] if self._base is None else self._base.entries()
        mounted = [
            NodeEntry(name, node.kind, node.stat().ino) for name, node in self._mounted.items()
        ]
        return mounted + [entry for entry in own if entry.name not in self._mounted]

    def set_times(self, accessed: int | None, modified: int | None) -> None:
        """Set the times of the service's own directory."""
        self._holder("").set_times(accessed, modified)

    def _place(self, name: str) -> FsNode:
        if name in self._mounted:
            raise AlreadyExistsError(name)
        return self._holder(name)

    def _holder(self, name: str) -> FsNode:
        self.check_unmounted(name)
        if self._base is None:
            raise ReadOnlyError(name)
        return self._base
