"""The journal: a write-ahead log of frames, each whole or absent, which is the audit log too.

A frame is its length, its CRC-32 and a msgpack list of values. One frame is one step of the pump:
the end of a delivery stands in the frame of the messages that followed from it. A frame reaches the
kernel before the step has an effect, so the end of the process loses none; `disk` waits until the
disk has it too.

Frames are in segments: files, each known by the number of the first event after its snapshot, in a
directory or without a name. Each but the very first begins with a snapshot of what all before it
came to, so that a start reads the last one only; the others are there for the audit."""

import asyncio
import fcntl
import logging
import mmap
import os
import tempfile
from bisect import bisect
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from struct import Struct
from types import TracebackType
from typing import Any, Protocol, Self
from zlib import crc32

import msgpack  # type: ignore[import-untyped]

from agentix.agentserver.errors import JournalError

__all__ = [
    "Frame",
    "Journal",
    "NamedSegments",
    "NamelessSegments",
    "Segments",
]

logger = logging.getLogger(__name__)


SUFFIX = ".log"
DIGITS = 20
"""Digits of a name, so that the order of names is that of numbers."""


class Segments(Protocol):
    """Where the files of a journal are."""

    def open(self) -> dict[int, int]:
        """Take hold of the files, and return the bytes of each by its number, oldest first."""

    def create(self, first: int) -> int:
        """Make a file, and return its descriptor."""

    def write(self, first: int) -> int:
        """Return a descriptor to read a file and write on it."""

    def read(self, first: int) -> int:
        """Return a descriptor to read a file.

        Raises:
            FileNotFoundError: It was removed.
        """

    def remove(self, first: int) -> None:
        """Remove a file; who reads it already can go on."""

    def sync(self) -> None:
        """Wait until the disk knows of the files that were made."""

    def close(self) -> None:
        """Let go of the files."""


