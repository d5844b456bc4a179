"""Download: a file of the sandbox, streamed into a local file that is replaced as a whole."""

import asyncio
import secrets
from pathlib import Path
from threading import Lock
from typing import BinaryIO

from aiohttp import ClientResponse

from agentix.client.connection import Connection
from agentix.errors import ArgumentsError

__all__ = ["READ_BUFFER", "range_header", "save"]

READ_BUFFER = 512 * 1024
"""Bytes that may wait while a piece is written to the disk: twice as many stop the reading."""


class Replacement:
    """A file that takes the place of another once it is complete.

    Its methods are made for threads: each waits for the one under way, and after `discard`
    nothing is written any more.
    """

    def __init__(self, target: Path) -> None:
        self._target = target
        self._part = target.with_name(f".{target.name[:200]}.{secrets.token_hex(8)}.part")
        self._lock = Lock()
        self._file: BinaryIO | None = None
        self._done = False

    def write(self, chunk: bytes) -> None:
        """Adds to the file; the first call makes it."""
        with self._lock:
            if self._done:
                return
            if self._file is None:
                self._file = self._part.open("xb", buffering=0)
            view = memoryview(chunk)
            while view:
                view = view[self._file.write(view) :]

    def commit(self) -> None:
        """Puts the file in the place of its target."""
        with self._lock:
            if self._done or self._file is None:
                return
            self._file.close()
            self._part.replace(self._target)
            self._done = True

    def discard(self) -> None:
        """Removes what was written, where it was not put in place."""
        with self._lock:
            if self._file is not None and not self._done:
                self._file.close()
                self._part.unlink(missing_ok=True)
            self._done = True


async def save(connection: Connection, response: ClientResponse, target: Path) -> int:
    """Writes the body of an answer to a file and gives its size in bytes.

    Raises:
        SandboxGoneError: The answer broke off; what was at `target` is still there.
        OSError: The file can not be written.
    """
    size = 0
    file = Replacement(target)
    try:
        await asyncio.to_thread(file.write, b"")
        while chunk := await connection.read_some(response):
            await asyncio.to_thread(file.write, chunk)
            size += len(chunk)
        await asyncio.to_thread(file.commit)
    finally:
        file.discard()
        response.release()
    return size


def range_header(start: int, length: int | None) -> dict[str, str]:
    """Makes the header that asks for a part of a file; none for the whole (RFC 9110, 14.2).

    Raises:
        ArgumentsError: The part is empty, or starts before the file does.
    """
    if start < 0 or (length is not None and length < 1):
        raise ArgumentsError(f"start {start} and length {length}: there is no such part of a file")
    if start == 0 and length is None:
        return {}
    return {"Range": f"bytes={start}-{'' if length is None else start + length - 1}"}
