"""DeviceFs: the devices null, zero and random."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from agentix.oanix import determinism
from agentix.oanix.fs.fixed import FixedNode, plant
from agentix.oanix.node import FsNode, Handle, Kind, OpenFlags
from agentix.oanix.service import FileService, Spec

__all__ = ["DeviceFs"]


class NullHandle(Handle):
    """An open null device: nothing to read, and what is written is gone."""

    __slots__ = ()

    stream = True

    def read(self, buffer: memoryview, offset: int) -> int:
        """Read nothing."""
        return 0

    def write(self, data: memoryview, offset: int) -> int:
        """Accept everything."""
        return len(data)

    def append(self, data: memoryview) -> int:
        """Accept everything."""
        return len(data)

    def resize(self, size: int) -> None:
        """Do nothing."""


class ZeroHandle(NullHandle):
    """An open zero device."""

    __slots__ = ()

    def read(self, buffer: memoryview, offset: int) -> int:
        """Read zeros without end."""
        buffer[:] = bytes(len(buffer))
        return len(buffer)


class RandomHandle(NullHandle):
    """An open random device; its bytes are the calling run's."""

    __slots__ = ()

    def read(self, buffer: memoryview, offset: int) -> int:
        """Read random bytes without end."""
        buffer[:] = determinism.ENTROPY.get()(len(buffer))
        return len(buffer)


class Device(FixedNode):
    """A device of a class of handles."""

    __slots__ = ("_handle",)

    kind = Kind.CHARACTER

    def __init__(self, handle: type[NullHandle]) -> None:
        super().__init__()
        self._handle = handle

    def open(self, flags: OpenFlags) -> Handle:
        """Open the device."""
        return self._handle()


class DeviceFs(FileService):
    """A directory with `null`, `zero` and `random`, as programs expect it at `/dev`.

    ```python
    from agentix.oanix import DeviceFs, Namespace

    namespace = Namespace.builder().mount("/dev", DeviceFs()).build()
    with namespace.open("/dev/zero") as zero:
        assert zero.read(4) == bytes(4)
    ```
    """

    kind: ClassVar[str] = "device"

    def __init__(self) -> None:
        devices = {"null": NullHandle, "zero": ZeroHandle, "random": RandomHandle}
        devices["urandom"] = RandomHandle
        self._root = plant({name: Device(handle) for name, handle in devices.items()}, self)

    def attach(self) -> FsNode:
        """Return the root directory."""
        return self._root

    def spec(self) -> Spec:
        """Describe the service."""
        return {}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Self:
        """Make the service that `spec` described."""
        return cls()
