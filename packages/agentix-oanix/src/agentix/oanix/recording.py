"""Recorder and Replayer: note the host calls of a process, and answer them from what was noted."""

from collections.abc import Callable, Mapping, Sequence

from agentix.oanix.errors import FsError, ReplayError, from_os_error
from agentix.oanix.node import Handle
from agentix.oanix.stop import Halt
from agentix.oanix.trace import HostCall, Trace
from agentix.oanix.wasi import abi
from agentix.oanix.wasi.process import WasiProcess
from agentix.oanix.wasi.stream import OutputStream

__all__ = [
    "Recorder",
    "Region",
    "Replayer",
    "inputs",
    "outputs",
]


class Recorder:
    """A wrapper of functions that notes the calls of a process."""

    def __init__(self, process: WasiProcess, trace: Trace) -> None:
        self._process = process
        self._calls = trace.calls

    def wrap(self, name: str, function: Callable[..., int]) -> Callable[..., int]:
        """Make a function note its calls."""

        def recorded(*arguments: int) -> int:
            given = inputs(self._process, name, arguments)
            stream = self._stream(name, arguments)
            result = -1
            written: list[tuple[int, bytes]] = []
            try:
                result = function(*arguments)
                written = outputs(self._process, name, arguments)
            except FsError as error:
                result = error.code
                raise
            except OSError as error:
                result = from_os_error(error).code
                raise
            finally:
                self._calls.append(HostCall(name, arguments, given, result, written, stream))
            return result

        return recorded

    def _stream(self, name: str, arguments: tuple[int, ...]) -> int:
        """Return whether a call writes to standard output or error."""
        if name != "fd_write":
            return 0
        found = self._process.files.get(arguments[0])
        handle: Handle | None = None if found is None else found.handle
        return handle.number if isinstance(handle, OutputStream) else 0


class Replayer:
    """A wrapper of functions that answers the calls of a process from a trace."""

    def __init__(self, process: WasiProcess, trace: Trace) -> None:
        self._process = process
        self._calls = trace.calls
        self._end = trace.end
        self._next = 0

    def wrap(self, name: str, function: Callable[..., int]) -> Callable[..., int]:
        """Make a function answer as it did when the trace was recorded."""

        def replayed(*arguments: int) -> int:
            call = self._expect(name, arguments)
            if call.stream and call.result <= 0:
                output = self._process.files[call.stream].handle
                assert output is not None
                output.write(memoryview(call.inputs), 0)
                self._process.bytes_written += len(call.inputs)
            for address, data in call.outputs:
                self._process.span(address, len(data))[:] = data
            if call.result > 0:
                raise FsError(name, call.result)  # type: ignore[arg-type] # a number will do
            if name in ("proc_exit", "proc_raise"):
                return function(*arguments)
            if call.result < 0:
                raise Halt(self._end.reason, self._end.message)
            return call.result

        return replayed

    def _expect(self, name: str, arguments: tuple[int, ...]) -> HostCall:
        """Return the recorded call, which must be the one that the program makes.

        Raises:
            ReplayError: It is another one; the message has its place and both calls.
        """
        place, self._next = self._next, self._next + 1
        made = f"{name}{arguments}"
        if place >= len(self._calls):
            raise ReplayError(f"call {place} is {made}, and the recording ends before it")
        call = self._calls[place]
        if (call.name, call.arguments) != (name, arguments):
            raise ReplayError(f"call {place} is {made}, recorded is {call.name}{call.arguments}")
        given = inputs(self._process, name, arguments)
        if given != call.inputs:
            raise ReplayError(f"call {place}, {made}, has {given!r}, recorded is {call.inputs!r}")
        return call


Region = tuple[int, int]
"""An address and a number of bytes."""

