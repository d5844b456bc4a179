"""The files that are open when a program starts: its standard streams and its first directories."""

from agentix.oanix.errors import FsError, NamespaceError
from agentix.oanix.namespace import Namespace
from agentix.oanix.node import Handle, Kind
from agentix.oanix.run import RunConfig
from agentix.oanix.walk import find
from agentix.oanix.wasi.descriptor import Descriptor, DescriptorTable
from agentix.oanix.wasi.stream import InputBytes, Output

__all__ = ["open_standard"]


def open_standard(
    config: RunConfig, namespace: Namespace, outputs: tuple[Output, Output]
) -> DescriptorTable:
    """Makes the standard streams and the directories that are open from the start.

    Raises:
        NamespaceError: The namespace has no directory where a preopen names one.
    """
    files = DescriptorTable()
    given = config.stdin
    stdin = given if isinstance(given, Handle) else InputBytes(given)
    files[0] = Descriptor.of_stream(stdin, writing=False)
    files[1] = Descriptor.of_stream(outputs[0], writing=True)
    files[2] = Descriptor.of_stream(outputs[1], writing=True)
    for name, path in config.preopens.items():
        files.add(_preopened(namespace, name, path))
    return files


def _preopened(namespace: Namespace, name: str, path: str) -> Descriptor:
    node = namespace.attach()
    if path != "/":
        try:
            node = find(node, path.strip("/") or ".")
        except FsError as error:
            raise NamespaceError(f"{path} can not be open from the start: {error}") from error
    if node.kind is not Kind.DIRECTORY:
        raise NamespaceError(f"{path} can not be open from the start: it is no directory")
    directory = Descriptor.directory(node, path.strip("/"))
    directory.preopen = name.encode()
    return directory
