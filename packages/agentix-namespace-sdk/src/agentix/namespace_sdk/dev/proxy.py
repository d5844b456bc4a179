"""One address in front of one sandbox after another, and a line for each call that passes."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

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
from agentix.wire import NDJSON

__all__ = ["Backend", "CallReport", "Proxy"]

MAX_BODY_BYTES = 256 * 1024 * 1024
"""Bytes of the largest call, as for the runtime."""

FORWARDED_HEADERS = {
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

MAX_SHOWN = 60
"""Characters that are shown of one value."""

MAX_KEPT_BYTES = 64 * 1024
"""Bytes of an answer that are kept to be shown."""

VALUE_PREFIX = '{"ok":true,"value":'
"""How an answer begins that is a value."""


class CallReport:
    """One call as a line: what was asked, what came of it, and how long it took.

    Args:
        body: The body of the request.
    """

    def __init__(self, body: bytes) -> None:
        self._call = _show_call(body)
        self._started = time.monotonic()
        self._kept = bytearray()
        self._items = 0
        self._streams = False
        self._ended = False

    def start_answer(self, streams: bool) -> None:
        """Note the head of the answer."""
        self._streams = streams

    def add_chunk(self, chunk: bytes) -> None:
        """Note a piece of the answer."""
        if not self._streams:
            self._kept += chunk[: MAX_KEPT_BYTES - len(self._kept)]
            return
        *lines, rest = (bytes(self._kept) + chunk).split(b"\n")
        self._items += sum(line.startswith(b'{"item"') for line in lines)
        for line in lines:
            if line and not line.startswith(b'{"item"'):
                self._ended = True
                self._kept = bytearray(line)
                return
        self._kept = bytearray(rest)

    def complete(self) -> str:
        """Return the line of an answer that is complete."""
        if self._streams:
            return self._line(self._stream_outcome())
        return self._line(_outcome(bytes(self._kept)))

    def fail(self, reason: str) -> str:
        """Return the line of an answer that is not complete."""
        return self._line(reason)

    def _stream_outcome(self) -> str:
        gave = f"gave {self._items} item{'' if self._items == 1 else 's'}"
        if not self._ended:
            return f"{gave} and broke off"
        error = json.loads(self._kept).get("error")
        return gave if error is None else f"{gave} and raised {error['type']}: {error['message']}"

    def _line(self, outcome: str) -> str:
        took = (time.monotonic() - self._started) * 1000
        return f"{self._call} {outcome} ({took:.1f} ms)"


def _show_call(body: bytes) -> str:
    """Return a call as Python has it, where it can be read."""
    try:
        request: Any = json.loads(body)
        given = [_show(value) for value in request.get("args") or []]
        given += [f"{name}={_show(value)}" for name, value in (request.get("kwargs") or {}).items()]
        return f"{request['method']}({', '.join(given)})"
    except (ValueError, KeyError, TypeError, AttributeError):
        return "a call that cannot be read"


def _outcome(body: bytes) -> str:
    try:
        answer: Any = json.loads(body)
    except ValueError:
        return f"-> {_shorten(body.decode('utf-8', 'replace').removeprefix(VALUE_PREFIX))}"
    match answer:
        case {"ok": True, "value": value}:
            return f"-> {_show(value)}"
        case {"ok": False, "error": {"type": kind, "message": message}}:
            return f"raised {kind}: {message}"
        case {"error": reason}:
            return f"was refused: {reason}"
        case _:
            return f"-> {_show(answer)}"


def _show(value: Any) -> str:
    return _shorten(json.dumps(value, ensure_ascii=False))


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


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
        """Wait for requests under way, for a while, and close the connections."""
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._idle.wait()
        await self.session.close()


class Proxy:
    """A server on a Unix socket that passes requests on to the sandbox behind it.

    Args:
        socket: Where it listens.
        print_line: Called with a line for each call.
    """

    def __init__(self, socket: Path, print_line: Callable[[str], None]) -> None:
        self.backend: Backend | None = None
        self._print_line = print_line
        self._socket = socket
        app = web.Application(client_max_size=MAX_BODY_BYTES)
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
            return await self._forward(request, body, None)
        call = await request.read()
        report = CallReport(call)
        try:
            return await self._forward(request, call, report)
        except asyncio.CancelledError:
            self._print_line(report.fail("was left by its caller"))
            raise

    async def _forward(
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
                self._print_line(report.fail("was refused: there is no sandbox"))
            return web.json_response({"error": reason}, status=503)
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.lower() in FORWARDED_HEADERS
        }
        try:
            with self.backend as session:
                async with session.request(
                    request.method, request.rel_url, data=body, headers=headers
                ) as answer:
                    return await self._forward_answer(request, answer, report)
        except ClientError as error:
            if report is not None:
                self._print_line(report.fail(f"ended with its sandbox: {error}"))
            return web.json_response({"error": "the sandbox is gone"}, status=502)

    async def _forward_answer(
        self, request: web.Request, answer: ClientResponse, report: CallReport | None
    ) -> web.StreamResponse:
        """Pass an answer on as it comes."""
        headers = {
            name: value
            for name, value in answer.headers.items()
            if name.lower() in FORWARDED_HEADERS
        }
        response = web.StreamResponse(status=answer.status, headers=headers)
        if report is not None:
            report.start_answer(answer.content_type == NDJSON)
        await response.prepare(request)
        try:
            async for chunk in answer.content.iter_any():
                if report is not None:
                    report.add_chunk(chunk)
                await response.write(chunk)
        except ClientError as error:
            self._break_off(request, report, error)
            return response
        if report is not None:
            self._print_line(report.complete())
        await response.write_eof()
        return response

    def _break_off(
        self, request: web.Request, report: CallReport | None, error: ClientError
    ) -> None:
        """Let the caller see that an answer will not be complete."""
        if report is not None:
            self._print_line(report.fail(f"ended with its sandbox: {error}"))
        if request.transport is not None:
            request.transport.close()


def _forwarded_headers(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() in FORWARDED_HEADERS}
