"""The endpoint, against a server that speaks the real wire format, and one that does not."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from agentix.agentserver.errors import LLMAnswerError, LLMError, LLMUnavailableError
from agentix.agentserver.llm.endpoint import ChatMessage, Completion, Endpoint, Usage, read_key
from agentix.agentserver.spec import LlmSpec
from tests.agentserver.llm_server import (
    LLMServer,
    body,
    chunks,
    completion,
    refuse,
    serving_llm,
    stream,
)

ASKED = (ChatMessage("system", "Be brief."), ChatMessage("user", "<q>Ä?</q>"))
DIRTY = "Sure!\n```xml\n<result>AT&T 1 < 2 é 🙂</result>\n```\n"


@pytest.fixture
async def server() -> AsyncIterator[LLMServer]:
    async with serving_llm() as server:
        yield server


async def ask(server: LLMServer, key: str | None = None, **settings: Any) -> Completion:
    spec = LlmSpec.model_validate({"base_url": server.base_url, "model": "test-model"} | settings)
    async with Endpoint(spec, key) as endpoint:
        return await endpoint.complete(ASKED)


@pytest.mark.parametrize("streamed", [True, False])
async def test_completion_is_the_raw_text_with_its_usage(server: LLMServer, streamed: bool) -> None:
    server.say(DIRTY)
    assert await ask(server, stream=streamed) == Completion(DIRTY, Usage(11, 5))


async def test_request_has_the_wire_format(server: LLMServer) -> None:
    server.say("a", "b")
    await ask(server, "sk-secret", temperature=0.5, max_tokens=9)
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "<q>Ä?</q>"},
    ]
    assert server.requests[0] == {
        "model": "test-model",
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
        "max_tokens": 9,
    }
    await ask(server, stream=False)
    assert server.requests[1] == {"model": "test-model", "messages": messages}
    assert server.keys == ["Bearer sk-secret", None]


async def test_usage_is_estimated_where_the_server_gives_none(server: LLMServer) -> None:
    silent = [each for each in chunks("x" * 40) if '"usage"' not in each]
    server.answers = [stream(silent)]
    found = (await ask(server)).usage
    assert (found.completion_tokens, found.estimated) == (10, True)
    assert found.prompt_tokens > 10


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_passing_refusal_is_tried_again(server: LLMServer, status: int) -> None:
    server.answers = [refuse(status, Retry_After="0"), refuse(status, Retry_After="0.01")]
    server.say("fine")
    assert (await ask(server)).text == "fine"
    assert len(server.requests) == 3


async def test_refusal_that_does_not_pass_is_told_after_the_last_attempt(
    server: LLMServer,
) -> None:
    server.answers = [refuse(429, Retry_After="0"), refuse(500, Retry_After="0")]
    with pytest.raises(LLMUnavailableError, match="answered with status 500") as failed:
        await ask(server, "sk-secret", attempts=2)
    assert "sk-secret" not in str(failed.value)


async def test_pause_that_a_server_asks_for_counts_for_the_deadline(server: LLMServer) -> None:
    server.answers = [refuse(429, Retry_After="3600")]
    with pytest.raises(LLMUnavailableError, match=r"no completion within 0\.2 s"):
        await ask(server, timeout_seconds=0.2)


@pytest.mark.parametrize("status", [302, 400, 401, 404])
async def test_lasting_refusal_is_told_at_once(server: LLMServer, status: int) -> None:
    server.answers = [refuse(status, Location="http://127.0.0.1:9/")]
    with pytest.raises(LLMAnswerError, match=f"status {status}"):
        await ask(server)
    assert len(server.requests) == 1


async def test_silent_server_meets_the_deadline(server: LLMServer) -> None:
    server.stall()
    with pytest.raises(LLMUnavailableError, match=r"no completion within 0\.3 s"):
        await ask(server, timeout_seconds=0.3)
    assert server.stalled.is_set()


async def test_cancelled_question_ends_at_once(server: LLMServer) -> None:
    server.stall()
    asking = asyncio.create_task(ask(server))
    async with asyncio.timeout(10):
        await server.stalled.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_server_that_is_not_there_is_told() -> None:
    async with serving_llm() as server:
        pass
    with pytest.raises(LLMUnavailableError, match="cannot be reached"):
        await ask(server, attempts=1)


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"<html>Bad gateway</html>",
        b"[]",
        b'{"choices": []}',
        b'{"choices": [{"message": {"content": 5}}]}',
        b'{"error": {"message": "x"}}',
        b"\xff\xfe",
        b'{"choices": [{"message": {"content": "\\ud800"}, "finish_reason": "stop"}]}',
        b"[" * 100_000,
    ],
)
async def test_garbage_is_no_completion(server: LLMServer, garbage: bytes) -> None:
    server.answers = [body(garbage)]
    with pytest.raises(LLMError):
        await ask(server)


@pytest.mark.parametrize(
    "data",
    [
        [*chunks("half")[:2]],
        [*chunks("half")[:-1]],
        ["{not json", "[DONE]"],
        ["[DONE]"],
        ['{"error": {"message": "overloaded"}}'],
        [*chunks("half", reason="length")],
        [*chunks("half", reason="content_filter")],
    ],
    ids=["no end", "no mark", "no json", "nothing", "error", "length", "filter"],
)
async def test_stream_that_was_cut_short_is_no_completion(
    server: LLMServer, data: list[str]
) -> None:
    server.answers = [stream(data)]
    with pytest.raises(LLMAnswerError):
        await ask(server)


async def test_answer_that_was_cut_short_is_no_completion(server: LLMServer) -> None:
    server.answers = [body(json.dumps(completion("half", "length")).encode())]
    with pytest.raises(LLMAnswerError, match="did not finish its answer: length"):
        await ask(server)


@pytest.mark.parametrize("streamed", [True, False])
async def test_answer_without_an_end_is_dropped(server: LLMServer, streamed: bool) -> None:
    server.say("x" * 100_000)
    with pytest.raises(LLMAnswerError, match="longer than 1000 bytes"):
        await ask(server, stream=streamed, answer_bytes=1000)


def test_key_is_read_from_where_the_settings_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def key(**settings: str) -> str | None:
        spec = {"base_url": "http://h/v1", "model": "m"} | settings
        return read_key(LlmSpec.model_validate(spec), tmp_path)

    monkeypatch.setenv("TEST_KEY", "from-environment")
    (tmp_path / "key").write_text("from-file\n")
    assert key() is None
    assert key(key_variable="TEST_KEY") == "from-environment"
    assert key(key_file="key") == "from-file"
    with pytest.raises(LLMError, match="llm: there is no key in the variable TEST_KEY_2"):
        key(key_variable="TEST_KEY_2")
    with pytest.raises(LLMError, match=r"llm: no key can be read from .*missing"):
        key(key_file="missing")


@pytest.mark.parametrize("url", ["", "h/v1", "ftp://h/v1", "http:///v1", "http://h/v1?key=x"])
def test_base_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValidationError, match="is no address"):
        LlmSpec(base_url=url, model="m")
