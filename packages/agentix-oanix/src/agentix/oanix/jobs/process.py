"""Processes of our own modules, and a pipe that wakes one."""

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

__all__ = ["STUCK", "Wakeup", "catch_signals", "python_command"]

STUCK = 70
"""The exit code of a worker whose job did not end when it was told to."""


def python_command(module: str) -> list[str]:
    """Gives the command that calls `main` of a module, with this process's Python and its paths."""
    path = [entry for entry in sys.path if entry]
    start = f"import sys; sys.path[:] = {path!r}; from {module} import main; sys.exit(main())"
    return [sys.executable, "-I", "-S", "-X", "utf8", "-c", start]


class Wakeup:
    """A pipe that any thread makes readable, for those who wait for several things."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self.writer, False)

    def fileno(self) -> int:
        """Gives the descriptor that can be read after `set`."""
        return self._reader

    def set(self) -> None:
        """Makes it readable, until `taken`."""
        with suppress(BlockingIOError):
            os.write(self.writer, b"\0")

    def taken(self) -> bytes:
        """Gives what was written, such as the numbers of signals, and starts anew."""
        try:
            return os.read(self._reader, 1 << 16)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        """Closes the pipe."""
        os.close(self._reader)
        os.close(self.writer)


def catch_signals(numbers: Sequence[signal.Signals]) -> Wakeup:
    """Has signals wake the main thread and do nothing else."""
    wakeup = Wakeup()
    for number in numbers:
        signal.signal(number, _pass)
    signal.set_wakeup_fd(wakeup.writer, warn_on_full_buffer=False)
    return wakeup


def _pass(number: int, frame: FrameType | None) -> None:
    """Is there so that the signal does not end the process."""
