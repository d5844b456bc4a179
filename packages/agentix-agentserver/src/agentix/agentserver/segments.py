"""Segments: the files of a journal, each known by the number of the first event after its snapshot.

They are in a directory, or have no name and end with the process.
"""

import fcntl
import os
import tempfile
from pathlib import Path
from typing import Protocol

__all__ = ["NamedSegments", "NamelessSegments", "Segments"]

SUFFIX = ".log"
DIGITS = 20
"""Digits of a name, so that the order of names is that of numbers."""


class Segments(Protocol):
    """Where the files of a journal are."""

    def open(self) -> dict[int, int]:
        """Takes hold of the files, and gives the bytes of each by its number, oldest first."""

    def create(self, first: int) -> int:
        """Makes a file, and gives its descriptor."""

    def write(self, first: int) -> int:
        """Gives a descriptor to read a file and write on it."""

    def read(self, first: int) -> int:
        """Gives a descriptor to read a file.

        Raises:
            FileNotFoundError: It was removed.
        """

    def remove(self, first: int) -> None:
        """Removes a file; who reads it already can go on."""

    def sync(self) -> None:
        """Waits until the disk knows of the files that were made."""

    def close(self) -> None:
        """Lets go of the files."""


class NamedSegments:
    """Files in a directory, which one process at a time holds.

    Args:
        directory: Where they are; it is made where it is absent.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = -1

    def open(self) -> dict[int, int]:
        """Locks the directory, and lists its files.

        Raises:
            BlockingIOError: Another process holds it.
            OSError: It can not be made or read.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        files = self._directory.glob("[0-9]" * DIGITS + SUFFIX)
        return {int(file.stem): file.stat().st_size for file in sorted(files)}

    def create(self, first: int) -> int:
        """Makes a file that only this user can read."""
        return self._open(first, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def write(self, first: int) -> int:
        """Opens a file to read it and write on it."""
        return self._open(first, os.O_RDWR)

    def read(self, first: int) -> int:
        """Opens a file to read it."""
        return self._open(first, os.O_RDONLY)

    def _open(self, first: int, flags: int) -> int:
        return os.open(self._path(first), flags | os.O_CLOEXEC, 0o600)

    def _path(self, first: int) -> Path:
        return self._directory / f"{first:0{DIGITS}}{SUFFIX}"

    def remove(self, first: int) -> None:
        """Removes a file."""
        self._path(first).unlink(missing_ok=True)

    def sync(self) -> None:
        """Waits until the disk has the directory."""
        directory = os.open(self._directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def close(self) -> None:
        """Lets others have the directory."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


class NamelessSegments:
    """Files that nobody else can open, and that the end of the process removes."""

    def __init__(self) -> None:
        self._files: dict[int, int] = {}

    def open(self) -> dict[int, int]:
        """Begins without files."""
        return {}

    def create(self, first: int) -> int:
        """Makes a file without a name."""
        with tempfile.TemporaryFile() as file:
            self._files[first] = os.dup(file.fileno())
        return self.write(first)

    def write(self, first: int) -> int:
        """Gives another descriptor of a file."""
        return os.dup(self._files[first])

    def read(self, first: int) -> int:
        """Gives another descriptor of a file."""
        if first not in self._files:
            raise FileNotFoundError(first)
        return os.dup(self._files[first])

    def remove(self, first: int) -> None:
        """Closes a file, which removes it."""
        os.close(self._files.pop(first))

    def sync(self) -> None:
        """Waits for nothing: what has no name is not found again."""

    def close(self) -> None:
        """Closes all files."""
        while self._files:
            self.remove(next(iter(self._files)))
