"""Download: a file of the sandbox, streamed into a local file that is replaced as a whole."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from aiohttp import ClientResponse

from agentix.client.connection import Connection
from agentix.errors import ArgumentsError

__all__ = ["READ_BUFFER", "range_header", "save"]

READ_BUFFER = 256 * 1024
"""Bytes that may wait to be written: twice as many stop the reading from the socket."""


async def save(connection: Connection, response: ClientResponse, target: Path) -> int:
    """Writes the body of an answer to a file and gives its size in bytes.

    The writes are some hundred kibibytes into the page cache, 0.1 ms each, and stay on the event
    loop: handing them to a thread takes twice the time of the whole download.

    Raises:
        SandboxGoneError: The answer broke off; what was at `target` is still there.
        OSError: The file can not be written.
    """
    size = 0
    try:
        with replacing(target) as file:
            while chunk := await connection.read_some(response):
                size += file.write(chunk)
    finally:
        response.release()
    return size


@contextmanager
def replacing(target: Path) -> Iterator[BinaryIO]:
    """Opens a new file, which takes the place of `target` if the block ends without an error."""
    part = target.with_name(f".{target.name[:200]}.{secrets.token_hex(8)}.part")
    with part.open("xb") as file:
        try:
            yield file
            file.flush()
            part.replace(target)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


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
