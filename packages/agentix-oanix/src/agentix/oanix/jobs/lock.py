"""ProcessLock: a file that a process holds for its life, so that others see when it is gone."""

import fcntl
import os
import struct
from pathlib import Path

from agentix.oanix.errors import JobError

__all__ = ["ProcessLock", "holder"]

FLOCK = "@hhqqi"
"""`struct flock` of fcntl(2): type, whence, start, length and process."""


class ProcessLock:
    """A lock of this process on a file; the kernel releases it when the process ends.

    It is a record lock of fcntl(2), which no child inherits. The file must not be opened and closed
    by another part of the process, which would release it.

    Args:
        path: The file, made where it is missing.

    Raises:
        JobError: Another process has it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(self._number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._number)
            raise JobError(f"another process holds {path}") from error

    def release(self) -> None:
        """Gives the lock back."""
        os.close(self._number)


def holder(path: Path) -> int | None:
    """Gives the process that holds a lock; `None` where none does."""
    try:
        number = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = struct.unpack(FLOCK, fcntl.fcntl(number, fcntl.F_GETLK, asked))
    finally:
        os.close(number)
    return None if answer[0] == fcntl.F_UNLCK else int(answer[4])
