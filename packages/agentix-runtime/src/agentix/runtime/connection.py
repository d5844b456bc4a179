"""One connection of a client: HTTP/1.1, read strictly, and no other protocol.

hypercorn would speak HTTP/2 and WebSocket as well, and h11 reads what RFC 9112 lets a server
refuse; nothing here needs either, and both would be more to attack.
"""

import asyncio
import re
from typing import Any

import h11
from hypercorn.asyncio.task_group import TaskGroup
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.config import Config
from hypercorn.protocol.events import Request
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.typing import AppWrapper, ConnectionState
from hypercorn.utils import parse_socket_addr
from pydantic_core import to_json

from agentix.linux.front_door import Visitor
from agentix.runtime.auth import VISITOR
from agentix.wire import ErrorBody

__all__ = ["MOST_FIELDS", "MOST_HEAD_BYTES", "HttpConnection"]

MOST_HEAD_BYTES = 16 * 1024
"""Bytes of the head of a request."""

MOST_FIELDS = 100
"""Header fields of a request."""

END_OF_HEAD = re.compile(rb"\n\r?\n")
FOLDED_FIELD = re.compile(rb"\n[ \t]")

REASONS = {
    400: "this is no request of HTTP/1.1",
    431: f"the head of a request is larger than {MOST_HEAD_BYTES} bytes",
    501: "the only Transfer-Encoding is chunked",
}
"""What the statuses of h11's own refusals mean."""


class HttpConnection(TCPServer):
    """Serves the requests of one visitor.

    Args:
        app: The application.
        config: The settings of hypercorn.
        context: What all connections share.
        visitor: Whose connection it is; requests have it in their state.
    """

    def __init__(
        self, app: AppWrapper, config: Config, context: WorkerContext, visitor: Visitor
    ) -> None:
        loop = asyncio.get_running_loop()
        state = {VISITOR: visitor}
        super().__init__(app, loop, config, context, state, visitor.reader, visitor.writer)

    async def run(self) -> None:
        """Serve until either side closes the connection."""
        connection = self.writer.get_extra_info("socket")
        try:
            async with TaskGroup(self.loop) as group:
                self._task_group = group
                # hypercorn's own protocol changes to HTTP/2 where it is asked to.
                self.protocol = Http1Protocol(  # type: ignore[assignment]
                    self.app,
                    self.config,
                    self.context,
                    group,
                    ConnectionState(self.state),
                    ssl=False,
                    client=parse_socket_addr(connection.family, connection.getpeername()),
                    server=parse_socket_addr(connection.family, connection.getsockname()),
                    send=self.protocol_send,
                )
                await self._read_data()
        except OSError:
            pass  # the client left
        finally:
            await self._close()


class Http1Protocol(H11Protocol):
    """HTTP/1.1 without a way to another protocol: `Upgrade` is passed over (RFC 9110, 7.8)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.connection = self._reader = StrictReader()

    async def _check_protocol(self, event: h11.Request) -> None:
        pass

    async def _create_stream(self, request: h11.Request) -> None:
        self.stream = HTTPStream(
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.ssl,
            self.client,
            self.server,
            self.stream_send,
            STREAM_ID,
        )
        await self.stream.handle(
            Request(
                stream_id=STREAM_ID,
                headers=list(request.headers),
                http_version=request.http_version.decode(),
                method=request.method.decode("ascii").upper(),
                raw_path=request.target,
                state=self.connection_state,
            )
        )
        self.keep_alive_requests += 1

    async def _send_error_response(self, status_code: int) -> None:
        """Answer what never reaches the application, and let the connection end."""
        reason = self._reader.refusal or REASONS.get(status_code, REASONS[400])
        body = to_json(ErrorBody(error=reason))
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
            *self.config.response_headers("h11"),
        ]
        await self._send_h11_event(h11.Response(status_code=status_code, headers=headers))
        await self._send_h11_event(h11.Data(data=body))
        await self._send_h11_event(h11.EndOfMessage())


class StrictReader(h11.Connection):
    """Reads requests, and refuses what two readers could read in two ways (RFC 9112, 11.2)."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size=MOST_HEAD_BYTES)
        self.refusal: str | None = None
        """Why the last request was refused, where h11 itself would have taken it."""

    def next_event(self) -> Any:
        """Return the next event of h11.

        Raises:
            RemoteProtocolError: The client does not speak HTTP/1.1, or not plainly.
        """
        if self.their_state is h11.IDLE:
            self._check_head(self.trailing_data[0])
        event = super().next_event()
        if type(event) is h11.Request:
            self._check_request(event)
        return event

    def _check_head(self, received: bytes) -> None:
        end = END_OF_HEAD.search(received)
        if end is None:
            return
        if end.start() > MOST_HEAD_BYTES:
            self._refuse(431, REASONS[431])
        if received.count(b"\n", 0, end.start()) > MOST_FIELDS:
            self._refuse(431, f"a request has more than {MOST_FIELDS} header fields")
        if FOLDED_FIELD.search(received, 0, end.end()):
            self._refuse(400, "a header field goes on in a second line")

    def _check_request(self, request: h11.Request) -> None:
        names = [name for name, _ in request.headers]
        if not request.http_version.startswith(b"1."):
            self._refuse(505, "only HTTP/1.1 is spoken here")
        if b"transfer-encoding" in names:
            if b"content-length" in names:
                self._refuse(400, "a request has both Content-Length and Transfer-Encoding")
            if request.http_version == b"1.0":
                self._refuse(400, "a request of HTTP/1.0 has a Transfer-Encoding")
        if names.count(b"authorization") > 1:
            self._refuse(400, "a request has more than one Authorization")

    def _refuse(self, status: int, reason: str) -> None:
        self.refusal = reason
        raise h11.RemoteProtocolError(reason, error_status_hint=status)
