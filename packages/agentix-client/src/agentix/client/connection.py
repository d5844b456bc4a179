"""The connection to one runtime: where it listens, and what a failure to reach it means."""

from collections.abc import Mapping
from io import BytesIO
from typing import TypeAlias
from urllib.parse import urlsplit

from aiohttp import (
    ClientError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    ConnectionTimeoutError,
    DummyCookieJar,
    StreamReader,
)
from pydantic import ValidationError

from agentix.client.body import Content, Pieces
from agentix.client.bounds import MAX_REFUSAL, Cap, shortened
from agentix.client.connector import connector_to
from agentix.client.wait import BoundedWait, Progress, Wait, unmoved
from agentix.errors import RequestError, SandboxGoneError, UsageError
from agentix.wire import ErrorBody

__all__ = ["GRACE", "JSON", "UNARY_READ_BUFFER", "Body", "Connection", "reason"]

Body: TypeAlias = bytes | Pieces
"""The body of a request, whole or in pieces."""

JSON = {"Content-Type": "application/json"}
"""The header of a body in JSON."""

UNARY_READ_BUFFER = 64 * 1024
"""Bytes that may wait unread of an answer: twice as many stop the reading from the socket."""

GRACE = 1.0
"""Seconds that an answer which has said what counts may take for the rest before its connection is
closed."""

LARGE_BODY = 64 * 1024
"""Bytes from which a body is sent in pieces, for which the event loop turns in between."""

REASON_LIMIT = 500
"""Characters of an unexpected answer that go into an error message."""


