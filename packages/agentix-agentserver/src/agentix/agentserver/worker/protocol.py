"""The protocol: what the pump, the fork server and the workers say to each other.

The pump and the fork server call messages of a fixed form on one socket. A call goes to its
worker as a length and msgpack, which carries the payload's plain values. An answer comes back as a
fixed header and bytes:

    length (4 bytes) | call id (8 bytes) | outcome (1 byte) | content (length bytes)

so the pump reads what a worker wrote without any parser. All numbers are big-endian.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any, TypedDict

import msgpack  # type: ignore[import-untyped]

from agentix.agentserver.errors import FrameError, OversizedError

__all__ = [
    "ANSWER_HEADER",
    "BORN",
    "DESCRIPTION",
    "ENDED",
    "FORK",
    "KILL",
    "LENGTH",
    "ORDER",
    "READY",
    "STATE",
    "AnswerReader",
    "CallOutcome",
    "ForkServerConfig",
    "pack",
    "pack_answer",
    "pack_frame",
    "unpack",
]


class ForkServerConfig(TypedDict):
    """What every worker is to be like. It names no listener."""

    path: list[str]
    """Where modules are imported from."""
    preload: list[str]
    """The trusted modules that every worker has."""
    readable: list[str]
    """What workers may read beside the path and the system's libraries."""
    hidden: list[str]
    """What workers must not read, wherever it is."""
    memory: int
    """The address space, in bytes."""
    cpu: int
    """The processor time, in seconds."""
    processes: int
    """How many processes and threads."""
    open_files: int
    """How many descriptors."""
    file_size: int
    """The size of a file, and of all in the scratch directory, in bytes."""
    scratch: str
    """The directory of the scratch directories, where workers have no root of their own."""


ORDER = struct.Struct(">BQ")
"""The pump to the fork server: what to do, and the number of the worker."""

FORK = 1
"""Fork a worker. The worker's end of its socket, and a pipe for its output, come with it."""

KILL = 2
"""Kill a worker."""

STATE = struct.Struct(">BQi")
"""The fork server to the pump: what happened, the number of the worker, and its wait status."""

READY = 3
"""The fork server takes orders. The report of what holds its workers follows, as JSON."""

ENDED = 4
"""A worker has ended."""

BORN = 5
"""A worker is forked; the status is its process id, as the fork server sees it."""


LENGTH = struct.Struct(">I")
"""The header of a call."""

ANSWER_HEADER = struct.Struct(">IQB")
"""The header of an answer: length of the content, call id, outcome."""

DESCRIPTION = 1
"""The id of the call for a description, which is a worker's first and last."""

INTEGER = 1
"""The msgpack extension type of an integer wider than 64 bits, in two's complement."""


class CallOutcome(IntEnum):
    """What a worker says of a call."""

    VALUE = 0
    WRONG_TYPE = 1
    RAISED = 2
    OVERSIZED = 3
    REFUSED = 4


def _pack_wide(value: object) -> msgpack.ExtType:
    if not isinstance(value, int):
        raise TypeError(f"a {type(value).__name__} is not a plain value")
    return msgpack.ExtType(INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


def _unpack_wide(code: int, data: bytes) -> int:
    if code != INTEGER:
        raise ValueError(f"msgpack extension {code} is not known")
    return int.from_bytes(data, "big", signed=True)


_packer = msgpack.Packer(default=_pack_wide)


def pack(value: object) -> bytes:
    """Return a plain value as msgpack."""
    body: bytes = _packer.pack(value)
    return body


def pack_frame(value: object) -> bytes:
    """Return a plain value as a length and msgpack."""
    body = pack(value)
    return LENGTH.pack(len(body)) + body


def unpack(body: bytes) -> Any:
    """Return the value of msgpack.

    Raises:
        ValueError: It is not msgpack, or not of plain values.
    """
    return msgpack.unpackb(body, ext_hook=_unpack_wide)


def pack_answer(call: int, outcome: CallOutcome, content: bytes) -> bytes:
    """Return an answer as bytes."""
    return ANSWER_HEADER.pack(len(content), call, outcome) + content


class AnswerReader:
    """Puts together what a worker writes: one answer, and nothing before the next call.

    Args:
        limit: How many bytes the content of an answer may have.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> tuple[int, int, bytes] | None:
        """Take what was read, and return the answer once it is whole: call id, outcome, content.

        Raises:
            OversizedError: The answer is too large.
            FrameError: There is more than the answer.
        """
        whole: bytes | bytearray = data
        if self._buffer:
            self._buffer += data
            whole = self._buffer
        if len(whole) >= ANSWER_HEADER.size:
            length, call, outcome = ANSWER_HEADER.unpack_from(whole)
            if length > self._limit:
                raise OversizedError(f"an answer of {length} bytes; {self._limit} are the most")
            more = len(whole) - ANSWER_HEADER.size - length
            if more > 0:
                raise FrameError(f"it wrote {more} bytes more than its answer to call {call}")
            if more == 0:
                self._buffer = bytearray()
                return call, outcome, bytes(whole[ANSWER_HEADER.size :])
        if whole is data:
            self._buffer += data
        return None
