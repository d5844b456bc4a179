"""Serves an application on a socket, and ends every connection in a bounded time."""

import asyncio
import socket
from typing import Any, cast

from starlette.types import ASGIApp

from agentix.linux.front_door import DoorLimits, FrontDoor, Visitor
from agentix.runtime.deferred_import import load_later

# hypercorn imports what speaks other protocols, which takes a tenth of the start.
load_later("h2.events")
load_later("hypercorn.protocol.h2", "H2Protocol")
load_later("hypercorn.protocol.ws_stream", "WSStream")

from hypercorn.app_wrappers import ASGIWrapper  # noqa: E402
from hypercorn.asyncio.lifespan import Lifespan  # noqa: E402
from hypercorn.asyncio.worker_context import WorkerContext  # noqa: E402
from hypercorn.config import Config  # noqa: E402
from hypercorn.typing import ASGIFramework  # noqa: E402

from agentix.runtime.connection import HttpConnection  # noqa: E402

__all__ = ["serve_until"]

KEEP_ALIVE = 75.0
"""Seconds that an idle connection is kept; clients must let go of it earlier."""

GRACE = 3.0
"""Seconds that calls under way get to finish once the runtime is told to stop."""

CLEANUP = 5.0
"""Seconds that cancelled calls get after that to clean up."""


async def serve_until(
    stop: asyncio.Event,
    app: ASGIApp,
    listener: socket.socket,
    limits: DoorLimits | None = None,
) -> None:
    """Serve until an event is set; calls under way then get `GRACE` seconds to finish.

    Calls that are cancelled after that get `CLEANUP` seconds more. What hypercorn makes of its own
    cancellation does not matter.

    Args:
        stop: Ends the server.
        app: The application.
        listener: Where clients connect; it is closed.
        limits: How many may connect, and for how long without being admitted.

    Raises:
        Exception: The application could not start.
    """
    before = asyncio.all_tasks()
    wrapped = ASGIWrapper(cast("ASGIFramework", app))  # each declares ASGI's types by itself
    config, context = _config(), WorkerContext(max_requests=None)
    lifespan = Lifespan(wrapped, config, asyncio.get_running_loop(), {})
    started = asyncio.create_task(lifespan.handle_lifespan())
    await lifespan.wait_for_startup()
    if started.done():
        started.result()

    async def serve(visitor: Visitor) -> None:
        await HttpConnection(wrapped, config, context, visitor)

    door = FrontDoor(listener, serve, limits)
    door.open()
    await stop.wait()
    door.close()
    await context.terminated.set()  # idle connections end now
    if door.tasks:
        await asyncio.wait(door.tasks, timeout=GRACE)
    await lifespan.wait_for_shutdown()
    door.abort()
    await _cancel(asyncio.all_tasks() - before)


async def _cancel(tasks: set[asyncio.Task[Any]]) -> None:
    # On 3.11, asyncio reports each cancelled connection as an error.
    asyncio.get_running_loop().set_exception_handler(_report_errors_only)
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=CLEANUP)


def _report_errors_only(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if not isinstance(context.get("exception"), asyncio.CancelledError):
        loop.default_exception_handler(context)


def _config() -> Config:
    config = Config()
    config.keep_alive_timeout = KEEP_ALIVE
    config.shutdown_timeout = CLEANUP
    config.include_server_header = False
    config.accesslog = None
    config.errorlog = None
    return config
