"""The floor: what hypercorn, Starlette and the kernel do without Agentix.

    python -m bench.floor

Serves `/echo` (JSON in, JSON out), `/spawn` (the seconds that one `echo hi` took) and `/items`
(NDJSON, an item a chunk) on a free port of 127.0.0.1, and prints its URL.
"""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from typing import cast

from hypercorn.asyncio import serve
from hypercorn.config import Config
from hypercorn.typing import Framework
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route


async def echo(request: Request) -> Response:
    """Gives back what came."""
    return JSONResponse(await request.json())


async def spawn(request: Request) -> Response:
    """Runs `echo hi` with asyncio alone and tells how many seconds that took."""
    started = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", "echo hi"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    await process.communicate()
    return JSONResponse(time.perf_counter() - started)


async def items(request: Request) -> Response:
    """Streams so many small items as Starlette does."""

    async def lines() -> AsyncIterator[bytes]:
        for number in range(int(request.query_params["limit"])):
            yield b'{"item":{"text":"token %d"}}\n' % number

    return StreamingResponse(lines(), media_type="application/x-ndjson")


def main() -> None:
    """Serves until it is ended."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    config = Config()
    config.bind = [f"fd://{listener.detach()}"]
    config.keep_alive_timeout = 75
    config.accesslog = config.errorlog = None
    routes = [
        Route("/echo", echo, methods=["POST"]),
        Route("/spawn", spawn, methods=["POST"]),
        Route("/items", items),
    ]
    asyncio.run(serve(cast("Framework", Starlette(routes=routes)), config))


if __name__ == "__main__":
    main()
