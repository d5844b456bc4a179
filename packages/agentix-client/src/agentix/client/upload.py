"""Upload: a file as the body of a multipart request (RFC 7578), streamed.

aiohttp's own multipart writer is several times slower, so the few bytes around the file are
written here.
"""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator
from typing import BinaryIO

from agentix.errors import ArgumentsError

__all__ = ["Upload", "size_of"]

CHUNK = 256 * 1024
"""Bytes that go to the socket at a time."""


class Upload:
    """The body of an upload; it can be read once.

    Args:
        source: The content, or a file that is read from where it stands to its end.
        size: The bytes that are to come; `None` where that is not known.
        path: Where the file goes in the sandbox.
        mode: The file's permission bits; the runtime's default where it is `None`.

    Raises:
        ArgumentsError: The path has no form in UTF-8.
    """

    def __init__(
        self, source: bytes | BinaryIO, size: int | None, path: str, mode: int | None
    ) -> None:
        self.failure: Exception | None = None
        """Why the source could not be read, where it could not."""
        self._source = source
        self._size = size
        boundary = secrets.token_hex(16)
        fields = {"path": path} if mode is None else {"path": path, "mode": f"{mode:o}"}
        self._head = _head(boundary, fields)
        self._tail = f"\r\n--{boundary}--\r\n".encode()
        self.headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        """The headers of the request."""
        if size is not None:
            self.headers["Content-Length"] = str(len(self._head) + size + len(self._tail))

    async def __aiter__(self) -> AsyncIterator[bytes | memoryview]:
        """Gives the body in pieces."""
        yield self._head
        pieces = _slices(self._source) if isinstance(self._source, bytes) else self._pieces()
        async for piece in pieces:
            yield piece
        yield self._tail

    async def _pieces(self) -> AsyncIterator[bytes]:
        """Reads the file in a thread, and no further than the size that was announced."""
        assert not isinstance(self._source, bytes)
        left = self._size
        try:
            while left is None or left > 0:
                piece = await asyncio.to_thread(
                    self._source.read, CHUNK if left is None else min(CHUNK, left)
                )
                if not piece and left is None:
                    return
                if not piece:
                    raise EOFError(f"the file is {left} bytes shorter than when it was opened")
                left = None if left is None else left - len(piece)
                yield piece
        except Exception as error:
            self.failure = error
            raise


async def _slices(content: bytes) -> AsyncIterator[memoryview]:
    view = memoryview(content)
    for start in range(0, len(view), CHUNK):
        yield view[start : start + CHUNK]


def _head(boundary: str, fields: dict[str, str]) -> bytes:
    """Writes the fields, and the header of the part that the file is."""
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
    """Tells how many bytes are left to read, or `None` where only reading tells.

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
