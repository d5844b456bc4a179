"""Upload: a file as the body of a multipart request (RFC 7578), streamed.

aiohttp's own multipart writer is several times slower, so the few bytes around the file are
written here.
"""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator
from typing import BinaryIO

from agentix.client.body import Pieces, slices
from agentix.errors import ArgumentsError

__all__ = ["Upload", "size_of"]


READ_SIZE = 1024 * 1024
"""Bytes of a file that are read at a time, in a thread; with fewer, the hand-over shows."""


class Upload(Pieces):
    """The body of an upload; it can be sent once.

    Args:
        source: The content, or a file that is read from where it stands to its end.
        size: The bytes that are to come; `None` where that is not known.
        path: Where the file goes in the sandbox.
        mode: The file's permission bits; the runtime's default where it is `None`.

    Raises:
        ArgumentsError: The path is empty, or has no form in UTF-8.
    """

    def __init__(
        self, source: bytes | BinaryIO, size: int | None, path: str, mode: int | None
    ) -> None:
        if not path:
            raise ArgumentsError("an upload needs a path in the sandbox")
        boundary = secrets.token_hex(16)
        super().__init__(source, content_type=f"multipart/form-data; boundary={boundary}")
        self.failure: Exception | None = None
        """Why the source could not be read, where it could not."""
        self._source = source
        self._left = size
        self._is_reading = False
        fields = {"path": path} if mode is None else {"path": path, "mode": f"{mode:o}"}
        self._head = _head(boundary, fields)
        self._tail = f"\r\n--{boundary}--\r\n".encode()
        if size is not None:
            self._size = len(self._head) + size + len(self._tail)

    async def pieces(self) -> AsyncIterator[bytes | memoryview]:
        """Iterate over the form; of a file no more than the size that was announced."""
        yield self._head
        if isinstance(self._source, bytes):
            for view in slices(self._source):
                yield view
        else:
            while piece := await self._read(self._source):
                yield piece
        yield self._tail

    def progress(self) -> object:
        """Return how much of the form was taken; `None` while the source is to give more."""
        return None if self._is_reading else super().progress()

    async def _read(self, source: BinaryIO) -> bytes:
        """Read the next piece in a thread."""
        left = READ_SIZE if self._left is None else min(READ_SIZE, self._left)
        self._is_reading = True
        try:
            piece = await asyncio.to_thread(source.read, left) if left else b""
            if not piece and self._left:
                raise EOFError(f"the file is {self._left} bytes shorter than it was at first")
        except Exception as error:
            self.failure = error
            raise
        finally:
            self._is_reading = False
        if self._left is not None:
            self._left -= len(piece)
        return piece


def _head(boundary: str, fields: dict[str, str]) -> bytes:
    """Write the fields, and the header of the part that the file is."""
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    ]
    parts.append(
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="file"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    )
    try:
        return "".join(parts).encode()
    except UnicodeEncodeError as error:
        raise ArgumentsError(f"the path {fields['path']!r} is not valid Unicode") from error


def size_of(source: bytes | BinaryIO) -> int | None:
    """Return how many bytes are left to read, or `None` where only reading tells.

    Files under `/proc` and `/sys` say that they are empty, so an empty file is read to be sure.
    """
    if isinstance(source, bytes):
        return len(source)
    if not source.seekable():
        return None
    start = source.tell()
    end = source.seek(0, os.SEEK_END)
    source.seek(start)
    return end - start or None