class Connection:
    """A pool of connections to one runtime; it opens as many as there are calls in flight.

    Args:
        url: `http://host:port`, `https://host:port` or `unix:/path/of/the/socket`.
        token: The bearer token of the sandbox, sent with every request.
        connect_timeout: Seconds for opening one connection.
        answer_timeout: Seconds without a byte after which a runtime that is not running a call
            counts as gone.

    Raises:
        UsageError: The URL or the token cannot be used, or a time is not positive.
    """

    def __init__(
        self, url: str, *, token: str | None, connect_timeout: float, answer_timeout: float
    ) -> None:
        if not (connect_timeout > 0 and answer_timeout > 0):
            raise UsageError(
                f"connect_timeout {connect_timeout} and answer_timeout {answer_timeout} are "
                "seconds: both must be more than 0"
            )
        self.url = url
        self._socket, self._base = _split(url)
        self._headers = _headers(token)
        self._connect_timeout = connect_timeout
        self.answer_timeout = answer_timeout
        self._session: ClientSession | None = None
        self._was_closed = False
        self._waits: set[Wait] = set()

    async def open(self) -> None:
        """Make the connection usable; nothing is sent yet.

        Raises:
            UsageError: It is open already.
        """
        if self._session is not None:
            raise UsageError(f"the client of {self.url} is entered already")
        self._session = ClientSession(
            connector=connector_to(self._socket),
            timeout=ClientTimeout(
                total=None, connect=self._connect_timeout, sock_connect=self._connect_timeout
            ),
            headers=self._headers,
            cookie_jar=DummyCookieJar(),
            auto_decompress=False,
        )

    async def close(self) -> None:
        """Close every connection; what waits for the runtime ends with `SandboxGoneError`."""
        session, self._session = self._session, None
        if session is None:
            return
        self._was_closed = True
        for wait in tuple(self._waits):
            wait.end(self._closed())
        await session.close()

    def session(self) -> ClientSession:
        """Return the open session.

        Raises:
            UsageError: The connection was never open.
            SandboxGoneError: It was closed.
        """
        if self._session is not None:
            return self._session
        if self._was_closed:
            raise self._closed()
        raise UsageError(f"use the client in a block: `async with RuntimeClient({self.url!r})`")

    def within(self, seconds: float | None, progress: Progress = unmoved) -> Wait:
        """Return a wait for the runtime, as a block, that the closing of the connection ends.

        Args:
            seconds: The time in which something must move; `None` for no limit.
            progress: How far things have come.

        Returns:
            An asynchronous context manager; it raises `SandboxGoneError` where it ends the block.
        """
        if seconds is None:
            return Wait(self._waits)
        return BoundedWait(self._waits, seconds, self._silent, progress)

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Body | None = None,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        read_buffer: int = UNARY_READ_BUFFER,
        runs_a_call: bool = False,
    ) -> ClientResponse:
        """Send a request and return the answer, whatever its status, once its headers are there.

        A POST is never sent twice: where a connection breaks before the answer, nobody can tell
        whether the call has run. Redirects are not followed, which would carry the token away.

        Args:
            method: The method of HTTP.
            path: The path below the runtime's URL.
            body: What is sent.
            headers: Header fields on top of those of every request.
            query: The query of the URL.
            read_buffer: Bytes that may wait unread of the answer.
            runs_a_call: Whether the answer takes as long as a call runs; any other must come, and
                its body be taken, without a pause of `answer_timeout`.

        Raises:
            SandboxGoneError: The runtime cannot be reached, does not answer, or went away.
            UsageError: The connection is not open.
        """
        session = self.session()
        progress = body.progress if isinstance(body, Pieces) else unmoved
        try:
            async with self.within(None if runs_a_call else self.answer_timeout, progress):
                return await session.request(
                    method,
                    f"{self._base}/{path}",
                    params=query,
                    data=_in_pieces(body),
                    headers=headers,
                    allow_redirects=False,
                    read_bufsize=read_buffer,
                )
        except ConnectionTimeoutError as error:
            raise self._unreachable() from error
        except (ClientError, OSError) as error:
            raise self.gone(error) from error

    async def read(self, response: ClientResponse, cap: Cap) -> bytes:
        """Read an answer to its end, which frees its connection; on an error that is closed.

        Raises:
            AnswerTooLargeError: The answer is beyond its cap.
            SandboxGoneError: The answer broke off, or stopped for `answer_timeout`.
        """
        content = response.content
        try:
            if content.is_eof():
                return _checked(content.read_nowait(), cap)
            cap.check_size(response.content_length)
            async with self.within(self.answer_timeout, lambda: content.total_bytes):
                return await _read_all(content, cap)
        except (ClientError, OSError) as error:
            response.close()
            raise self.gone(error) from error
        except BaseException:
            response.close()
            raise

    async def read_some(self, response: ClientResponse, seconds: float | None = None) -> bytes:
        """Read what has come of an answer, waiting for something to come; empty at its end.

        Args:
            response: The answer.
            seconds: The time in which something must come; `None` for no limit.

        Raises:
            SandboxGoneError: The answer broke off, and all that came before has been read; or
                nothing came in time.
        """
        self.session()
        try:
            if piece := response.content.read_nowait():
                return piece
            async with self.within(seconds):
                return await response.content.readany()
        except (ClientError, OSError) as error:
            # aiohttp raises before it hands out what came ahead of the break.
            if left := response.content._read_nowait(-1):
                return left
            raise self.gone(error) from error

    async def read_start(
        self,
        response: ClientResponse,
        limit: int = MAX_REFUSAL,
        *,
        prefix: bytes = b"",
        seconds: float | None = None,
    ) -> bytes:
        """Read the beginning of an answer, or all of it where it is short.

        The connection is closed unless that was all. An answer that breaks off or stops is no
        error here: what has come of it counts.

        Args:
            response: The answer.
            limit: Bytes that are read at most.
            prefix: What the answer must begin with to be read on.
            seconds: The time for all of it; `answer_timeout` where it is `None`.

        Raises:
            SandboxGoneError: The client was closed.
        """
        start = bytearray()
        try:
            async with self.within(self.answer_timeout if seconds is None else seconds):
                while len(start) < limit and prefix.startswith(start[: len(prefix)]):
                    if not (piece := await self.read_some(response)):
                        break
                    start += piece
        except SandboxGoneError:
            self.session()
        finally:
            if not response.content.is_eof():
                response.close()
            response.release()
        return bytes(start[:limit])

    async def finish(self, response: ClientResponse) -> None:
        """Free the connection of an answer that has said its end, once its framing is complete."""
        if response.closed:
            return
        try:
            async with self.within(GRACE):
                await response.content.readany()
        except Exception:
            response.close()
        finally:
            response.release()

    async def fetch(
        self,
        method: str,
        path: str,
        cap: Cap,
        *,
        query: Mapping[str, str] | None = None,
        body: Body | None = None,
        headers: Mapping[str, str] | None = None,
        runs_a_call: bool = False,
    ) -> bytes:
        """Send a request and read the body of the answer, which must have status 200.

        Raises:
            AnswerTooLargeError: The answer is beyond its cap.
            RequestError: The runtime refused the request.
            SandboxGoneError: The runtime cannot be reached, or its answer is broken.
        """
        response = await self.request(
            method, path, query=query, body=body, headers=headers, runs_a_call=runs_a_call
        )
        await self.expect(response, 200)
        return await self.read(response, cap)

    async def expect(self, response: ClientResponse, status: int) -> None:
        """Check the status of an answer; the body of a refusal is read for its reason.

        Raises:
            RequestError: The runtime refused the request.
            SandboxGoneError: The answer is one that a runtime does not give.
        """
        if response.status == status:
            return
        if response.status < 400:
            response.close()
            raise self.gone(f"it answered with status {response.status} instead of {status}")
        raise self.refusal(response.status, await self.read_refusal(response))

    async def read_refusal(self, response: ClientResponse) -> bytes:
        """Read the body of a refusal, which may break off: the status has said what counts.

        A runtime that refuses a large body hangs up while that is still on its way.
        """
        body = await self.read_start(response)
        return body or (response.reason or "no reason came").encode(errors="surrogateescape")

    def refusal(self, status: int, body: bytes) -> RequestError | SandboxGoneError:
        """Make the error that stands for an answer with an unexpected status."""
        if 400 <= status < 500:
            return RequestError(status, reason(body) or _shortened(body))
        return self.gone(f"it answered with status {status}: {reason(body) or _shortened(body)}")

    def gone(self, what: BaseException | str) -> SandboxGoneError:
        """Make the error that says that this runtime is gone, and what happened."""
        if isinstance(what, BaseException):
            text = shortened(str(what), REASON_LIMIT)
            what = f"{type(what).__name__}: {text}" if text else type(what).__name__
        return SandboxGoneError(f"the runtime at {self.url} is gone or broke off: {what}")

    def nonsense(self, body: bytes | bytearray, why: object = "") -> SandboxGoneError:
        """Make the error for an answer that is not what the protocol says."""
        because = f" ({why})" if why else ""
        return self.gone(f"its answer is not of the protocol{because}: {_shortened(body)}")

    def _silent(self, seconds: float) -> SandboxGoneError:
        return SandboxGoneError(
            f"the runtime at {self.url} does not answer: nothing came for {seconds:g} s; it may be "
            "stopped or busy"
        )

    def _unreachable(self) -> SandboxGoneError:
        return SandboxGoneError(
            f"the runtime at {self.url} took no connection within {self._connect_timeout:g} s; it "
            "may be stopped or busy"
        )

    def _closed(self) -> SandboxGoneError:
        return SandboxGoneError(f"the client of the runtime at {self.url} was closed")


