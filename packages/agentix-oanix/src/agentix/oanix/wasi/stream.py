"""The standard streams of a program: bytes given beforehand, a pipe, and collected output."""

import threading
from collections import deque
from collections.abc import Callable

from agentix.oanix.errors import Code, FsError
from agentix.oanix.node import Handle

__all__ = ["InputBytes", "OutputStream", "StreamPipe"]

Sink = Callable[[bytes], None]


class InputBytes(Handle):
    """Bytes to read, and then the end."""

    __slots__ = ("_at", "_data")

    stream = True

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def read(self, buffer: memoryview, offset: int) -> int:
        """Read the next bytes."""
        part = self._data[self._at : self._at + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)


class OutputStream(Handle):
    """A stream that collects what is written, and shows it to a sink as it comes.

    Args:
        keep: Bytes that are collected; what comes after them goes to the sink alone.
        sink: Is called with each piece, in the thread of the program.
        number: The descriptor that the output is of at first, 1 or 2.
    """

    __slots__ = ("_keep", "_sink", "data", "number", "total")

    stream = True

    def __init__(self, keep: int, sink: Sink | None = None, number: int = 0) -> None:
        self.number = number
        self._keep = keep
        self._sink = sink
        self.data = bytearray()
        self.total = 0

    def write(self, data: memoryview, offset: int) -> int:
        """Accept everything."""
        count = len(data)
        room = self._keep - len(self.data)
        self.data += data if room >= count else data[:room]
        self.total += count
        if self._sink is not None:
            self._sink(bytes(data))
        return count

    def append(self, data: memoryview) -> int:
        """Accept everything."""
        return self.write(data, 0)


class StreamPipe(Handle):
    r"""A stream that one side writes and the other reads, from any threads.

    ```python
    from agentix.oanix import Machine, Namespace, RunConfig, StreamPipe

    stdin = StreamPipe()
    stdin.send(b"one line\n")
    stdin.finish()
    program = b'(module (func (export "_start")))'
    Machine().run(program, Namespace(), RunConfig(stdin=stdin, timeout=10))
    ```

    Args:
        capacity: Bytes that wait to be read; a program that writes more waits.
    """

    stream = True

    def __init__(self, capacity: int = 1 << 20) -> None:
        self._capacity = capacity
        self._chunks: deque[bytes] = deque()
        self._waiting = 0
        self._closed = False
        self._changed = threading.Condition()
        self._watchers: list[Callable[[], None]] = []

    def send(self, data: bytes, timeout: float | None = None) -> None:
        """Write from the host's side, waiting for room.

        Raises:
            BrokenPipeError: The pipe is closed.
            TimeoutError: There was no room in `timeout` seconds.
        """
        with self._changed:
            if not self._changed.wait_for(self._has_room, timeout):
                raise TimeoutError("the pipe stayed full")
            if self._closed:
                raise BrokenPipeError("the pipe is closed")
            self._put(data)
        self._wake()

    def receive(self, timeout: float | None = None) -> bytes:
        """Read a piece from the host's side, waiting for one; empty at the end.

        Raises:
            TimeoutError: Nothing came in `timeout` seconds.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._chunks or self._closed, timeout):
                raise TimeoutError("the pipe stayed empty")
            data = self._chunks.popleft() if self._chunks else b""
            self._waiting -= len(data)
            self._changed.notify_all()
        self._wake()
        return data

    def finish(self) -> None:
        """End the stream: what waits is read, and then the end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._wake()

    def read(self, buffer: memoryview, offset: int) -> int:
        """Read what waits, without waiting for more."""
        with self._changed:
            if not self._chunks:
                return 0
            chunk = self._chunks.popleft()
            count = min(len(chunk), len(buffer))
            buffer[:count] = chunk[:count]
            if count < len(chunk):
                self._chunks.appendleft(chunk[count:])
            self._waiting -= count
            self._changed.notify_all()
        self._wake()
        return count

    def write(self, data: memoryview, offset: int) -> int:
        """Write from the program's side."""
        with self._changed:
            if self._closed:
                raise FsError("the pipe is closed", Code.PIPE)
            self._put(bytes(data))
        self._wake()
        return len(data)

    def append(self, data: memoryview) -> int:
        """Write from the program's side."""
        return self.write(data, 0)

    def ready(self, writing: bool) -> bool:
        """Return whether reading, or writing, would go on without waiting."""
        with self._changed:
            return self._has_room() if writing else bool(self._chunks) or self._closed

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` at every change."""
        self._watchers.append(wake)
        return lambda: self._watchers.remove(wake)

    def _has_room(self) -> bool:
        return self._waiting < self._capacity or self._closed

    def _put(self, data: bytes) -> None:
        if data:
            self._chunks.append(data)
            self._waiting += len(data)
            self._changed.notify_all()

    def _wake(self) -> None:
        for wake in tuple(self._watchers):
            wake()
