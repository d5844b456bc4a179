"""Trace: every host call of a run, enough to run the program again without any service."""

import base64
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentix.oanix.errors import FsError, ReplayError, from_os_error
from agentix.oanix.node import Handle
from agentix.oanix.stop import Exit
from agentix.oanix.wasi import regions
from agentix.oanix.wasi.process import Process
from agentix.oanix.wasi.stream import Output

__all__ = ["Call", "Recorder", "Replayer", "Trace"]


@dataclass(frozen=True, slots=True)
class Call:
    """One host call."""

    name: str
    """The function."""
    arguments: tuple[int, ...]
    """What it was given."""
    inputs: bytes
    """What it read from memory: paths, and data to write."""
    result: int
    """Its error number; -1 where it did not return."""
    outputs: list[tuple[int, bytes]]
    """What it wrote to memory, by address."""
    stream: int = 0
    """1 or 2 where it wrote to standard output or error."""

    def to_json(self) -> dict[str, Any]:
        """Gives the call as JSON, bytes in base64."""
        return {
            "name": self.name,
            "arguments": self.arguments,
            "inputs": base64.b64encode(self.inputs).decode(),
            "result": self.result,
            "outputs": [(at, base64.b64encode(data).decode()) for at, data in self.outputs],
            "stream": self.stream,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Call":
        """Makes the call of its JSON."""
        return cls(
            value["name"],
            tuple(value["arguments"]),
            base64.b64decode(value["inputs"]),
            value["result"],
            [(at, base64.b64decode(data)) for at, data in value["outputs"]],
            value["stream"],
        )


@dataclass(slots=True)
class Trace:
    """The host calls of a run in their order."""

    program: str
    """The SHA-256 of the module, in hexadecimal; of the program as it was given."""
    deterministic: bool
    """The program's code was that for deterministic runs."""
    calls: list[Call] = field(default_factory=list)
    """The calls."""

    @property
    def digest(self) -> str:
        """The SHA-256 of the trace, in hexadecimal."""
        digest = hashlib.sha256()
        for line in self._lines():
            digest.update(line.encode())
        return digest.hexdigest()

    def save(self, path: Path) -> None:
        """Writes the trace as lines of JSON, the first one about the program."""
        path.write_text("".join(self._lines()), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Trace":
        """Reads a trace that was saved.

        Raises:
            ReplayError: The file is not a trace.
        """
        try:
            first, *lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
            calls = [Call.from_json(line) for line in lines]
            return cls(first["program"], first["deterministic"], calls)
        except (KeyError, TypeError, ValueError) as error:
            raise ReplayError(f"{path} is not a trace: {error!r}") from error

    def _lines(self) -> Iterator[str]:
        yield json.dumps({"program": self.program, "deterministic": self.deterministic}) + "\n"
        for call in self.calls:
            yield json.dumps(call.to_json()) + "\n"


class Recorder:
    """Notes the calls of a process."""

    def __init__(self, process: Process, trace: Trace) -> None:
        self._process = process
        self._calls = trace.calls

    def wrap(self, name: str, function: Callable[..., int]) -> Callable[..., int]:
        """Makes a function note its calls."""

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
                self._calls.append(Call(name, arguments, given, result, written, stream))
            return result

        return recorded

    def _stream(self, name: str, arguments: tuple[int, ...]) -> int:
        """Tells whether a call writes to standard output or error."""
        if name != "fd_write":
            return 0
        found = self._process.files.get(arguments[0])
        handle: Handle | None = None if found is None else found.handle
        return handle.number if isinstance(handle, Output) else 0


class Replayer:
    """Answers the calls of a process from a trace."""

    def __init__(self, process: Process, trace: Trace) -> None:
        self._process = process
        self._calls = trace.calls
        self._next = 0

    def wrap(self, name: str, function: Callable[..., int]) -> Callable[..., int]:
        """Makes a function answer as it did when the trace was recorded."""

        def replayed(*arguments: int) -> int:
            call = self._expect(name, arguments)
            if call.stream and call.result == 0:
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
                raise Exit(137)
            return call.result

        return replayed

    def _expect(self, name: str, arguments: tuple[int, ...]) -> Call:
        """Gives the recorded call, which must be the one that the program makes.

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
