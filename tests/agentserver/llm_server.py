"""A small server that speaks the wire format of OpenAI, and misbehaves if told."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
"""What is done with one request."""


@dataclass
class LLMServer:
    """What the server was asked, and what it answers, request by request."""

    answers: list[Answer] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    base_url: str = ""
    stalled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a request is held, and not answered."""
    released: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server ends."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(await request.json())
        self.keys.append(request.headers.get("Authorization"))
        return await self.answers.pop(0)(request)

    def say(self, *texts: str) -> "LLMServer":
        """Answer with these texts, one a request, as the request asks for it."""
        self.answers += [self._completion(text) for text in texts]
        return self

    def _completion(self, text: str) -> Answer:
        async def answer(request: web.Request) -> web.StreamResponse:
            if self.requests[-1].get("stream"):
                return await stream(chunks(text))(request)
            return web.json_response(completion(text))

        return answer

    def stall(self) -> "LLMServer":
        """Take a request and keep silent."""

        async def answer(request: web.Request) -> web.StreamResponse:
            self.stalled.set()
            await self.released.wait()
            return web.Response()

        self.answers.append(answer)
        return self


def completion(text: str, reason: str = "stop") -> dict[str, object]:
    """Return a whole answer."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text, "refusal": None},
        "finish_reason": reason,
    }
    usage = {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "test-model",
        "choices": [choice],
        "usage": usage,
    }


def chunks(text: str, reason: str = "stop", size: int = 7) -> list[str]:
    """Return the data of a streamed answer's events."""
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    deltas: list[dict[str, object]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": piece} for piece in pieces]
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "test-model"}
    events: list[dict[str, object]] = [
        base | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        for delta in deltas
    ]
    events.append(base | {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    usage = {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16}
    events.append(base | {"choices": [], "usage": usage})
    return [*map(json.dumps, events), "[DONE]"]


def stream(data: Sequence[str], content_type: str = "text/event-stream") -> Answer:
    """Answer with server-sent events, in pieces that do not respect their borders."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": content_type})
        await response.prepare(request)
        whole = b": a comment\n\n" + b"".join(f"data: {each}\n\n".encode() for each in data)
        for start in range(0, len(whole), 50):
            await response.write(whole[start : start + 50])
        await response.write_eof()
        return response

    return answer


def refuse(status: int, **headers: str) -> Answer:
    """Answer with a status and an error in OpenAI's form."""

    async def answer(request: web.Request) -> web.StreamResponse:
        error = {"error": {"message": "go away, sk-secret", "type": "x", "code": None}}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.json_response(error, status=status, headers=named)

    return answer


def body(data: bytes, content_type: str = "application/json") -> Answer:
    """Answer with any bytes."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=data, content_type=content_type)

    return answer


@asynccontextmanager
async def serving_llm() -> AsyncIterator[LLMServer]:
    """Serve on a free port of this machine for the length of a `with` block."""
    server = LLMServer()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        server.base_url = f"http://{host}:{port}/v1"
        yield server
    finally:
        server.released.set()
        await runner.cleanup()
