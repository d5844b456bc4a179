"""Descriptor: what a program's file number stands for, and the files that are open at its start."""

from collections.abc import Callable
from typing import Any

from agentix.oanix.errors import Code, FsError, NamespaceError
from agentix.oanix.namespace import Namespace
from agentix.oanix.node import FsNode, Handle, Kind, NodeEntry
from agentix.oanix.run import RunConfig
from agentix.oanix.walk import find
from agentix.oanix.wasi import abi
from agentix.oanix.wasi.stream import InputBytes, OutputStream

__all__ = ["Descriptor", "DescriptorTable", "Unopened", "open_standard"]

FIRST = 3
"""The first number that is given out; 0 to 2 are taken by renumbering only."""

MAX_DESCRIPTORS = 1 << 16
STREAM, DIRECTORY = Kind.UNKNOWN, Kind.DIRECTORY
INPUT_RIGHTS = abi.STREAM_RIGHTS & ~abi.Rights.FD_WRITE
OUTPUT_RIGHTS = abi.STREAM_RIGHTS & ~abi.Rights.FD_READ


class Descriptor:
    """An open file, directory or stream of a program."""

    position = 0
    """Where the next read or write is, in bytes."""
    preopen: bytes | None = None
    """The name of a directory that is open from the start."""
    listing: list[NodeEntry] | None = None
    """The names of the directory when it was last listed from its beginning."""
    parent: "Descriptor | None" = None
    """The directory that the file was opened in."""
    path = ""
    """The path from there."""
    dirty = False
    """The file was changed through this descriptor."""

    def __init__(
        self,
        node: FsNode | None,
        handle: Handle | None,
        kind: Kind,
        base: int,
        inheriting: int = 0,
        flags: int = 0,
    ) -> None:
        self.node = node
        self.handle = handle
        self.kind = kind
        self.base = base
        self.inheriting = inheriting
        self.flags = flags
        self.stream = handle is not None and handle.stream

    @classmethod
    def directory(cls, node: FsNode, path: str, inheriting: int = abi.ALL_RIGHTS) -> "Descriptor":
        """Make the descriptor of a directory with the rights that it inherits."""
        rights = inheriting & abi.DIRECTORY_RIGHTS
        made = cls(node, None, DIRECTORY, rights, inheriting)
        made.path = path
        return made

    def full_path(self) -> str:
        """Return the path that the file was opened by, from the root."""
        above = "" if self.parent is None else self.parent.full_path()
        return f"{above}/{self.path}" if self.path else above


class DescriptorTable(dict[int, Descriptor]):
    """A program's open files by number; the lowest free number is given out."""

    _lowest = FIRST

    def add(self, descriptor: Descriptor) -> int:
        """Add a descriptor under the lowest free number.

        Raises:
            FsError: MFILE: too many files are open.
        """
        if len(self) >= MAX_DESCRIPTORS:
            raise FsError("too many open files", Code.MFILE)
        number = self._lowest
        while number in self:
            number += 1
        self[number] = descriptor
        self._lowest = number + 1
        return number

    def free(self, number: int) -> Descriptor:
        """Take a descriptor's number away.

        Raises:
            KeyError: No file has that number.
        """
        descriptor = self.pop(number)
        if FIRST <= number < self._lowest:
            self._lowest = number
        return descriptor


class Unopened(DescriptorTable):
    """A stand-in for a program's first files until one is asked for; many programs ask for none.

    Args:
        opened: Makes the table that takes the place of this one.
    """

    def __init__(self, opened: Callable[[], DescriptorTable]) -> None:
        self._opened = opened

    def __getitem__(self, number: int) -> Descriptor:
        return self._opened()[number]

    def __contains__(self, number: object) -> bool:
        return number in self._opened()

    def get(self, number: int, default: Any = None) -> Any:
        """Return the file of a number."""
        return self._opened().get(number, default)


def open_standard(
    config: RunConfig, namespace: Namespace, outputs: tuple[OutputStream, OutputStream]
) -> DescriptorTable:
    """Make the standard streams and the directories that are open from the start.

    Raises:
        NamespaceError: The namespace has no directory where a preopen names one.
    """
    given = config.stdin
    stdin = InputBytes(given) if isinstance(given, bytes) else given
    files = DescriptorTable()
    files[0] = Descriptor(None, stdin, STREAM, INPUT_RIGHTS)
    files[1] = Descriptor(None, outputs[0], STREAM, OUTPUT_RIGHTS)
    files[2] = Descriptor(None, outputs[1], STREAM, OUTPUT_RIGHTS)
    for name, path in config.preopens.items():
        directory = Descriptor.directory(_found(namespace, path), path.strip("/"))
        directory.preopen = name.encode()
        files.add(directory)
    return files


def _found(namespace: Namespace, path: str) -> FsNode:
    node = namespace.attach()
    if path == "/":
        return node
    try:
        node = find(node, path.strip("/") or ".")
    except FsError as error:
        raise NamespaceError(f"{path} cannot be open from the start: {error}") from error
    if node.kind is not DIRECTORY:
        raise NamespaceError(f"{path} cannot be open from the start: it is no directory")
    return node
