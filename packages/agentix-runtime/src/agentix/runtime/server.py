"""Serves an application on a socket, and ends every connection in a bounded time."""

import asyncio
import socket
from pathlib import Path
from typing import Any, cast

from starlette.types import ASGIApp

from agentix.runtime.later import load_later
from agentix.runtime.settings import Settings

# Clients that ask for HTTP/2 or a WebSocket are rare; loading both takes a twelfth of the start.
load_later("hypercorn.protocol.h2", "H2Protocol")
load_later("hypercorn.protocol.ws_stream", "WSStream")

from hypercorn.asyncio import serve  # noqa: E402
from hypercorn.config import Config  # noqa: E402
from hypercorn.typing import Framework  # noqa: E402

__all__ = ["listen", "serve_until", "url_of"]

BACKLOG = 1024
"""Connections that may wait to be accepted; bursts are common."""

KEEP_ALIVE = 75.0
"""Seconds that an idle connection is kept; clients must let go of it earlier."""

GRACE = 3.0
"""Seconds that calls under way get to finish once the runtime is told to stop."""

CLEANUP = 5.0
"""Seconds that cancelled calls get after that to clean up."""


def listen(settings: Settings) -> socket.socket:
    """Opens the socket that the settings name; connections wait there until they are served.

    Raises:
        OSError: The address can not be used.
    """
    if settings.bind_unix is not None:
        return _listen_unix(settings.bind_unix)
    address = (settings.bind_host, settings.bind_port)
    family = socket.AF_INET6 if ":" in settings.bind_host else socket.AF_INET
    try:
        listener = socket.create_server(address, family=family, backlog=BACKLOG)
    except UnicodeError as error:
        raise OSError(f"{settings.bind_host!r} is no name of a host: {error}") from error
    # Accepted connections inherit these; a host that died without a word is noticed.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    return listener


def _listen_unix(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path.unlink(missing_ok=True)
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen(BACKLOG)
    return listener


def url_of(listener: socket.socket) -> str:
    """Gives the URL that a client reaches a listening socket by."""
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return f"unix:{name}"
    host = f"[{name[0]}]" if listener.family == socket.AF_INET6 else name[0]
    return f"http://{host}:{name[1]}"


async def serve_until(stop: asyncio.Event, app: ASGIApp, listener: socket.socket) -> None:
    """Serves until an event is set; calls under way then get `GRACE` seconds to finish.

    Calls that are cancelled after that get `CLEANUP` seconds more. What hypercorn makes of its own
    cancellation does not matter.

    Raises:
        Exception: It stopped to serve by itself.
    """
    before = asyncio.all_tasks()
    framework = cast("Framework", app)  # hypercorn and Starlette each declare ASGI's types
    server = asyncio.create_task(serve(framework, _config(listener), shutdown_trigger=stop.wait))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait([server, stopped], return_when=asyncio.FIRST_COMPLETED)
    if server.done():
        server.result()
    await asyncio.wait([server], timeout=GRACE)
    # On 3.11, asyncio reports each cancelled connection as an error.
    asyncio.get_running_loop().set_exception_handler(_report_errors_only)
    remaining = asyncio.all_tasks() - before
    for task in remaining:
        task.cancel()
    if remaining:
        await asyncio.wait(remaining, timeout=CLEANUP)


def _report_errors_only(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if not isinstance(context.get("exception"), asyncio.CancelledError):
        loop.default_exception_handler(context)


def _config(listener: socket.socket) -> Config:
    config = Config()
    config.bind = [f"fd://{listener.detach()}"]
    config.backlog = BACKLOG
    config.keep_alive_timeout = KEEP_ALIVE
    config.graceful_timeout = GRACE
    config.include_server_header = False
    config.accesslog = None
    config.errorlog = None
    return config
