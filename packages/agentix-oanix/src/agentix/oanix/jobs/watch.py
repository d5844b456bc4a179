"""Watch: waits for changes of files (inotify(7))."""

import ctypes
import os
import select
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

__all__ = ["Bell", "Watch", "wait_for"]

MODIFY, ATTRIBUTES, CLOSE_WRITE, MOVED_TO, CREATE = 0x02, 0x04, 0x08, 0x80, 0x100
MASK = MODIFY | ATTRIBUTES | CLOSE_WRITE | MOVED_TO | CREATE

_libc = ctypes.CDLL(None, use_errno=True)


class HasFileno(Protocol):
    """Something with a file descriptor."""

    def fileno(self) -> int:
        """Gives the descriptor."""
        ...


def wait_for(ready: Iterable["HasFileno | int"], timeout: float | None) -> set[int]:
    """Waits until something can be read, and gives the descriptors where it can.

    Args:
        ready: What to wait for.
        timeout: Seconds; `None` waits for ever.
    """
    poll = select.poll()
    for source in ready:
        poll.register(source, select.POLLIN)
    milliseconds = None if timeout is None else max(0, int(timeout * 1000) + 1)
    return {number for number, _ in poll.poll(milliseconds)}


class Watch:
    """Notices changes of files, from its making on; a context manager.

    Args:
        paths: Files, or directories for changes of the files in them.

    Raises:
        OSError: A path is missing, or the kernel has no more watches for this user.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._number = _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        for path in paths:
            _checked(_libc.inotify_add_watch(self._number, os.fsencode(path), MASK))

    def fileno(self) -> int:
        """Gives the descriptor, which can be read when something changed."""
        return self._number

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for a change since the last call, and tells whether there was one.

        Args:
            timeout: Seconds; `None` waits for ever.
        """
        changed = bool(wait_for([self], timeout))
        self.clear()
        return changed

    def clear(self) -> None:
        """Forgets the changes so far."""
        try:
            while os.read(self._number, 1 << 16):
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Ends the watch."""
        os.close(self._number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Bell:
    """A file that one process touches and others watch.

    Args:
        path: The file, made where it is missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        """The file."""
        path.touch()

    def ring(self) -> None:
        """Wakes those who watch."""
        os.utime(self.path)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
