"""Serves an application on a socket, and ends every connection in a bounded time."""

import asyncio
import socket
from typing import Any, cast

from starlette.types import ASGIApp

from agentix.runtime.later import load_later
from agentix.runtime.listener import BACKLOG

# Clients that ask for HTTP/2 or a WebSocket are rare; loading both takes a twelfth of the start.
load_later("hypercorn.protocol.h2", "H2Protocol")
load_later("hypercorn.protocol.ws_stream", "WSStream")

from hypercorn.asyncio import serve  # noqa: E402
from hypercorn.config import Config, Sockets  # noqa: E402
from hypercorn.typing import Framework  # noqa: E402

__all__ = ["serve_until"]

KEEP_ALIVE = 75.0
"""Seconds that an idle connection is kept; clients must let go of it earlier."""

GRACE = 3.0
"""Seconds that calls under way get to finish once the runtime is told to stop."""

CLEANUP = 5.0
"""Seconds that cancelled calls get after that to clean up."""


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


class OneSocket(Config):
    """Serves on a socket that listens already; by itself hypercorn lets children inherit it.

    Args:
        listener: The socket.
    """

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener

    def create_sockets(self) -> Sockets:
        """Return the one socket."""
        self._listener.setblocking(False)
        return Sockets([], [self._listener], [])


def _config(listener: socket.socket) -> Config:
    config = OneSocket(listener)
    config.backlog = BACKLOG
    config.keep_alive_timeout = KEEP_ALIVE
    config.graceful_timeout = GRACE
    config.include_server_header = False
    config.accesslog = None
    config.errorlog = None
    return config
