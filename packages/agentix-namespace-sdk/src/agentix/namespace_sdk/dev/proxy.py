"""One address in front of one sandbox after another, which prints the calls that pass."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from aiohttp import (
    ClientError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    StreamReader,
    UnixConnector,
    web,
)

from agentix.deployment import Sandbox
from agentix.errors import UsageError
from agentix.namespace_sdk.dev.calls import CallReport
from agentix.wire import NDJSON

__all__ = ["Backend", "Proxy"]

MAX_BODY = 256 * 1024 * 1024
"""Bytes of the largest call, as for the runtime."""

PASSED = {
    "accept",
    "accept-ranges",
    "allow",
    "content-length",
    "content-range",
    "content-type",
    "range",
    "traceparent",
    "tracestate",
}
"""Header fields that mean something on both sides."""

DRAIN_SECONDS = 5.0
"""How long calls under way may go on in a sandbox that was replaced."""


class Backend:
    """A sandbox, and the requests that are under way in it.

    Args:
        sandbox: The sandbox, on a Unix socket.
        functions: The names of what can be called in it.
    """

    def __init__(self, sandbox: Sandbox, functions: str) -> None:
        self.sandbox = sandbox
        self.functions = functions
        connector = UnixConnector(sandbox.runtime_url.removeprefix("unix:"), limit=0)
        self.session = ClientSession(
            "http://localhost",
            connector=connector,
            timeout=ClientTimeout(total=None),
            headers={"Authorization": f"Bearer {sandbox.token}"},
            auto_decompress=False,
        )
        self._requests = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def __enter__(self) -> ClientSession:
        self._requests += 1
        self._idle.clear()
        return self.session

    def __exit__(self, *exception: object) -> None:
        self._requests -= 1
        if self._requests == 0:
            self._idle.set()

    async def close(self) -> None:
        """Waits for requests under way, for a while, and closes the connections."""
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._idle.wait()
        await self.session.close()


class Proxy:
    """Serves on a Unix socket what a sandbox behind it serves.

    Args:
        socket: Where it listens.
        tell: Called with a line for each call.
    """

    def __init__(self, socket: Path, tell: Callable[[str], None]) -> None:
        self.backend: Backend | None = None
        self._tell = tell
        self._socket = socket
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0
        )

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        try:
            await web.UnixSite(self._runner, str(self._socket)).start()
        except OSError as error:
            await self._runner.cleanup()
            reason = error.strerror or error
            raise UsageError(f"{self._socket} cannot be listened on: {reason}") from error
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._runner.cleanup()
        self._socket.unlink(missing_ok=True)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.path != "/_remote":
            body = request.content if request.body_exists else None
            return await self._pass_on(request, body, None)
        call = await request.read()
        report = CallReport(call)
        try:
            return await self._pass_on(request, call, report)
        except asyncio.CancelledError:
            self._tell(report.breaks("was left by its caller"))
            raise

    async def _pass_on(
        self,
        request: web.Request,
        body: bytes | StreamReader | None,
        report: CallReport | None,
    ) -> web.StreamResponse:
        if self.backend is None:
            reason = (
                "the namespace is not loaded; agentix-namespace dev says once it is, or why not"
            )
            if report is not None:
                self._tell(report.breaks("was refused: there is no sandbox"))
            return web.json_response({"error": reason}, status=503)
        headers = {name: value for name, value in request.headers.items() if name.lower() in PASSED}
        try:
            with self.backend as session:
                async with session.request(
                    request.method, request.rel_url, data=body, headers=headers
                ) as answer:
                    return await self._answer(request, answer, report)
        except ClientError as error:
            if report is not None:
                self._tell(report.breaks(f"ended with its sandbox: {error}"))
            return web.json_response({"error": "the sandbox is gone"}, status=502)

    async def _answer(
        self, request: web.Request, answer: ClientResponse, report: CallReport | None
    ) -> web.StreamResponse:
        """Passes an answer on as it comes."""
        headers = {name: value for name, value in answer.headers.items() if name.lower() in PASSED}
        response = web.StreamResponse(status=answer.status, headers=headers)
        if report is not None:
            report.begins(answer.content_type == NDJSON)
        await response.prepare(request)
        try:
            async for chunk in answer.content.iter_any():
                if report is not None:
                    report.receives(chunk)
                await response.write(chunk)
        except ClientError as error:
            self._break_off(request, report, error)
            return response
        if report is not None:
            self._tell(report.ends())
        await response.write_eof()
        return response

    def _break_off(
        self, request: web.Request, report: CallReport | None, error: ClientError
    ) -> None:
        """Lets the caller see that an answer will not be complete."""
        if report is not None:
            self._tell(report.breaks(f"ended with its sandbox: {error}"))
        if request.transport is not None:
            request.transport.close()
