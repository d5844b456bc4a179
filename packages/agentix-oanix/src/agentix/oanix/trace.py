"""Trace: every host call of a run, enough to run the program again without any service."""

import base64
import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agentix.oanix.errors import ReplayError
from agentix.oanix.stop import Reason

__all__ = ["HostCall", "RecordedEnd", "RecordedLimits", "Trace"]


@dataclass(frozen=True, slots=True)
class HostCall:
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
        """Return the call as JSON, bytes in base64."""
        return {
            "name": self.name,
            "arguments": self.arguments,
            "inputs": base64.b64encode(self.inputs).decode(),
            "result": self.result,
            "outputs": [(at, base64.b64encode(data).decode()) for at, data in self.outputs],
            "stream": self.stream,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "HostCall":
        """Make the call of its JSON.

        Raises:
            KeyError: A part is missing.
            TypeError: A part is of another type.
            ValueError: A number is none.
        """
        return cls(
            value["name"],
            tuple(map(int, value["arguments"])),
            base64.b64decode(value["inputs"]),
            int(value["result"]),
            [(int(at), base64.b64decode(data)) for at, data in value["outputs"]],
            int(value["stream"]),
        )


@dataclass(frozen=True, slots=True)
class RecordedLimits:
    """What a recorded run might use, so far as its program can notice."""

    fuel: int | None = None
    """Units of fuel; `None` for no limit."""
    memory: int | None = None
    """Bytes of memory; `None` for no limit."""
    stack: int | None = None
    """Bytes of stack; `None` for the usual ones."""


@dataclass(frozen=True, slots=True)
class RecordedEnd:
    """How a recorded run ended."""

    reason: Reason = Reason.EXIT
    """Why."""
    message: str = ""
    """What happened."""
    fuel: int = 0
    """Units of fuel used."""


@dataclass(slots=True)
class Trace:
    """The host calls of a run in their order.

    ```python
    from pathlib import Path

    from agentix.oanix import Machine, Namespace, RunConfig, Trace

    machine, program = Machine(), b'(module (func (export "_start")))'
    result = machine.run(program, Namespace(), RunConfig(record=True))
    result.trace.save(Path("trace"))
    assert machine.replay(program, Trace.load(Path("trace"))).fuel == result.fuel
    ```
    """

    program: str
    """The SHA-256 of the module, in hexadecimal; of the program as it was given."""
    deterministic: bool
    """The program's code was that for deterministic runs."""
    calls: list[HostCall] = field(default_factory=list)
    """The calls."""
    limits: RecordedLimits = RecordedLimits()
    """The limits of the run."""
    end: RecordedEnd = RecordedEnd()
    """How the run ended."""

    @property
    def digest(self) -> str:
        """The SHA-256 of the trace, in hexadecimal."""
        digest = hashlib.sha256()
        for line in self._lines():
            digest.update(line.encode())
        return digest.hexdigest()

    def save(self, path: Path) -> None:
        """Write the trace as lines of JSON, the first one about the program."""
        path.write_text("".join(self._lines()), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Trace":
        """Read a trace that was saved.

        Raises:
            ReplayError: The file is not a trace.
        """
        try:
            first, *lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
            calls = [HostCall.from_json(line) for line in lines]
            ended = RecordedEnd(**{**first["end"], "reason": Reason(first["end"]["reason"])})
            limits = RecordedLimits(**first["limits"])
            return cls(first["program"], first["deterministic"], calls, limits, ended)
        except UnicodeDecodeError as error:
            # Its own text would have all of the file.
            raise ReplayError(f"{path} is not a trace: it is not text") from error
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ReplayError(f"{path} is not a trace: {error!r}") from error

    def _lines(self) -> Iterator[str]:
        first = {
            "program": self.program,
            "deterministic": self.deterministic,
            "limits": asdict(self.limits),
            "end": asdict(self.end),
        }
        yield json.dumps(first) + "\n"
        for call in self.calls:
            yield json.dumps(call.to_json()) + "\n"
