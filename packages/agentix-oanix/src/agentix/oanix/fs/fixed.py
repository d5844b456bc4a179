"""MapFs and TarFs: trees that do not change, and the nodes that fixed trees are made of."""

import base64
import io
import tarfile
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from agentix.oanix.errors import Code, FsError, NamespaceError, NoSuchFileError, ReadOnlyError
from agentix.oanix.fs.memory import MemFs
from agentix.oanix.fs.wrapped import ReadOnlyNode
from agentix.oanix.node import FsNode, Handle, Kind, NodeEntry, OpenFlags, Stat
from agentix.oanix.service import FileService, Spec
from agentix.oanix.walk import find

__all__ = [
    "BytesHandle",
    "FixedDirectory",
    "MapFs",
    "TarFs",
    "number_tree",
    "plant",
]


class MapFs(FileService):
    """Files that can only be read.

    ```python
    from agentix.oanix import MapFs

    task = MapFs({"word.txt": b"hello", "more/words.txt": b"hello world"})
    assert [entry.name for entry in task.readdir("/")] == ["more", "word.txt"]
    ```

    Args:
        files: Content by path.
    """

    kind: ClassVar[str] = "map"

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = dict(files)
        self._root = plant({path: BytesFile(data) for path, data in self._files.items()}, self)

    def attach(self) -> FsNode:
        """Return the root directory."""
        return self._root

    def spec(self) -> Spec:
        """Describe the service with its files."""
        files = {
            path: base64.b64encode(data).decode() for path, data in sorted(self._files.items())
        }
        return {"files": files}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Self:
        """Make the service that `spec` described."""
        return cls({path: base64.b64decode(text) for path, text in spec["files"].items()})


class FixedNode(FsNode):
    """A node of a fixed tree; its number is given once the tree stands."""

    __slots__ = ("_owner", "ino")

    def __init__(self) -> None:
        self.ino = 0
        self._owner: object = None

    @property
    def owner(self) -> object:
        """The service that holds the file."""
        return self._owner

    def adopt(self, owner: object, ino: int) -> None:
        """Make the node part of a service."""
        self._owner, self.ino = owner, ino

    def stat(self) -> Stat:
        """Return what is known about the file."""
        return Stat(self.kind, self.ino)


class BytesHandle(Handle):
    """Bytes that were there when the file was opened."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self, buffer: memoryview, offset: int) -> int:
        """Read into a buffer from a position."""
        part = self.data[offset : offset + len(buffer)]
        buffer[: len(part)] = part
        return len(part)

    def size(self) -> int:
        """Return the size of the content in bytes."""
        return len(self.data)


class BytesFile(FixedNode):
    """A file of fixed content."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.data = data

    def stat(self) -> Stat:
        """Return what is known about the file."""
        return Stat(Kind.REGULAR, self.ino, len(self.data))

    def open(self, flags: OpenFlags) -> Handle:
        """Open the file for reading."""
        if flags.write or flags.truncate:
            raise ReadOnlyError
        return BytesHandle(self.data)


class FixedDirectory(FixedNode):
    """A directory whose names do not change."""

    __slots__ = ("children",)

    kind = Kind.DIRECTORY

    def __init__(self, children: Mapping[str, FixedNode] | None = None) -> None:
        super().__init__()
        self.children: dict[str, FixedNode] = dict(children or {})

    def lookup(self, name: str) -> FsNode:
        """Return the file of a name."""
        try:
            return self.children[name]
        except KeyError:
            raise NoSuchFileError(name) from None

    def entries(self) -> list[NodeEntry]:
        """List the names."""
        return [NodeEntry(name, node.kind, node.ino) for name, node in self.children.items()]

    def rename(self, name: str, parent: FsNode, new_name: str) -> None:
        """Refuse: a fixed tree stays as it is, and other services are another device."""
        if parent.owner is not self.owner:
            raise FsError(name, Code.XDEV)
        super().rename(name, parent, new_name)


def plant(files: Mapping[str, FixedNode], owner: object) -> FixedDirectory:
    """Make a tree of files by path, with the directories that they need."""
    root = FixedDirectory()
    for path, file in files.items():
        *parents, name = [part for part in path.split("/") if part]
        node = root
        for part in parents:
            child = node.children.setdefault(part, FixedDirectory())
            if not isinstance(child, FixedDirectory):
                raise ValueError(f"{path}: {part} is a file and a directory")
            node = child
        if name in node.children:
            raise ValueError(f"{path} is there twice")
        node.children[name] = file
    number_tree(root, owner)
    return root


def number_tree(root: FixedDirectory, owner: object) -> None:
    """Number the nodes of a tree from 1, in the order of their names."""
    ahead: list[FixedNode] = [root]
    for ino, node in enumerate(ahead, 1):
        node.adopt(owner, ino)
        if isinstance(node, FixedDirectory):
            ahead.extend(child for _, child in sorted(node.children.items()))


class TarFs(FileService):
    """The directories, files and links of a tar archive, compressed or not; devices are left out.

    ```python
    import io
    import tarfile

    from agentix.oanix import TarFs

    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        member = tarfile.TarInfo("docs/readme")
        member.size = 5
        tar.addfile(member, io.BytesIO(b"hello"))
    assert TarFs(archive.getvalue()).read("/docs/readme") == b"hello"
    ```

    Args:
        archive: The archive's bytes.

    Raises:
        NamespaceError: It is no archive, or a name in it leads out of it.
    """

    kind: ClassVar[str] = "tar"

    def __init__(self, archive: bytes) -> None:
        self._archive = archive
        self._files = MemFs()
        try:
            with tarfile.open(fileobj=io.BytesIO(archive)) as files:
                for member in files:
                    self._add(files, member)
        except (tarfile.TarError, EOFError) as error:
            raise NamespaceError(f"not a tar archive: {error}") from error
        self._root = ReadOnlyNode(self._files.attach())

    def attach(self) -> FsNode:
        """Return the root directory."""
        return self._root

    def spec(self) -> Spec:
        """Describe the service with its archive."""
        return {"archive": base64.b64encode(self._archive).decode()}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Self:
        """Make the service that `spec` described."""
        return cls(base64.b64decode(spec["archive"]))

    def _add(self, files: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        names = [name for name in member.name.split("/") if name not in ("", ".")]
        if ".." in names:
            raise NamespaceError(f"{member.name} leads out of the archive")
        if not names:
            return
        parent = self._directory(names[:-1])
        if member.isdir():
            self._directory(names)
        elif member.issym():
            parent.symlink(names[-1], member.linkname)
        elif member.islnk():
            parent.link(names[-1], find(self._files.attach(), member.linkname, follow=False))
        elif member.isreg():
            content = files.extractfile(member)
            assert content is not None
            node = parent.create(names[-1])
            node.open(OpenFlags(write=True)).write(memoryview(content.read()), 0)
            node.set_times(None, int(member.mtime * 1_000_000_000))

    def _directory(self, names: list[str]) -> FsNode:
        node = self._files.attach()
        for name in names:
            known = {entry.name: entry.kind for entry in node.entries()}
            if known.get(name, Kind.DIRECTORY) is not Kind.DIRECTORY:
                raise NamespaceError(f"{name} is a file and a directory in the archive")
            node = node.lookup(name) if name in known else node.mkdir(name)
        return node
