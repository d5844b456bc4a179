"""The events of a command under way: from server-sent events to output and exit.

The format is https://html.spec.whatwg.org/multipage/server-sent-events.html; each event has a
name and one JSON object as its data.
"""

from pydantic import ValidationError
from pydantic_core import from_json

from agentix.client.answer import remote_call_error
from agentix.client.bounds import Cap
from agentix.client.connection import Connection
from agentix.client.stream import Batch
from agentix.errors import AnswerTooLargeError, RemoteCallError, SandboxGoneError
from agentix.wire import ExecExit, ExecOutput

__all__ = ["ExecDecoder"]


class ExecDecoder:
    """Decoder of the events `stdout`, `stderr`, `exit` and `error`; others are ignored.

    Args:
        connection: Where the answer comes from.
        cap: The most that one event may have.
    """

    def __init__(self, connection: Connection, cap: Cap) -> None:
        self._connection = connection
        self._cap = cap
        self._name = ""
        self._data = bytearray()

    def decode(self, lines: bytes | bytearray) -> Batch[ExecOutput | ExecExit]:
        """Decode lines; what follows an ending among them is ignored."""
        items: list[ExecOutput | ExecExit] = []
        for line in lines.split(b"\n")[:-1]:
            if line := line.removesuffix(b"\r"):
                try:
                    self._take(line)
                except AnswerTooLargeError as error:
                    return Batch(items, error)
                continue
            batch = self._event()
            items.extend(batch.items)
            if batch.ending is not None:
                return Batch(items, batch.ending)
        return Batch(items)

    def _take(self, line: bytes | bytearray) -> None:
        """Take one field of an event."""
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"event":
            self._name = value.decode(errors="replace")
        elif field == b"data":
            self._cap.check_read(len(self._data) + len(value) + 1)
            self._data += value
            self._data += b"\n"

    def _event(self) -> Batch[ExecOutput | ExecExit]:
        """Decode the event that an empty line completes."""
        name, data = self._name, self._data
        self._name, self._data = "", bytearray()
        del data[-1:]
        try:
            self._cap.check_decoded(data)
            return self._decode_event(name, data)
        except AnswerTooLargeError as error:
            return Batch((), error)
        except ValueError as error:
            why = "" if isinstance(error, ValidationError) else error
            return Batch((), self._connection.nonsense(data, why))

    def _decode_event(self, name: str, data: bytearray) -> Batch[ExecOutput | ExecExit]:
        """Decode an event; pydantic's `ValidationError` is a `ValueError` too."""
        if name not in ("stdout", "stderr", "exit", "error"):
            return Batch(())
        match name, from_json(data):
            case "exit", fields:
                return Batch((ExecExit.model_validate(fields),), StopAsyncIteration())
            case "error", fields:
                return Batch((), remote_call_error(fields) or self._connection.nonsense(data))
            case _, {"text": text}:
                return Batch((ExecOutput.model_validate({"stream": name, "text": text}),))
            case _:
                return Batch((), self._connection.nonsense(data))

    def cut_failure(self, start: bytes) -> RemoteCallError | None:
        """Return nothing: an event beyond the cap is not told apart from another."""
        return None

    def cut_short(self) -> SandboxGoneError:
        """Make the error for a command whose outcome never came."""
        return self._connection.gone("the events of a command stopped without its exit")
