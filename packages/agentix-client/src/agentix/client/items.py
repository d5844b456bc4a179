"""The items of a streaming stub: from lines of NDJSON to values (protocol: Streaming returns)."""

from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from agentix.client.answer import decode_value, parse, remote_call_error
from agentix.client.connection import Connection
from agentix.client.stream import Batch
from agentix.errors import AgentixError, SandboxGoneError
from agentix.stub import Codec, Stub

__all__ = ["ItemDecoder"]

T = TypeVar("T")

ITEM = b'{"item":'
BETWEEN = b'}\n{"item":'


class ItemDecoder(Generic[T]):
    """Decodes the events `item`, `end` and `error`.

    Args:
        connection: Where the answer comes from.
        stub: The stub that was called.
        items: The codec of a list of the stub's items.
    """

    def __init__(self, connection: Connection, stub: Stub, items: Codec[list[T]]) -> None:
        self._connection = connection
        self._stub = stub
        self._items = items

    def decode(self, lines: bytes) -> Batch[T]:
        """Decodes lines; what follows an ending among them is ignored."""
        last = lines.rfind(b"\n", 0, -1) + 1
        cut = len(lines) if lines.startswith(ITEM, last) else last
        items = self._decode_together(lines[:cut])
        if items is None:
            return self._decode_singly(lines)
        rest = self._decode_singly(lines[cut:])
        items.extend(rest.items)
        return Batch(items, rest.ending)

    def _decode_together(self, lines: bytes) -> list[T] | None:
        """Decodes lines that are all items, spaced as the runtime does, as one JSON array.

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
            match parse(line):
                case {"item": value}:
                    try:
                        items.append(decode_value(self._stub, self._stub.result, value))
                    except AgentixError as error:
                        return Batch(items, error)
                case {"end": True}:
                    return Batch(items, StopAsyncIteration())
                case {"error": fields}:
                    return Batch(items, self._failure(fields, line))
                case _:
                    return Batch(items, self._connection.nonsense(line))
        return Batch(items)

    def _failure(self, fields: Any, line: bytes) -> AgentixError:
        return remote_call_error(fields) or self._connection.nonsense(line)

    def cut_short(self) -> SandboxGoneError:
        """Makes the error for a stream without its `end`."""
        name = f"{self._stub.package}.{self._stub.method}"
        return self._connection.gone(f"the stream of {name} stopped without its end")
