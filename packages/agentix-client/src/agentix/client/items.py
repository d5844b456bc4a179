"""The items of a streaming stub: from lines of NDJSON to values (protocol: Streaming returns)."""

from typing import Generic, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from agentix.client.answer import cut_failure, decode_value, mismatch, remote_call_error
from agentix.client.bounds import Cap
from agentix.client.connection import Connection
from agentix.client.stream import Batch
from agentix.errors import AgentixError, RemoteCallError, SandboxGoneError
from agentix.stub import Codec, Stub

__all__ = ["ItemDecoder"]

T = TypeVar("T")

ITEM = b'{"item":'
BETWEEN = b'}\n{"item":'


class ItemDecoder(Generic[T]):
    """Decoder of the events `item`, `end` and `error`.

    Args:
        connection: Where the answer comes from.
        stub: The stub that was called.
        items: The codec of a list of the stub's items.
        cap: The most that one line may have.
    """

    def __init__(self, connection: Connection, stub: Stub, items: Codec[list[T]], cap: Cap) -> None:
        self._connection = connection
        self._stub = stub
        self._items = items
        self._cap = cap

    def decode(self, lines: bytes | bytearray) -> Batch[T]:
        """Decode lines; what follows an ending among them is ignored."""
        if lines.find(b"\n") == len(lines) - 1:
            return self._decode_line(lines)
        lines = bytes(lines)
        last = lines.rfind(b"\n", 0, -1) + 1
        cut = len(lines) if lines.startswith(ITEM, last) else last
        items = self._decode_together(lines[:cut])
        if items is None:
            return self._decode_singly(lines)
        rest = self._decode_singly(lines[cut:])
        items.extend(rest.items)
        return Batch(items, rest.ending)

    def _decode_together(self, lines: bytes) -> list[T] | None:
        """Decode lines that are all items, spaced as the runtime does, as one JSON array.

        One validation of many small items takes a fraction of the time of as many validations.
        """
        if not lines:
            return []
        if not (lines.startswith(ITEM) and lines.endswith(b"}\n")):
            return None
        array = lines[len(ITEM) : -2].replace(BETWEEN, b",")
        if b"\n" in array:
            return None
        try:
            items = self._items.decode(b"[" + array + b"]")
        except ValidationError:
            return None
        return items if len(items) == lines.count(b"\n") else None

    def _decode_singly(self, lines: bytes) -> Batch[T]:
        items: list[T] = []
        for line in filter(None, map(bytes.strip, lines.split(b"\n"))):
            batch = self._decode_line(line)
            items.extend(batch.items)
            if batch.ending is not None:
                return Batch(items, batch.ending)
        return Batch(items)

    def _decode_line(self, line: bytes | bytearray) -> Batch[T]:
        """Decode one line, with its line end or without.

        An item as the runtime spaces it is not parsed twice. It may be as long as the cap, and
        is copied but once.
        """
        if line.isspace():
            return Batch(())
        try:
            self._cap.check_decoded(line)
            if line.startswith(ITEM) and line.endswith((b"}\n", b"}")):
                end = -2 if line.endswith(b"\n") else -1
                return Batch((self._stub.result.decode(memoryview(line)[len(ITEM) : end]),))
        except ValidationError as error:
            if (problem := mismatch(self._stub, error)) is not None:
                return Batch((), problem)
        except AgentixError as error:
            return Batch((), error)
        return self._decode_event(line)

    def _decode_event(self, line: bytes | bytearray) -> Batch[T]:
        """Decode a line of any event, however it is spaced."""
        try:
            event = from_json(line)
        except ValueError as error:
            return Batch((), self._connection.nonsense(line, error))
        match event:
            case {"item": _}:
                text = to_json(event.pop("item"), inf_nan_mode="constants")
                try:
                    return Batch((decode_value(self._stub, text),))
                except AgentixError as error:
                    return Batch((), error)
            case {"end": True}:
                return Batch((), StopAsyncIteration())
            case {"error": fields}:
                return Batch((), remote_call_error(fields) or self._connection.nonsense(line))
            case _:
                return Batch((), self._connection.nonsense(line))

    def cut_failure(self, start: bytes) -> RemoteCallError | None:
        """Make the error of a failed call from the beginning of a line beyond the cap."""
        return cut_failure(start, None)

    def cut_short(self) -> SandboxGoneError:
        """Make the error for a stream without its `end`."""
        name = f"{self._stub.package}.{self._stub.method}"
        return self._connection.gone(f"the stream of {name} stopped without its end")
