"""`POST /upload`: one file, streamed from a multipart form into its place."""

from contextlib import ExitStack

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from agentix.errors import UsageError
from agentix.runtime.confined import ConfinedDirectory, Replacement
from agentix.runtime.form import FormEvent, PartData, PartStart, form_events
from agentix.runtime.http import json_response
from agentix.runtime.threads import FileThreads
from agentix.wire import UploadResult

__all__ = ["UploadEndpoint"]

WRITE_SIZE = 1024 * 1024
"""Bytes that are gathered before they are written, in a thread."""

MAX_FIELD = 65536
"""Bytes of a field that is not the file."""

MAX_PARTS = 8
"""Parts of a form, of which three mean something."""

DEFAULT_MODE = 0o644

MOST_MODE = 0o777
"""All permissions; what is above lets a program run as the owner of its file (chmod(2))."""


class UploadEndpoint:
    """Takes a form with the fields `path`, optionally `mode` (octal), and then `file`.

    Without `path` the file goes by its own name. The old file stays until the new one is complete.

    Args:
        root: Where files go.
        threads: What writes them.
    """

    def __init__(self, root: ConfinedDirectory, threads: FileThreads) -> None:
        self._root = root
        self._threads = threads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        with ExitStack() as stack:
            upload = Upload(self._root, self._threads, stack)
            async for event in form_events(Request(scope, receive)):
                await upload.take(event)
            result = await upload.finish()
        await json_response(result)(scope, receive, send)


class Upload:
    """The state of one upload.

    Args:
        root: Where files go.
        threads: What writes them.
        stack: Undoes what is not finished.
    """

    def __init__(self, root: ConfinedDirectory, threads: FileThreads, stack: ExitStack) -> None:
        self._root = root
        self._threads = threads
        self._stack = stack
        self._parts = 0
        self._fields: dict[str, bytes] = {}
        self._current = ""
        self._path = ""
        self._file: Replacement | None = None
        self._pending = bytearray()

    async def take(self, event: FormEvent) -> None:
        """Handle one event of the form."""
        match event:
            case PartStart(name, filename):
                self._begin(name, filename)
            case PartData(data) if self._current == "file":
                await self._append(data)
            case PartData(data):
                self._fields[self._current] += data
                if len(self._fields[self._current]) > MAX_FIELD:
                    raise UsageError(f"the field {self._current!r} is too long")

    def _begin(self, name: str, filename: str | None) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise UsageError(f"the form has more than {MAX_PARTS} parts")
        self._current = name
        if name == "file":
            self._open(filename)
        else:
            self._fields[name] = b""

    def _open(self, filename: str | None) -> None:
        if self._file is not None:
            raise UsageError("a form carries one file")
        self._path = self._text("path") or filename or ""
        if not self._path:
            raise UsageError("the form names no path: put the field 'path' before 'file'")
        self._root.prepare()
        self._file = self._stack.enter_context(self._root.replace(self._path))

    async def _append(self, data: bytes) -> None:
        self._pending += data
        if len(self._pending) >= WRITE_SIZE:
            await self._write()

    async def _write(self) -> None:
        assert self._file is not None
        content, self._pending = self._pending, bytearray()
        await self._threads.finish(self._file.write, content)

    async def finish(self) -> UploadResult:
        """Put the file into its place."""
        if self._file is None:
            raise UsageError("the form has no part named 'file'")
        mode = _mode(self._text("mode"))
        await self._write()
        self._file.commit(mode)
        return UploadResult(path=str(self._root.root / self._path), size=self._file.size)

    def _text(self, name: str) -> str:
        try:
            return self._fields.get(name, b"").decode()
        except UnicodeDecodeError as error:
            raise UsageError(f"the field {name!r} is not UTF-8") from error


def _mode(text: str) -> int:
    if not text:
        return DEFAULT_MODE
    if len(text) > 4 or not set(text) <= set("01234567"):
        raise UsageError(f"mode={text!r} is not an octal number of up to four digits")
    mode = int(text, 8)
    if mode > MOST_MODE:
        raise UsageError(f"mode={text!r} has more than permission bits: {MOST_MODE:o} is the most")
    return mode
