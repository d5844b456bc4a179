"""The files that are open when a program starts: its standard streams and its first directories."""

from agentix.oanix.errors import FsError, NamespaceError
from agentix.oanix.namespace import Namespace
from agentix.oanix.node import Kind, Node
from agentix.oanix.run import RunConfig
from agentix.oanix.walk import find
from agentix.oanix.wasi import abi
from agentix.oanix.wasi.descriptor import Descriptor, DescriptorTable
from agentix.oanix.wasi.stream import InputBytes, Output

__all__ = ["open_standard"]

STREAM = Kind.UNKNOWN
INPUT_RIGHTS = abi.STREAM_RIGHTS & ~abi.Rights.FD_WRITE
OUTPUT_RIGHTS = abi.STREAM_RIGHTS & ~abi.Rights.FD_READ


def open_standard(
    config: RunConfig, namespace: Namespace, outputs: tuple[Output, Output]
) -> DescriptorTable:
    """Makes the standard streams and the directories that are open from the start.

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


def _found(namespace: Namespace, path: str) -> Node:
    node = namespace.attach()
    if path == "/":
        return node
    try:
        node = find(node, path.strip("/") or ".")
    except FsError as error:
        raise NamespaceError(f"{path} can not be open from the start: {error}") from error
    if node.kind is not Kind.DIRECTORY:
        raise NamespaceError(f"{path} can not be open from the start: it is no directory")
    return node
