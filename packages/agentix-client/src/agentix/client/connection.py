"""The connection to one runtime: where it listens, and what a failure to reach it means."""

from collections.abc import Mapping
from typing import TypeAlias
from urllib.parse import urlsplit

from aiohttp import (
    BaseConnector,
    ClientError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    DummyCookieJar,
    TCPConnector,
    UnixConnector,
)
from pydantic import ValidationError

from agentix.client.body import Content, Pieces
from agentix.errors import RequestError, SandboxGoneError, UsageError
from agentix.wire import ErrorBody

__all__ = ["JSON", "UNARY_READ_BUFFER", "Body", "Connection"]

Body: TypeAlias = bytes | Pieces
"""The body of a request, whole or in pieces."""

JSON = {"Content-Type": "application/json"}
"""The header of a body in JSON."""

UNARY_READ_BUFFER = 64 * 1024
"""Bytes that may wait unread of an answer: twice as many stop the reading from the socket."""

KEEP_ALIVE = 20.0
"""Seconds that an idle connection is kept, well below the runtime's 75: a connection that the
runtime closes while the next call is on its way fails that call, which may have run."""

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

    Raises:
        UsageError: The URL or the token can not be used.
    """

    def __init__(self, url: str, *, token: str | None, connect_timeout: float) -> None:
        self.url = url
        self._socket, self._base = _split(url)
        self._headers = _headers(token)
        self._timeout = ClientTimeout(total=None, sock_connect=connect_timeout)
        self._session: ClientSession | None = None

    async def open(self) -> None:
        """Makes the connection usable; nothing is sent yet.

        Raises:
            UsageError: It is open already.
        """
        if self._session is not None:
            raise UsageError(f"the client of {self.url} is entered already")
        self._session = ClientSession(
            connector=self._connector(),
            timeout=self._timeout,
            headers=self._headers,
            cookie_jar=DummyCookieJar(),
            auto_decompress=False,
        )

    def _connector(self) -> BaseConnector:
        if self._socket is None:
            return TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE)
        return UnixConnector(self._socket, limit=0, keepalive_timeout=KEEP_ALIVE)

    async def close(self) -> None:
        """Closes every connection; calls in flight fail with `SandboxGoneError`."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def session(self) -> ClientSession:
        """Gives the open session.

        Raises:
            UsageError: The connection is not open.
        """
        if self._session is None:
            raise UsageError(f"use the client in a block: `async with RuntimeClient({self.url!r})`")
        return self._session

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Body | None = None,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        read_buffer: int = UNARY_READ_BUFFER,
    ) -> ClientResponse:
        """Sends a request and gives the answer, whatever its status, once its headers are there.

        A POST is never sent twice: where a connection breaks before the answer, nobody can tell
        whether the call has run. Redirects are not followed, which would carry the token away.

        Raises:
            SandboxGoneError: The runtime can not be reached, or went away.
            UsageError: The connection is not open.
        """
        session = self.session()
        try:
            return await session.request(
                method,
                f"{self._base}/{path}",
                params=query,
                data=_in_pieces(body),
                headers=headers,
                allow_redirects=False,
                read_bufsize=read_buffer,
            )
        except (ClientError, OSError) as error:
            raise self.gone(error) from error

    async def read(self, response: ClientResponse) -> bytes:
        """Reads an answer to its end and frees the connection.

        Raises:
            SandboxGoneError: The answer broke off.
        """
        try:
            return await response.read()
        except (ClientError, OSError) as error:
            raise self.gone(error) from error
        finally:
            response.release()

    async def read_some(self, response: ClientResponse) -> bytes:
        """Reads what has come of an answer, waiting for something to come; empty at its end.

        Raises:
            SandboxGoneError: The answer broke off; all that came before has been read.
        """
        try:
            return await response.content.readany()
        except (ClientError, OSError) as error:
            # aiohttp raises before it hands out what came ahead of the break.
            if left := response.content._read_nowait(-1):
                return left
            raise self.gone(error) from error

    async def fetch(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Body | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """Sends a request and reads the body of the answer, which must have status 200.

        Raises:
            RequestError: The runtime refused the request.
            SandboxGoneError: The runtime can not be reached, or its answer is broken.
        """
        response = await self.request(method, path, query=query, body=body, headers=headers)
        await self.expect(response, 200)
        return await self.read(response)

    async def expect(self, response: ClientResponse, status: int) -> None:
        """Checks the status of an answer; the body of a refusal is read for its reason.

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
        """Reads the body of a refusal, which may break off: the status has said what counts.

        A runtime that refuses a large body hangs up while that is still on its way.
        """
        pieces: list[bytes] = []
        try:
            while piece := await self.read_some(response):
                pieces.append(piece)
        except SandboxGoneError:
            response.close()
        finally:
            response.release()
        return b"".join(pieces) or (response.reason or "no reason came").encode()

    def refusal(self, status: int, body: bytes) -> RequestError | SandboxGoneError:
        """Makes the error that stands for an answer with an unexpected status."""
        if 400 <= status < 500:
            return RequestError(status, reason(body) or _shortened(body))
        return self.gone(f"it answered with status {status}: {reason(body) or _shortened(body)}")

    def gone(self, what: BaseException | str) -> SandboxGoneError:
        """Makes the error that says that this runtime is gone, and what happened."""
        if isinstance(what, BaseException):
            what = f"{type(what).__name__}: {what}" if str(what) else type(what).__name__
        return SandboxGoneError(f"the runtime at {self.url} is gone or broke off: {what}")

    def nonsense(self, body: bytes) -> SandboxGoneError:
        """Makes the error for an answer that is not what the protocol says."""
        return self.gone(f"its answer is not of the protocol: {_shortened(body)}")


def _in_pieces(body: Body | None) -> Body | None:
    return Content(body) if isinstance(body, bytes) and len(body) > LARGE_BODY else body


def reason(body: bytes) -> str | None:
    """Gives the reason in the body of a refusal, or `None` where the body has another form."""
    try:
        return ErrorBody.model_validate_json(body).error
    except ValidationError:
        return None


def _shortened(body: bytes) -> str:
    text = body[: 4 * REASON_LIMIT].decode(errors="replace")
    return text if len(text) <= REASON_LIMIT else f"{text[:REASON_LIMIT]}..."


def _split(url: str) -> tuple[str | None, str]:
    """Splits a runtime's URL into the path of its socket, if any, and the base of all requests."""
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
    """Gives the header fields of every request."""
    headers = {"Accept-Encoding": "identity"}
    if token is None:
        return headers
    if not (token.isascii() and token.isprintable() and token.strip() == token and token):
        raise UsageError("a token is printable ASCII without spaces around it")
    return headers | {"Authorization": f"Bearer {token}"}
