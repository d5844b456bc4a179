"""`POST /exec`: a shell command, answered as JSON or as events (protocol: Runtime built-ins)."""

import shutil
from pathlib import Path

from pydantic import BaseModel
from pydantic_core import to_json
from starlette.types import Receive, Scope, Send

from agentix.errors import UsageError
from agentix.linux.memory import OomKills
from agentix.runtime.calls import describe
from agentix.runtime.departure import Departure
from agentix.runtime.environment import CommandEnvironment, User
from agentix.runtime.http import json_response, read_body
from agentix.runtime.outbox import Outbox, send_from
from agentix.runtime.process import Command, Process, started
from agentix.wire import SSE, ExecRequest, ExecResult

__all__ = ["ExecEndpoint"]

EVENT_HIGH_WATER = 1024 * 1024
"""Bytes of events that may wait for a slow reader before the command has to wait."""


class ExecEndpoint:
    """The ASGI application behind `/exec`.

    Args:
        environment: What gives each command its environment.
        user: Who runs commands; the runtime's own user where it is `None`.
        fallback_shell: The shell for task images without one.
        max_output: Bytes kept of each pipe where a call says nothing.
        max_body: The largest request body in bytes.
        most_descriptors: The soft limit on descriptors of commands; the runtime's where it is
            `None`.
    """

    def __init__(
        self,
        environment: CommandEnvironment,
        user: User | None,
        fallback_shell: Path,
        max_output: int,
        max_body: int,
        most_descriptors: int | None,
    ) -> None:
        self._environment = environment
        self._user = user
        self._fallback_shell = fallback_shell
        self._max_output = max_output
        self._max_body = max_body
        self._most_descriptors = most_descriptors
        self._oom_kills = OomKills.of_process()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        events = _wants_events(scope)
        body = await read_body(receive, self._max_body)
        request = ExecRequest.model_validate_json(body)
        if events:
            command = self._command(request, request.max_output)
            return await _answer_events(command, receive, send)
        cap = self._max_output if request.max_output is None else request.max_output
        return await _answer_json(self._command(request, cap), scope, receive, send)

    def _command(self, request: ExecRequest, cap: int | None) -> Command:
        environment = self._environment.build(request.env, request.paths_from)
        directory = request.cwd or str(Path.cwd())
        if "\0" in request.command + directory:
            raise UsageError("a command and its directory cannot hold NUL")
        return Command(
            arguments=(self._shell(environment["PATH"]), "-c", request.command),
            directory=directory,
            environment=environment,
            user=self._user,
            timeout=request.timeout,
            cap=cap,
            most_descriptors=self._most_descriptors,
            oom_kills=self._oom_kills,
        )

    def _shell(self, path: str) -> str:
        return shutil.which("sh", path=path) or str(self._fallback_shell)


def _wants_events(scope: Scope) -> bool:
    return any(
        name == b"accept" and SSE.encode() in value.lower() for name, value in scope["headers"]
    )


async def _answer_json(command: Command, scope: Scope, receive: Receive, send: Send) -> None:
    texts: dict[str, list[str]] = {"stdout": [], "stderr": []}
    with Departure(receive) as departure:
        async with started(command, lambda stream, text: texts[stream].append(text)) as process:
            ended = await process.wait()
    if departure.happened:
        return
    stdout, stderr = "".join(texts["stdout"]), "".join(texts["stderr"])
    result = ExecResult(stdout=stdout, stderr=stderr, **ended.model_dump())
    await json_response(result)(scope, receive, send)


async def _answer_events(command: Command, receive: Receive, send: Send) -> None:
    outbox = Outbox(high_water=EVENT_HIGH_WATER)

    def put(stream: str, text: str) -> None:
        outbox.put(_event(stream, {"text": text}))
        if outbox.full:
            process.pause()
            outbox.on_drained(process.resume)

    async with started(command, put) as process:
        head = [(b"content-type", SSE.encode()), (b"cache-control", b"no-cache")]
        await send_from(outbox, _finish(process, outbox), head, receive, send)


async def _finish(process: Process, outbox: Outbox) -> None:
    """Puts the last event, whatever happens; the end of the command itself if it is cancelled."""
    try:
        outbox.put(_event("exit", await process.wait()))
    except Exception as error:
        outbox.put(_event("error", describe(error)))


def _event(name: str, data: BaseModel | dict[str, str]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), to_json(data))
