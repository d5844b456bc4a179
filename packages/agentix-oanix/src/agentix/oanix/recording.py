"""Recorder and Replayer: note the host calls of a process, and answer them from what was noted."""

from collections.abc import Callable

from agentix.oanix.errors import FsError, ReplayError, from_os_error
from agentix.oanix.node import Handle
from agentix.oanix.stop import Halt
from agentix.oanix.trace import HostCall, Trace
from agentix.oanix.wasi import regions
from agentix.oanix.wasi.process import WasiProcess
from agentix.oanix.wasi.stream import OutputStream

__all__ = ["Recorder", "Replayer"]


class Recorder:
    """Notes the calls of a process."""

    def __init__(self, process: WasiProcess, trace: Trace) -> None:
        self._process = process
        self._calls = trace.calls

    def wrap(self, name: str, function: Callable[..., int]) -> Callable[..., int]:
        """Make a function note its calls."""

        def recorded(*arguments: int) -> int:
            given = regions.inputs(self._process, name, arguments)
            stream = self._stream(name, arguments)
            result = -1
            written: list[tuple[int, bytes]] = []
            try:
                result = function(*arguments)
                written = regions.outputs(self._process, name, arguments)
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
    """Answers the calls of a process from a trace."""

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
        given = regions.inputs(self._process, name, arguments)
        if given != call.inputs:
            raise ReplayError(f"call {place}, {made}, has {given!r}, recorded is {call.inputs!r}")
        return call
