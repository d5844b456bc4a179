"""What a runtime without a token asks of requests, so that no web page makes them.

A browser sends requests to this machine for any page that it shows. It says for which
(RFC 6454, Fetch Metadata), needs the consent of the server before it sends JSON (the CORS protocol
of the Fetch standard), and names in `Host` what the page calls this machine: another name than
those of loopback has been pointed here (DNS rebinding).
"""

import re
from ipaddress import ip_address

from starlette.types import ASGIApp, Receive, Scope, Send

from agentix.runtime.auth import admit, refuse

__all__ = ["OriginCheck"]

JSON_PATHS = {"/_remote", "/exec"}

HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:]+)(?::[0-9]*)?")
"""A name or an address, and perhaps a port (RFC 9110, 7.2)."""

OWN_SITES = {"same-origin", "none"}
"""Values of `Sec-Fetch-Site` of what no other page began."""


class OriginCheck:
    """Wraps an application: what a page of another origin may have sent is refused.

    Args:
        app: The application, which asks for no token.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        reason = _foreign(scope)
        if reason is not None:
            return await refuse(403, f"{reason} without a token", scope, receive, send)
        if _needs_json(scope) and not _is_json(scope):
            reason = f"the body of POST {scope['path']} must be of type application/json"
            return await refuse(415, reason, scope, receive, send)
        admit(scope)
        return await self._app(scope, receive, send)


def _values(scope: Scope, wanted: bytes) -> list[str]:
    return [value.decode("latin-1") for name, value in scope["headers"] if name == wanted]


def _foreign(scope: Scope) -> str | None:
    """Return what is foreign about a request, if anything is."""
    hosts = _values(scope, b"host")
    for host in hosts:
        if not _is_loopback(host):
            return f"no request for the host {host!r} is answered"
    for origin in _values(scope, b"origin"):
        if [origin.lower()] != [f"http://{host}".lower() for host in hosts]:
            return f"no page of {origin!r} is answered"
    for site in _values(scope, b"sec-fetch-site"):
        if site not in OWN_SITES:
            return f"no page of another origin (Sec-Fetch-Site: {site}) is answered"
    return None


def _is_loopback(host: str) -> bool:
    """Return whether a `Host` names this machine by a name that leads nowhere else (RFC 6761)."""
    found = HOST.fullmatch(host.lower())
    if found is None:
        return False
    name = found[1].strip("[]")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def _needs_json(scope: Scope) -> bool:
    return scope.get("method") == "POST" and scope["path"] in JSON_PATHS


def _is_json(scope: Scope) -> bool:
    kinds = [value.partition(";")[0].strip().lower() for value in _values(scope, b"content-type")]
    return kinds == ["application/json"]
