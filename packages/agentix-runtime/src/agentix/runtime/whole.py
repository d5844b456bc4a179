"""Reads every request to its end, also what an application leaves of it."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["WholeRequests"]


class WholeRequests:
    """Wraps an application: what it leaves of a request's body is read and dropped.

    hypercorn keeps for ever a connection whose body nobody reads, and a client that is still
    sending would see a broken connection in place of its answer.

    Args:
        app: The application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, and ends its answer once all of it was read."""
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
        self.ended = False

    async def receive(self) -> Message:
        """Gives the next message of the request."""
        message = await self._receive()
        if not message.get("more_body", False):
            self.ended = True
        return message

    async def drop(self) -> None:
        """Reads what is left."""
        while not self.ended:
            await self.receive()
