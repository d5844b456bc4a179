"""The events of a command under way: from server-sent events to output and exit.

The format is https://html.spec.whatwg.org/multipage/server-sent-events.html; each event has a
name and one JSON object as its data.
"""

from pydantic import ValidationError

from agentix.client.answer import parse, remote_call_error
from agentix.client.connection import Connection
from agentix.client.stream import Batch
from agentix.errors import SandboxGoneError
from agentix.wire import ExecExit, ExecOutput

__all__ = ["ExecDecoder"]


class ExecDecoder:
    """Decodes the events `stdout`, `stderr`, `exit` and `error`; others are ignored."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._name = ""
        self._data: list[bytes] = []

    def decode(self, lines: bytes) -> Batch[ExecOutput | ExecExit]:
        """Decodes lines; what follows an ending among them is ignored."""
        items: list[ExecOutput | ExecExit] = []
        for line in lines.split(b"\n")[:-1]:
            if line := line.removesuffix(b"\r"):
                self._take(line)
                continue
            batch = self._event()
            items.extend(batch.items)
            if batch.ending is not None:
                return Batch(items, batch.ending)
        return Batch(items)

    def _take(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"event":
            self._name = value.decode(errors="replace")
        elif field == b"data":
            self._data.append(value)

    def _event(self) -> Batch[ExecOutput | ExecExit]:
        """Decodes the event that an empty line completes."""
        name, data = self._name, b"\n".join(self._data)
        self._name, self._data = "", []
        try:
            return self._decode_event(name, data)
        except ValidationError:
            return Batch((), self._connection.nonsense(data))

    def _decode_event(self, name: str, data: bytes) -> Batch[ExecOutput | ExecExit]:
        match name, parse(data):
            case "stdout" | "stderr", {"text": text}:
                return Batch((ExecOutput.model_validate({"stream": name, "text": text}),))
            case "exit", fields:
                return Batch((ExecExit.model_validate(fields),), StopAsyncIteration())
            case "error", fields:
                return Batch((), remote_call_error(fields) or self._connection.nonsense(data))
            case "stdout" | "stderr", _:
                return Batch((), self._connection.nonsense(data))
            case _:
                return Batch(())

    def cut_short(self) -> SandboxGoneError:
        """Makes the error for a command whose outcome never came."""
        return self._connection.gone("the events of a command stopped without its exit")
