"""Connectors: how sockets to a runtime are opened, and what they take from it unasked."""

import asyncio
import socket
from functools import partial

from aiohttp import (
    BaseConnector,
    ClientConnectionError,
    ClientPayloadError,
    ClientRequest,
    ClientTimeout,
    TCPConnector,
    UnixConnector,
)
from aiohttp.client_exceptions import UnixClientConnectorError
from aiohttp.client_proto import ResponseHandler
from aiohttp.tracing import Trace

__all__ = ["connector_to"]

KEEP_ALIVE = 20.0
"""Seconds that an idle connection is kept, well below the runtime's 75: a connection that the
runtime closes while the next call is on its way fails that call, which may have run."""

UNASKED_ANSWERS = 16
"""Answers that may wait unread on one connection. There is one in flight, and a server may send
a few with status 100 to 199 ahead of it; more than that is an attempt to fill the memory."""

BACKLOG_PAUSE = 0.005
"""Seconds between attempts to connect to a Unix socket whose backlog is full."""


def connector_to(path: str | None) -> BaseConnector:
    """Return the connector to a Unix socket, or to any host and port where there is no path."""
    connector = (
        TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE)
        if path is None
        else BacklogConnector(path, limit=0, keepalive_timeout=KEEP_ALIVE)
    )
    connector._factory = partial(_protocol, asyncio.get_running_loop())
    return connector


class RuntimeProtocol(ResponseHandler):
    """One connection to a runtime that is not trusted."""

    def data_received(self, data: bytes) -> None:
        """Take bytes; hang up on a runtime that sends answers which nobody asked for.

        aiohttp keeps them for whoever uses the connection next, without end on an idle one.
        """
        super().data_received(data)
        if len(self._buffer) > UNASKED_ANSWERS:
            self.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Take note of the end of the connection, and tell it to whoever reads an answer.

        aiohttp tells nobody where the framing of the answer was broken before.
        """
        payload = self._payload
        super().connection_lost(exc)
        if payload is not None and not payload.is_eof() and payload.exception() is None:
            payload.set_exception(ClientPayloadError("the framing of the answer is broken"))

    def close(self) -> None:
        """Close the connection at once, also where the runtime has stopped to take bytes."""
        payload, transport = self._payload, self.transport
        super().close()
        if payload is not None and not payload.is_eof() and payload.exception() is None:
            payload.set_exception(ClientConnectionError("the connection was closed"))
        if transport is not None and transport.get_write_buffer_size():
            transport.abort()


def _protocol(loop: asyncio.AbstractEventLoop) -> ResponseHandler:
    return RuntimeProtocol(loop)


class BacklogConnector(UnixConnector):
    """A connector to a Unix socket that waits for a place in a full backlog."""

    async def _create_connection(
        self, req: ClientRequest, traces: list[Trace], timeout: ClientTimeout
    ) -> ResponseHandler:
        try:
            async with asyncio.timeout(timeout.sock_connect):
                connected = await connect(self.path)
                _, protocol = await self._loop.create_unix_connection(self._factory, sock=connected)
        except TimeoutError:
            raise
        except OSError as error:
            raise UnixClientConnectorError(self.path, req.connection_key, error) from error
        return protocol


async def connect(path: str) -> socket.socket:
    """Connect to a Unix socket.

    Where the backlog is full, connect(2) fails with EAGAIN, and nothing tells when there is a
    place: asyncio takes the socket for connected then.

    Raises:
        OSError: Nobody listens there.
    """
    connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        while True:
            try:
                connecting.connect(path)
            except BlockingIOError:
                await asyncio.sleep(BACKLOG_PAUSE)
            else:
                return connecting
    except BaseException:
        connecting.close()
        raise
