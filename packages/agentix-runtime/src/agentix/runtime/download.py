"""`GET /download`: one file, or a range of it, streamed."""

import os
import re

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from agentix.errors import UsageError
from agentix.runtime.confined import ConfinedDirectory
from agentix.runtime.departure import Departure
from agentix.runtime.http import Headers, problem
from agentix.runtime.threads import FileThreads

__all__ = ["DownloadEndpoint"]

READ_SIZE = 1024 * 1024
"""Bytes read and sent at once."""

ONE_RANGE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})")


class DownloadEndpoint:
    """Sends the file named by the query `path`; honours a single byte range (RFC 9110, 14).

    Args:
        root: Where files lie.
        threads: What reads them.
    """

    def __init__(self, root: ConfinedDirectory, threads: FileThreads) -> None:
        self._root = root
        self._threads = threads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope)
        path = request.query_params.get("path")
        if not path:
            raise UsageError("say which file: /download?path=...")
        with self._root.open(path) as descriptor:
            size = os.fstat(descriptor).st_size
            # Nothing that If-Range could name is given out, so its condition never holds.
            header = None if "if-range" in request.headers else request.headers.get("range")
            asked = _asked_range(header, size)
            if asked is not None and not asked:
                reason = f"no such range in a file of {size} bytes"
                refusal = problem(416, reason, {"content-range": f"bytes */{size}"})
                await refusal(scope, receive, send)
                return
            await _start(asked, size, send)
            wanted = range(size) if asked is None else asked
            # Without a look-out, hypercorn would take the rest for a client that has left.
            with Departure(receive):
                await self._send_content(
                    descriptor, wanted if request.method == "GET" else range(0), send
                )

    async def _send_content(self, descriptor: int, wanted: range, send: Send) -> None:
        position = wanted.start
        while position < wanted.stop:
            length = min(READ_SIZE, wanted.stop - position)
            data = await self._threads.finish(os.pread, descriptor, length, position)
            if not data:
                raise OSError(f"a file shrank to {position} bytes while it was sent")
            position += len(data)
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _start(asked: range | None, size: int, send: Send) -> None:
    length = size if asked is None else len(asked)
    headers: Headers = [
        (b"content-type", b"application/octet-stream"),
        (b"content-length", b"%d" % length),
        (b"accept-ranges", b"bytes"),
    ]
    if asked is not None:
        place = f"bytes {asked.start}-{asked.stop - 1}/{size}"
        headers.append((b"content-range", place.encode()))
    status = 200 if asked is None else 206
    await send({"type": "http.response.start", "status": status, "headers": headers})


def _asked_range(header: str | None, size: int) -> range | None:
    """Return the bytes that a Range header asks for: none of them where it cannot be satisfied.

    Returns:
        `None` where there is no header, or one that a server may pass over: several ranges,
        another unit, or a malformed one.
    """
    match = ONE_RANGE.fullmatch((header or "").replace(" ", ""))
    if match is None or match[1] == match[2] == "":
        return None
    if match[1] == "":
        return range(max(0, size - int(match[2])), size)
    last = int(match[2]) if match[2] else size - 1
    if last < int(match[1]) and match[2]:
        return None
    return range(int(match[1]), min(last + 1, size))
