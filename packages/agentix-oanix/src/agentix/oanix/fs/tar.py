"""TarFs: the files of a tar archive, to be read."""

import base64
import io
import tarfile
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from agentix.oanix.errors import NamespaceError
from agentix.oanix.fs.memory import MemFs
from agentix.oanix.fs.readonly import ReadOnlyNode
from agentix.oanix.node import FsNode, Kind, OpenFlags
from agentix.oanix.service import FileService, Spec
from agentix.oanix.walk import find

__all__ = ["TarFs"]


class TarFs(FileService):
    """The directories, files and links of a tar archive, compressed or not; devices are left out.

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
