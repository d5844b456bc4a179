"""Lets only callers with the sandbox's bearer token in (RFC 6750)."""

import hmac

from starlette.types import ASGIApp, Receive, Scope, Send

from agentix.runtime.http import problem

__all__ = ["BearerAuth"]

OPEN_PATHS = {"/health"}


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
        """Passes a request on, or refuses it."""
        if scope["type"] == "lifespan" or scope.get("path") in OPEN_PATHS or self._allows(scope):
            return await self._app(scope, receive, send)
        if scope["type"] == "websocket":
            return await send({"type": "websocket.close", "code": 1008})
        headers = {"www-authenticate": "Bearer"}
        return await problem(401, "a bearer token is needed", headers)(scope, receive, send)

    def _allows(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(_canonical(given[0]), self._expected)


def _canonical(value: bytes) -> bytes:
    """Writes the scheme, which is case-insensitive, as we compare it."""
    scheme, separator, credentials = value.partition(b" ")
    return scheme.capitalize() + separator + credentials.strip()
