"""Bodies of requests: read whole, or dropped where the application leaves them."""

import asyncio
from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["DROP_BYTES", "DROP_SECONDS", "WholeRequests"]

DROP_SECONDS = 5.0
"""Seconds that the rest of a body is waited for."""

DROP_BYTES = 1024 * 1024
"""Bytes of the rest of a body that are read."""

LEAST_COUNTED = 1024
"""Bytes that a message counts for at least, so that tiny chunks come to an end too."""


class WholeRequests:
    """Wraps an application: what it leaves of a request's body is read and dropped, within bounds.

    A client that is still sending would see a broken connection in place of its answer. One that
    sends for longer than the bounds loses its connection.

    Args:
        app: The application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and end its answer once the rest of it was dropped."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = RequestBody(receive)

        async def send_before_the_end(message: Message) -> None:
            if body.ended or message["type"] != "http.response.body" or message.get("more_body"):
                await send(message)
                return
            await send({**message, "more_body": True})
            await body.drop()
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        try:
            await self._app(scope, body.receive, send_before_the_end)
        except Exception:
            await body.drop()
            raise


class RequestBody:
    """Knows whether a request was read to its end.

    Args:
        receive: The channel of the request.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._drain: asyncio.Task[None] | None = None
        self.ended = False

    async def receive(self) -> Message:
        """Return the next message of the request."""
        message = await self._receive()
        if not message.get("more_body", False):
            self.ended = True
        return message

    async def drop(self) -> None:
        """Read what is left, within bounds; an answer that ends earlier closes the connection."""
        left = DROP_BYTES
        with suppress(TimeoutError):
            async with asyncio.timeout(DROP_SECONDS):
                while not self.ended and left > 0:
                    message = await self.receive()
                    left -= max(len(message.get("body", b"")), LEAST_COUNTED)
        if not self.ended and self._drain is None:
            # hypercorn cannot close a connection while what it has read of it is not taken.
            self._drain = asyncio.create_task(self._take_the_rest())

    async def _take_the_rest(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
