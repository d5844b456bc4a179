"""PtyFs: a terminal whose other end the host holds."""

from collections.abc import Callable
from typing import ClassVar

from agentix.oanix.fs.fixed import FixedNode, plant
from agentix.oanix.fs.function import Function
from agentix.oanix.node import FsNode, Handle, Kind, OpenFlags
from agentix.oanix.service import FileService
from agentix.oanix.wasi.stream import StreamPipe

__all__ = ["PtyFs"]

LARGEST = 1 << 16
"""One more than the rows or columns that a terminal may have."""


class PtyFs(FileService):
    r"""The files `tty`, a raw terminal, and `size`, its rows and columns as text.

    What the host sends into `input` is read from `tty`, and what is written there the host receives
    from `output`. A program sets the size by writing `ROWS COLUMNS` and a newline.

    ```python
    from agentix.oanix import Namespace, OpenFlags, PtyFs

    terminal = PtyFs(rows=24, columns=80)
    namespace = Namespace.builder().mount("/dev/pty", terminal).build()
    assert namespace.read("/dev/pty/size") == b"24 80\n"
    with namespace.open("/dev/pty/tty", OpenFlags(write=True)) as tty:
        tty.write(b"$ ")
    assert terminal.output.receive() == b"$ "
    ```

    Args:
        rows: Lines of the terminal.
        columns: Characters of a line.
    """

    kind: ClassVar[str] = "pty"

    def __init__(self, rows: int = 24, columns: int = 80) -> None:
        self.input = StreamPipe()
        """What the program reads."""
        self.output = StreamPipe()
        """What the program writes."""
        self.size = (rows, columns)
        """Rows and columns."""
        size = Function(lambda: b"%d %d\n" % self.size, self._resize)
        self._root = plant({"tty": Terminal(self), "size": size}, self)

    def attach(self) -> FsNode:
        """Return the root directory."""
        return self._root

    def handle(self) -> Handle:
        """Return the program's end, to be its standard input."""
        return TerminalHandle(self)

    def _resize(self, request: bytes) -> None:
        rows, columns = map(int, request.split())
        if not (0 < rows < LARGEST and 0 < columns < LARGEST):
            raise ValueError("a terminal is 1 to 65535 rows by 1 to 65535 columns")
        self.size = rows, columns


class Terminal(FixedNode):
    """The program's end of the terminal, as a file."""

    __slots__ = ("_pty",)

    kind = Kind.CHARACTER

    def __init__(self, pty: PtyFs) -> None:
        super().__init__()
        self._pty = pty

    def open(self, flags: OpenFlags) -> Handle:
        """Open the terminal."""
        return TerminalHandle(self._pty)


class TerminalHandle(Handle):
    """The program's end of the terminal, open."""

    __slots__ = ("_pty",)

    stream = True

    def __init__(self, pty: PtyFs) -> None:
        self._pty = pty

    def read(self, buffer: memoryview, offset: int) -> int:
        """Read what the host sent."""
        return self._pty.input.read(buffer, offset)

    def write(self, data: memoryview, offset: int) -> int:
        """Write to the host."""
        return self._pty.output.write(data, offset)

    def append(self, data: memoryview) -> int:
        """Write to the host."""
        return self._pty.output.append(data)

    def resize(self, size: int) -> None:
        """Do nothing: a terminal has no content to cut."""

    def ready(self, writing: bool) -> bool:
        """Return whether reading, or writing, would go on without waiting."""
        return (self._pty.output if writing else self._pty.input).ready(writing)

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` at every change of either direction."""
        undo = self._pty.input.watch(wake), self._pty.output.watch(wake)

        def stop() -> None:
            for step in undo:
                step()

        return stop
