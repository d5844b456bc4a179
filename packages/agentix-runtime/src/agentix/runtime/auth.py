"""Who may call: the holder of the sandbox's bearer token (RFC 6750).

A caller that may is admitted by the front door through which its connection came.
"""

import hmac

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentix.linux.front_door import Visitor
from agentix.runtime.http import problem

__all__ = ["VISITOR", "BearerAuth", "admit", "refuse"]

OPEN_PATHS = {"/health"}

VISITOR = "agentix.visitor"
"""The key of a request's state that has the `Visitor` whose request it is."""

CLOSE = (b"connection", b"close")


def admit(scope: Scope) -> None:
    """Let the connection of a request stay."""
    if (visitor := _visitor(scope)) is not None:
        visitor.admit()


async def refuse(
    status: int,
    reason: str,
    scope: Scope,
    receive: Receive,
    send: Send,
    headers: dict[str, str] | None = None,
) -> None:
    """Refuse a request; a connection that nobody has admitted ends with that."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    await problem(status, reason, headers)(scope, receive, _last_answer(scope, send))


def _visitor(scope: Scope) -> Visitor | None:
    visitor = scope.get("state", {}).get(VISITOR)
    assert visitor is None or isinstance(visitor, Visitor)
    return visitor


def _last_answer(scope: Scope, send: Send) -> Send:
    """Wrap the channel of an answer: it closes the connection, unless that was admitted."""
    visitor = _visitor(scope)
    if visitor is None or visitor.admitted:
        return send

    async def send_and_close(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], CLOSE]}
        await send(message)

    return send_and_close


class BearerAuth:
    """Wraps an application: every path but `/health` answers 401 without the token.

    Args:
        app: The application.
        token: The token that requests must carry.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = b"Bearer " + token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        given = [_canonical(value) for name, value in scope["headers"] if name == b"authorization"]
        if len(given) == 1 and hmac.compare_digest(given[0], self._expected):
            admit(scope)
            return await self._app(scope, receive, send)
        if scope.get("path") in OPEN_PATHS:
            return await self._app(scope, receive, _last_answer(scope, send))
        wrong = any(value.startswith(b"Bearer ") for value in given)
        reason = "the bearer token is wrong" if wrong else "a bearer token is needed"
        challenge = {"www-authenticate": "Bearer"}
        return await refuse(401, reason, scope, receive, send, challenge)


def _canonical(value: bytes) -> bytes:
    """Write the scheme, which is case-insensitive, as we compare it."""
    scheme, separator, credentials = value.partition(b" ")
    return scheme.capitalize() + separator + credentials.strip()
