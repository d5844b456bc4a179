"""FunctionFs: files that are functions, read for their result and written to call them."""

import json
from collections.abc import Callable, Mapping
from typing import ClassVar

from agentix.oanix.errors import Code, FsError, PermissionDeniedError
from agentix.oanix.fs.fixed import FixedNode, plant
from agentix.oanix.node import FsNode, Handle, Kind, OpenFlags, Stat
from agentix.oanix.service import FileService

__all__ = ["Function", "FunctionFs"]

MAX_REQUEST = 1 << 20
"""Bytes that a request may have."""

Reader = Callable[[], bytes]
Writer = Callable[[bytes], bytes | None]


class Function(FixedNode):
    """A file that is a function.

    Opening it to read calls `read`; the content is what that returns. What is written is collected
    into a request, and `write` is called with it when it is complete: one JSON document, or a text
    that ends in a newline, or whatever is there when the file is read, synced or closed. What
    `write` returns is then read from the same open file. A `ValueError` of `write` is EINVAL to
    the program, and its message is not shown.

    ```python
    import json

    from agentix.oanix import Function, FunctionFs

    def add(request: bytes) -> bytes:
        return str(sum(json.loads(request))).encode()

    calls = FunctionFs({"add": Function(write=add), "version": Function(lambda: b"1.0")})
    assert calls.read("/version") == b"1.0"
    ```

    Args:
        read: Returns the content; the file is write-only without it, unless `write` replies.
        write: Takes a request and may reply; the file is read-only without it.
    """

    __slots__ = ("reader", "writer")

    kind = Kind.REGULAR

    def __init__(self, read: Reader | None = None, write: Writer | None = None) -> None:
        super().__init__()
        self.reader = read
        self.writer = write

    def stat(self) -> Stat:
        """Return what is known; the size is that of the content now."""
        size = len(self.reader()) if self.reader else 0
        return Stat(self.kind, self.ino, size)

    def open(self, flags: OpenFlags) -> Handle:
        """Open the file, and take its content of this moment."""
        if flags.write and self.writer is None:
            raise PermissionDeniedError("the file cannot be written")
        if flags.read and self.reader is None and not flags.write:
            raise PermissionDeniedError("the file cannot be read")
        content = self.reader() if flags.read and self.reader else b""
        return FunctionHandle(content, self.writer if flags.write else None)


class FunctionHandle(Handle):
    """An open `Function`: its content, the request so far, and the reply."""

    __slots__ = ("_content", "_request", "_writer")

    messages = True

    def __init__(self, content: bytes, writer: Writer | None) -> None:
        self._content = content
        self._writer = writer
        self._request = bytearray()

    def read(self, buffer: memoryview, offset: int) -> int:
        """Commit what was written, and read the reply or the content."""
        self._commit()
        part = self._content[offset : offset + len(buffer)]
        buffer[: len(part)] = part
        return len(part)

    def write(self, data: memoryview, offset: int) -> int:
        """Add to the request, and commit it when it is complete; nothing is not a request."""
        if self._writer is None:
            raise PermissionDeniedError("the file cannot be written")
        if len(data) == 0:
            return 0
        if len(self._request) + len(data) > MAX_REQUEST:
            self._request.clear()
            raise FsError(f"a request is over {MAX_REQUEST} bytes", Code.FBIG)
        self._request += data
        if _complete(self._request):
            self._commit()
        return len(data)

    def append(self, data: memoryview) -> int:
        """Add to the request."""
        return self.write(data, 0)

    def size(self) -> int:
        """Return the size of the content or the reply in bytes."""
        return len(self._content)

    def resize(self, size: int) -> None:
        """Do nothing: every request starts anew."""

    def sync(self) -> None:
        """Commit what was written."""
        self._commit()

    def close(self) -> None:
        """Commit what was written."""
        self._commit()

    def _commit(self) -> None:
        if not self._request or self._writer is None:
            return
        request = bytes(self._request)
        self._request.clear()
        try:
            reply = self._writer(request)
        except ValueError as error:
            raise FsError("the request is refused", Code.INVAL) from error
        if reply is not None:
            self._content = reply


def _complete(request: bytearray) -> bool:
    if request.endswith(b"\n"):
        return True
    if bytes(request[:1]) not in (b"{", b"["):
        return False
    try:
        json.loads(request)
    except ValueError:
        return False
    return True


class FunctionFs(FileService):
    r"""A tree of functions.

    ```python
    from agentix.oanix import Function, FunctionFs, Namespace

    clicks = []
    button = Function(lambda: b"%d" % len(clicks), clicks.append)
    namespace = Namespace.builder().mount("/ui", FunctionFs({"button": button})).build()
    namespace.write("/ui/button", b"click\n")
    assert (namespace.read("/ui/button"), clicks) == (b"1", [b"click\n"])
    ```

    Args:
        functions: Functions by path.
    """

    kind: ClassVar[str] = "function"

    def __init__(self, functions: Mapping[str, Function]) -> None:
        self._root = plant(functions, self)

    def attach(self) -> FsNode:
        """Return the root directory."""
        return self._root