class NamedSegments:
    """Files in a directory, which one process at a time holds.

    Args:
        directory: Where they are; it is made where it is absent.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = -1

    def open(self) -> dict[int, int]:
        """Lock the directory, and lists its files.

        Raises:
            BlockingIOError: Another process holds it.
            OSError: It cannot be made or read.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        files = self._directory.glob("[0-9]" * DIGITS + SUFFIX)
        return {int(file.stem): file.stat().st_size for file in sorted(files)}

    def create(self, first: int) -> int:
        """Make a file that only this user can read."""
        return self._open(first, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def write(self, first: int) -> int:
        """Open a file to read it and write on it."""
        return self._open(first, os.O_RDWR)

    def read(self, first: int) -> int:
        """Open a file to read it."""
        return self._open(first, os.O_RDONLY)

    def _open(self, first: int, flags: int) -> int:
        return os.open(self._path(first), flags | os.O_CLOEXEC, 0o600)

    def _path(self, first: int) -> Path:
        return self._directory / f"{first:0{DIGITS}}{SUFFIX}"

    def remove(self, first: int) -> None:
        """Remove a file."""
        self._path(first).unlink(missing_ok=True)

    def sync(self) -> None:
        """Wait until the disk has the directory."""
        directory = os.open(self._directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def close(self) -> None:
        """Let others have the directory."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


class NamelessSegments:
    """Files that nobody else can open, and that the end of the process removes."""

    def __init__(self) -> None:
        self._files: dict[int, int] = {}

    def open(self) -> dict[int, int]:
        """Begin without files."""
        return {}

    def create(self, first: int) -> int:
        """Make a file without a name."""
        with tempfile.TemporaryFile() as file:
            self._files[first] = os.dup(file.fileno())
        return self.write(first)

    def write(self, first: int) -> int:
        """Return another descriptor of a file."""
        return os.dup(self._files[first])

    def read(self, first: int) -> int:
        """Return another descriptor of a file."""
        if first not in self._files:
            raise FileNotFoundError(first)
        return os.dup(self._files[first])

    def remove(self, first: int) -> None:
        """Close a file, which removes it."""
        os.close(self._files.pop(first))

    def sync(self) -> None:
        """Wait for nothing: what has no name is not found again."""

    def close(self) -> None:
        """Close all files."""
        while self._files:
            self.remove(next(iter(self._files)))


Frame = Sequence[Any]
"""The values that are written as one."""


HEADER = Struct("<II")
pack_header = HEADER.pack
FIRST = 1
"""The number of the first event, and of the segment that nothing goes before."""
SEGMENT_BYTES = 1 << 24
LENIENT = "surrogatepass"
"""How text is written and read that has no UTF-8."""
LAZY = 1 << 18
"""Bytes that wait in memory where nothing is to survive the process."""


class Journal:
    """The files; one organism at a time holds them.

    Args:
        directory: Where they are; `None` keeps them without names, so that they end with it.
        disk: Whether `synced` waits for the disk.
        segment_bytes: The bytes of a segment, without its snapshot, after which it is full.
        keep_bytes: The bytes of full segments that are kept, the last of which is kept always;
            the oldest are removed first. `None` keeps all.
    """

    def __init__(
        self,
        directory: Path | None,
        *,
        disk: bool = False,
        segment_bytes: int = SEGMENT_BYTES,
        keep_bytes: int | None = None,
    ) -> None:
        self._directory = directory
        self._segments: Segments = (
            NamelessSegments() if directory is None else NamedSegments(directory)
        )
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._keep_bytes = keep_bytes
        self._sizes: dict[int, int] = {}
        self._file = -1
        self._size = 0
        self._limit = 0
        self._broken: JournalError | None = None
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._pack = msgpack.Packer().pack
        self._unsynced: list[int] = []
        self._new = False
        self._syncing: asyncio.Future[None] | None = None
        self.first = FIRST
        """The number of the first event of the segment that is written."""

    def open(self) -> None:
        """Open the last segment, and cuts off a frame that was not written whole.

        Raises:
            JournalError: Another organism holds it, it cannot be written, or nothing of it is
                whole.
        """
        try:
            self._sizes = self._segments.open()
            self._take_up()
        except BlockingIOError:
            self._segments.close()
            raise JournalError(
                f"{self._directory}: another organism uses this journal; end it, or give this one "
                "a journal of its own"
            ) from None
        except OSError as error:
            self._segments.close()
            raise JournalError(
                f"{self._directory}: no journal can be kept here: {error}"
            ) from error

    def _take_up(self) -> None:
        """Go on in the last segment that has a whole beginning, and remove those after it."""
        if not self._sizes:
            self._enter(FIRST, self._segments.create(FIRST), 0, 0)
            return
        for first, size in reversed(self._sizes.items()):
            file = self._segments.write(first)
            ends = [end for _, end in _frames(_mapped(file, size))]
            if ends or first == FIRST:
                break
            os.close(file)
        else:
            self._segments.close()
            raise JournalError(
                f"{self._directory}: no segment of this journal is whole; move it away to begin "
                "anew"
            )
        for torn in [each for each in self._sizes if each > first]:
            # Nothing in it was acknowledged: its snapshot is written before what follows.
            logger.warning("%s: segment %d was cut off as it began", self._directory, torn)
            self._remove(torn)
        size = ends[-1] if ends else 0
        os.ftruncate(file, size)
        os.lseek(file, size, os.SEEK_SET)
        self._enter(first, file, 0 if first == FIRST else ends[0], size)

    def _enter(self, first: int, file: int, snapshot: int, size: int) -> None:
        """Write to a segment from now on."""
        self.first, self._file, self._size = first, file, size
        self._sizes[first] = size
        self._new = True
        # A large snapshot is not written more often than as much again has happened.
        self._limit = snapshot + max(self._segment_bytes, snapshot)

    def close(self) -> None:
        """Write what waits, and close the files."""
        if self._file < 0:
            return
        try:
            if self._broken is None:
                self._flush()
        finally:
            for file in (*self._unsynced, self._file):
                os.close(file)
            self._unsynced.clear()
            self._file = -1
            self._segments.close()

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

    def write(self, frame: Frame) -> bool:
        """Write values as one frame; the kernel has it when this returns.

        Returns:
            Whether the segment is full, and the next one is to begin.

        Raises:
            JournalError: It cannot be written, and nothing more will be.
        """
        try:
            body = self._pack(frame)
        except UnicodeEncodeError:  # a name or a reason from outside that is no text
            body = msgpack.packb(frame, unicode_errors=LENIENT)
        data = pack_header(len(body), crc32(body)) + body
        if self._directory is not None:
            return self._put(data)
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        return self._waiting_bytes > LAZY and self._flush()

    def _flush(self) -> bool:
        """Write what waits."""
        if not self._waiting:
            return False
        data = b"".join(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        return self._put(data)

    def _put(self, data: bytes) -> bool:
        if self._broken is not None:
            raise self._broken
        try:
            written = os.write(self._file, data)
            while written < len(data):
                written += os.write(self._file, data[written:])
        except OSError as error:
            raise self._break(error) from error
        self._size = size = self._size + written
        return size >= self._limit

    def _break(self, error: OSError) -> JournalError:
        """Take nothing more: a frame in part would hide those after it."""
        self._broken = JournalError(f"{self._directory}: the journal cannot be written: {error}")
        logger.critical("%s; the organism takes no more messages", self._broken)
        return self._broken

    def begin(self, first: int, snapshot: Frame) -> None:
        """Begin the next segment.

        All frames before it are written by then, and the snapshot is before any after it; so there
        is a whole segment to go on in whenever the process ends.

        Args:
            first: The number of the next event, which is not that of a segment.
            snapshot: What all frames so far come to.
        """
        self._flush()
        try:
            file = self._segments.create(first)
        except OSError as error:
            self._break(error)
            return
        self._sizes[self.first] = self._size
        if self._disk:
            self._unsynced.append(self._file)
        else:
            os.close(self._file)
        self._enter(first, file, 0, 0)
        # What was to be written has been; where this fails it is the next that is not taken.
        with suppress(JournalError):
            self.write(snapshot)
            self._flush()
            self._enter(first, file, self._size, self._size)
        # A packer keeps the memory that its largest frame took.
        self._pack = msgpack.Packer().pack
        if not self._disk:
            self._remove_old()

    def _remove_old(self) -> None:
        """Remove the oldest segments, so that no more than is to be kept stay."""
        if self._keep_bytes is None:
            return
        *old, _, _ = self._sizes if len(self._sizes) > 1 else (0, 0)
        kept = sum(self._sizes.values()) - self._size
        for first in old:
            if kept <= self._keep_bytes:
                return
            kept -= self._sizes[first]
            self._remove(first)

    def _remove(self, first: int) -> None:
        self._segments.remove(first)
        del self._sizes[first]

    @property
    def on_disk(self) -> bool:
        """Whether `synced` waits for the disk."""
        return self._disk

    async def synced(self) -> None:
        """Wait, with `disk`, until the disk has all that was written; many wait for one sync.

        Raises:
            JournalError: The disk does not take it.
        """
        if not self._disk:
            return
        if self._syncing is not None:
            # What is under way may have begun before the frame was written.
            await asyncio.shield(self._syncing)
        if self._syncing is None:
            files, self._unsynced = [*self._unsynced, os.dup(self._file)], []
            new, self._new = self._new, False
            loop = asyncio.get_running_loop()
            self._syncing = loop.run_in_executor(None, self._sync, files, new)
            self._syncing.add_done_callback(self._sync_ended)
        await asyncio.shield(self._syncing)

    def _sync(self, files: Sequence[int], new: bool) -> None:
        """Wait in a thread until the disk has files, which are closed, and knows of new ones."""
        try:
            for file in files:
                os.fdatasync(file)
            if new:
                self._segments.sync()
        except OSError as error:
            # The kernel drops what it could not write, so that trying again would prove nothing.
            raise self._break(error) from error
        finally:
            for file in files:
                os.close(file)

    def _sync_ended(self, syncing: asyncio.Future[None]) -> None:
        self._syncing = None
        if not syncing.exception() and self._file >= 0 and not self._unsynced:
            # The disk has the segment that is written, with a snapshot of all before it.
            self._remove_old()

    def snapshot(self) -> list[Any] | None:
        """Return what the segment that is written begins with; `None` where nothing goes before."""
        if self.first == FIRST:
            return None
        body, _ = next(_frames(_mapped(self._file, self._size)))
        return _unpacked(body)

    def segments(self, after: int = 0) -> list[int]:
        """Return the numbers of those segments, oldest first, that have the events after one.

        Each is the number of its first event; that of the first one given is greater than that of
        the event that is looked for where that one was removed.
        """
        firsts = list(self._sizes)
        return firsts[max(0, bisect(firsts, after + 1) - 1) :]

    def frames(self, segment: int, containing: bytes = b"") -> Iterator[list[Any]]:
        """Return the frames that were written to a segment so far, oldest first.

        Args:
            segment: Its number.
            containing: Bytes that a frame must hold to be given.

        Raises:
            FileNotFoundError: The segment was removed.
        """
        self._flush()
        file = self._segments.read(segment)
        try:
            data = _mapped(file, self._size if segment == self.first else self._sizes[segment])
        finally:
            os.close(file)
        bodies = (body for body, _ in islice(_frames(data), segment != FIRST, None))
        return (_unpacked(body) for body in bodies if containing in body)


def _mapped(file: int, size: int) -> bytes | mmap.mmap:
    """Return the contents of a file, which are read as they are needed."""
    return mmap.mmap(file, size, access=mmap.ACCESS_READ) if size else b""


def _unpacked(body: bytes) -> list[Any]:
    frame: list[Any] = msgpack.unpackb(body, unicode_errors=LENIENT)
    return frame


def _frames(data: bytes | mmap.mmap) -> Iterator[tuple[bytes, int]]:
    """Return the body of each whole frame, and where the next one begins."""
    position = 0
    while position + HEADER.size <= len(data):
        length, checksum = HEADER.unpack_from(data, position)
        position += HEADER.size
        body = data[position : position + length]
        position += length
        if len(body) < length or crc32(body) != checksum:
            return
        yield body, position
