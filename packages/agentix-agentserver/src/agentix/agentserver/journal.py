"""The journal: a write-ahead log of frames, each whole or absent, which is the audit log too.

A frame is its length, its CRC-32 and a msgpack list of entries. One frame is one step of the pump:
the end of a delivery stands in the frame of the messages that followed from it. A frame reaches the
kernel before the step has an effect, so the end of the process loses none; `disk` waits until the
disk has it too.
"""

import asyncio
import fcntl
import logging
import mmap
import os
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from struct import Struct
from types import TracebackType
from typing import Any, Self

import msgpack  # type: ignore[import-untyped]

from agentix.errors import UsageError

__all__ = ["Entry", "Journal", "JournalError"]

Entry = Sequence[Any]
"""What is written of one fact: a number that says which, and its values."""

logger = logging.getLogger(__name__)

HEADER = Struct("<II")
FILE = "journal.log"
LAZY = 1 << 18
"""Bytes that wait in memory where nothing is to survive the process."""


class JournalError(UsageError):
    """A journal can not be used: another organism holds it, or its directory can not be written."""


class Journal:
    """The file; one organism at a time holds it.

    Args:
        directory: Where it is; `None` keeps it in a file without a name, which ends with it.
        disk: Whether `synced` waits for the disk.
    """

    def __init__(self, directory: Path | None, *, disk: bool = False) -> None:
        self._directory = directory
        self._disk = disk
        self._file = -1
        self._size = 0
        self._broken: JournalError | None = None
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._pack = msgpack.Packer(use_bin_type=True).pack
        self._syncing: asyncio.Future[None] | None = None

    def open(self) -> None:
        """Opens the file and cuts off a frame that was not written whole.

        Raises:
            JournalError: Another organism holds it, or it can not be written.
        """
        if self._directory is None:
            with tempfile.TemporaryFile() as file:
                self._file = os.dup(file.fileno())
            return
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            path = self._directory / FILE
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise JournalError(
                f"{self._directory}: another organism uses this journal; end it, or give this one "
                "a journal of its own"
            ) from None
        except OSError as error:
            raise JournalError(
                f"{self._directory}: no journal can be kept here: {error}"
            ) from error
        self._size = os.fstat(self._file).st_size
        end = 0
        for _, position in self._frames(0):
            end = position
        os.ftruncate(self._file, end)
        self._size = end
        os.lseek(self._file, end, os.SEEK_SET)

    def close(self) -> None:
        """Writes what waits, and closes the file."""
        if self._file >= 0:
            with suppress(JournalError):
                self._flush()
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def write(self, entries: Sequence[Entry]) -> None:
        """Writes entries as one frame; the kernel has it when this returns."""
        body: bytes = self._pack(entries)
        self._waiting.append(HEADER.pack(len(body), zlib.crc32(body)))
        self._waiting.append(body)
        self._waiting_bytes += HEADER.size + len(body)
        if self._directory is not None or self._waiting_bytes > LAZY:
            self._flush()

    def _flush(self) -> None:
        data = b"".join(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        if self._broken is not None:
            raise self._broken
        try:
            while data:
                written = os.write(self._file, data)
                self._size += written
                data = data[written:]
        except OSError as error:
            # A frame in part would hide those after it; nothing is taken that is not written.
            self._broken = JournalError(
                f"{self._directory}: the journal can not be written: {error}"
            )
            logger.critical("%s; the organism takes no more messages", self._broken)
            raise self._broken from error

    @property
    def on_disk(self) -> bool:
        """Whether `synced` waits for the disk."""
        return self._disk

    async def synced(self) -> None:
        """Waits, with `disk`, until the disk has all that was written; many wait for one sync."""
        if not self._disk:
            return
        if self._syncing is not None:
            # What is under way may have begun before the frame was written.
            await asyncio.shield(self._syncing)
        if self._syncing is None:
            loop = asyncio.get_running_loop()
            self._syncing = loop.run_in_executor(None, os.fdatasync, self._file)
            self._syncing.add_done_callback(self._sync_ended)
        await asyncio.shield(self._syncing)

    def _sync_ended(self, _: asyncio.Future[None]) -> None:
        self._syncing = None

    def frames(self, containing: bytes = b"") -> Iterator[list[Entry]]:
        """Gives the frames that were written so far, oldest first.

        Args:
            containing: Bytes that a frame must hold to be given.
        """
        self._flush()
        for body, _ in self._frames(0):
            if containing in body:
                yield msgpack.unpackb(body, use_list=True)

    def _frames(self, position: int) -> Iterator[tuple[bytes, int]]:
        """Gives the body of each whole frame, and where the next one begins."""
        end = self._size
        if position == end:
            return
        with mmap.mmap(self._file, end, access=mmap.ACCESS_READ) as data:
            while position + HEADER.size <= end:
                length, checksum = HEADER.unpack_from(data, position)
                position += HEADER.size
                body = data[position : position + length]
                position += length
                if len(body) < length or zlib.crc32(body) != checksum:
                    return
                yield body, position