def _in_pieces(body: Body | None) -> Body | None:
    return Content(body) if isinstance(body, bytes) and len(body) > LARGE_BODY else body


async def _read_all(content: StreamReader, cap: Cap) -> bytes:
    first = await content.readany()
    if content.at_eof():
        return _checked(first, cap)
    # A BytesIO gives away its content without a copy, and many small pieces cost nothing.
    buffer = BytesIO()
    buffer.write(first)
    while not content.at_eof():
        cap.check_read(buffer.tell())
        buffer.write(await content.readany())
    return _checked(buffer.getvalue(), cap)


def _checked(content: bytes, cap: Cap) -> bytes:
    cap.check_size(len(content))
    return content


def reason(body: bytes) -> str | None:
    """Return the reason in the body of a refusal, or `None` where the body has another form."""
    try:
        return ErrorBody.model_validate_json(body).error
    except ValidationError:
        return None


def _shortened(body: bytes | bytearray) -> str:
    text = body[: 4 * REASON_LIMIT].decode(errors="replace")
    return text if len(text) <= REASON_LIMIT else f"{text[:REASON_LIMIT]}..."


def _split(url: str) -> tuple[str | None, str]:
    """Split a runtime's URL into the path of its socket, if any, and the base of all requests."""
    parts = urlsplit(url)
    if parts.scheme == "unix" and parts.path.startswith("/") and not parts.netloc:
        return url.removeprefix("unix:").removeprefix("//"), "http://localhost"
    try:
        host = parts.scheme in ("http", "https") and parts.port != 0 and parts.hostname
    except ValueError:  # the port is no number
        host = None
    if not host or parts.username is not None or parts.query or parts.fragment:
        raise UsageError(
            f"{url!r} is not the URL of a runtime: it is like http://host:port or unix:/path"
        )
    return None, url.rstrip("/")


def _headers(token: str | None) -> dict[str, str]:
    """Return the header fields of every request."""
    headers = {"Accept-Encoding": "identity"}
    if token is None:
        return headers
    if not (token.isascii() and token.isprintable() and token.strip() == token and token):
        raise UsageError("a token is printable ASCII without spaces around it")
    return headers | {"Authorization": f"Bearer {token}"}
