"""Download: a file of the sandbox, streamed into a local file that is replaced as a whole."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from aiohttp import ClientResponse

from agentix.client.bounds import Cap
from agentix.client.connection import Connection
from agentix.errors import ArgumentsError

__all__ = ["READ_BUFFER", "range_header", "save"]

READ_BUFFER = 256 * 1024
"""Bytes that may wait to be written: twice as many stop the reading from the socket."""


BLOCK = 4096
"""Bytes of a block of a file: one that is never written takes no room on the disk."""

EMPTY_BLOCK = bytes(BLOCK)
ZEROS = bytes(4 * READ_BUFFER)


async def save(connection: Connection, response: ClientResponse, target: Path, cap: Cap) -> int:
    """Write the body of an answer to a file and return its size in bytes.

    The writes are some hundred kibibytes into the page cache, 0.1 ms each, and stay on the event
    loop: handing them to a thread takes twice the time of the whole download.

    Args:
        connection: Where the answer comes from.
        response: The answer.
        target: The file.
        cap: The most that the file may have.

    Raises:
        AnswerTooLargeError: The answer is beyond its cap.
        SandboxGoneError: The answer broke off; what was at `target` is still there.
        OSError: The file cannot be written.
    """
    size = 0
    try:
        cap.check_size(response.content_length)
        with replacing(target) as file:
            while chunk := await connection.read_some(response, connection.answer_timeout):
                write_sparsely(file, chunk, size)
                size += len(chunk)
            file.truncate(size)
    except BaseException:
        response.close()
        raise
    finally:
        response.release()
    return size


def write_sparsely(file: BinaryIO, chunk: bytes, position: int) -> None:
    """Write bytes to a new file at a position, and leave out whole blocks of zeros.

    What is not written of a file reads as zeros, and takes no room (man 2 lseek).
    """
    if ZEROS.startswith(chunk):
        return
    for start, end in _runs(chunk, position % BLOCK):
        file.seek(position + start)
        file.write(chunk[start:end])


def _runs(chunk: bytes, offset: int) -> Iterator[tuple[int, int]]:
    """Iterate over the parts of a chunk between whole blocks of zeros.

    Args:
        chunk: The bytes.
        offset: Where in a block of the file they begin.
    """
    begun = 0
    for start in range(-offset % BLOCK, len(chunk) - BLOCK + 1, BLOCK):
        if chunk.startswith(EMPTY_BLOCK, start):
            if begun < start:
                yield begun, start
            begun = start + BLOCK
    if begun < len(chunk):
        yield begun, len(chunk)


@contextmanager
def replacing(target: Path) -> Iterator[BinaryIO]:
    """Open a new file, which takes the place of `target` if the block ends without an error."""
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
    """Make the header that asks for a part of a file; none for the whole (RFC 9110, 14.2).

    Raises:
        ArgumentsError: The part is empty, or starts before the file does.
    """
    if start < 0 or (length is not None and length < 1):
        raise ArgumentsError(f"start {start} and length {length}: there is no such part of a file")
    if start == 0 and length is None:
        return {}
    return {"Range": f"bytes={start}-{'' if length is None else start + length - 1}"}