PATHS: Mapping[str, Sequence[tuple[int, int]]] = {
    "path_create_directory": [(1, 2)],
    "path_filestat_get": [(2, 3)],
    "path_filestat_set_times": [(2, 3)],
    "path_link": [(2, 3), (5, 6)],
    "path_open": [(2, 3)],
    "path_readlink": [(1, 2)],
    "path_remove_directory": [(1, 2)],
    "path_rename": [(1, 2), (4, 5)],
    "path_symlink": [(0, 1), (3, 4)],
    "path_unlink_file": [(1, 2)],
}
"""The parameters that are the address and the length of a path."""

RESULTS: Mapping[str, Sequence[tuple[int, int]]] = {
    "args_sizes_get": [(0, 4), (1, 4)],
    "clock_res_get": [(1, 8)],
    "clock_time_get": [(2, 8)],
    "environ_sizes_get": [(0, 4), (1, 4)],
    "fd_fdstat_get": [(1, 24)],
    "fd_filestat_get": [(1, 64)],
    "fd_pread": [(4, 4)],
    "fd_prestat_get": [(1, 8)],
    "fd_pwrite": [(4, 4)],
    "fd_read": [(3, 4)],
    "fd_readdir": [(4, 4)],
    "fd_seek": [(3, 8)],
    "fd_tell": [(1, 8)],
    "fd_write": [(3, 4)],
    "path_filestat_get": [(4, 64)],
    "path_open": [(8, 4)],
    "path_readlink": [(5, 4)],
    "poll_oneoff": [(3, 4)],
}
"""The parameters that are the address of a result, and its bytes."""


def inputs(process: WasiProcess, name: str, arguments: Sequence[int]) -> bytes:
    """Return what a call reads from memory; nothing where it reads beyond it."""
    try:
        if name in ("fd_write", "fd_pwrite"):
            return b"".join(process.vectors(arguments[1], arguments[2]))
        if name == "poll_oneoff":
            return bytes(process.span(arguments[0], 48 * arguments[2]))
        pairs = PATHS.get(name, ())
        return b"\0".join(bytes(process.span(arguments[a], arguments[b])) for a, b in pairs)
    except FsError:
        return b""


def outputs(process: WasiProcess, name: str, arguments: Sequence[int]) -> list[tuple[int, bytes]]:
    """Return what a call that succeeded has written to memory."""
    regions = [(arguments[place], count) for place, count in RESULTS.get(name, ())]
    regions += _contents(process, name, arguments)
    return [(address, bytes(process.span(address, count))) for address, count in regions if count]


def _contents(process: WasiProcess, name: str, arguments: Sequence[int]) -> list[Region]:
    """Return the regions whose size depends on the call."""
    match name:
        case "args_get":
            return _strings(process.arguments(), arguments)
        case "environ_get":
            return _strings(process.environment(), arguments)
        case "fd_read":
            return _vectors(process, arguments, _u32(process, arguments[3]))
        case "fd_pread":
            return _vectors(process, arguments, _u32(process, arguments[4]))
        case "fd_readdir":
            return [(arguments[1], _u32(process, arguments[4]))]
        case "path_readlink":
            return [(arguments[3], _u32(process, arguments[5]))]
        case "fd_prestat_dir_name":
            return [(arguments[1], len(process.files[arguments[0]].preopen or b""))]
        case "random_get":
            return [(arguments[0], arguments[1])]
        case "poll_oneoff":
            return [(arguments[1], 32 * _u32(process, arguments[3]))]
    return []


def _strings(strings: Sequence[bytes], arguments: Sequence[int]) -> list[Region]:
    total = sum(map(len, strings)) + len(strings)
    return [(arguments[0], 4 * len(strings)), (arguments[1], total)]


def _vectors(process: WasiProcess, arguments: Sequence[int], total: int) -> list[Region]:
    """Return the parts of the vectors that were filled."""
    found = []
    for place in range(arguments[2]):
        vector = process.span(arguments[1] + 8 * place, 8)
        address, length = abi.U32.unpack_from(vector)[0], abi.U32.unpack_from(vector, 4)[0]
        found.append((address, min(length, total)))
        total -= min(length, total)
    return found


def _u32(process: WasiProcess, address: int) -> int:
    return int(abi.U32.unpack_from(process.span(address, 4))[0])
