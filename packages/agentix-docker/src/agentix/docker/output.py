"""What a container prints, as lines."""

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator

__all__ = ["Output"]

STDOUT, STDERR = 1, 2
MAX_LINE = 16 * 1024
"""Bytes after which a line counts as ended, so that one without an end takes no more memory."""


class Output:
    """Splits what a container prints into lines and remembers the last of them.

    Args:
        messages: Pairs of a file descriptor and bytes, as `Engine.output_of` yields them.
        keep: How many lines to remember of each of standard output and standard error.
    """

    def __init__(self, messages: AsyncIterator[tuple[int, bytes]], *, keep: int = 20) -> None:
        self._messages = messages
        self._unfinished = {STDOUT: b"", STDERR: b""}
        self._last: dict[int, deque[bytes]] = {
            STDOUT: deque(maxlen=keep),
            STDERR: deque(maxlen=keep),
        }

    @property
    def tail(self) -> str:
        """The last lines of standard output, then those of standard error.

        The engine does not tell how lines of the two followed each other.
        """
        lines = [
            line
            for descriptor in (STDOUT, STDERR)
            for line in (*self._last[descriptor], self._unfinished[descriptor])
        ]
        return b"\n".join(filter(None, lines)).decode(errors="replace")

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """Yields each line of standard output, without its end, until the output ends."""
        async for descriptor, data in self._messages:
            lines = self._split(descriptor, data)
            self._last[descriptor].extend(lines)
            if descriptor == STDOUT:
                for line in lines:
                    yield line

    async def drain(self) -> None:
        """Read to the end of the output."""
        async for _ in self.lines():
            pass

    def _split(self, descriptor: int, data: bytes) -> list[bytes]:
        *lines, rest = (self._unfinished[descriptor] + data).split(b"\n")
        if len(rest) > MAX_LINE:
            lines.append(rest)
            rest = b""
        self._unfinished[descriptor] = rest
        return lines
