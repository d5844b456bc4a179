"""What a container prints, as lines."""

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator

__all__ = ["Output"]

STDOUT = 1
MAX_LINE = 16 * 1024
"""Bytes after which a line counts as ended, so that one without an end takes no more memory."""


class Output:
    """Splits what a container prints into lines and remembers the last of them.

    Args:
        messages: Pairs of a file descriptor and bytes, as `Engine.attached` yields them.
        keep: How many lines to remember.
    """

    def __init__(self, messages: AsyncIterator[tuple[int, bytes]], *, keep: int = 40) -> None:
        self._messages = messages
        self._unfinished: dict[int, bytes] = {}
        self._last: deque[bytes] = deque(maxlen=keep)

    @property
    def tail(self) -> str:
        """The last lines of both streams, in the order in which they ended."""
        lines = [*self._last, *self._unfinished.values()]
        return b"\n".join(line for line in lines if line).decode(errors="replace")

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """Yields each line of standard output, without its end, until the output ends."""
        async for descriptor, data in self._messages:
            for line in self._split(descriptor, data):
                self._last.append(line)
                if descriptor == STDOUT:
                    yield line

    def _split(self, descriptor: int, data: bytes) -> list[bytes]:
        *lines, rest = (self._unfinished.get(descriptor, b"") + data).split(b"\n")
        if len(rest) > MAX_LINE:
            lines.append(rest)
            rest = b""
        self._unfinished[descriptor] = rest
        return lines
