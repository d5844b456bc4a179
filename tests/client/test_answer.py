"""Unary calls: what is sent, and what each answer becomes."""

import asyncio
import json
import pickle
from collections.abc import Awaitable, Callable
from decimal import Decimal
from pathlib import Path

import pytest

from agentix.client import RuntimeClient
from agentix.errors import (
    AnswerTooLargeError,
    ArgumentsError,
    NamespaceNotFoundError,
    RemoteCallError,
    RequestError,
    SandboxGoneError,
    SerializationError,
    StubError,
    UsageError,
)
from agentix.trace import TraceContext, current_trace
from tests.client import stubs
from tests.client.raw import Exchange, Place, answer, chunked, head

JSON = "application/json"

FAILURE = {"ok": False, "error": {"type": "ValueError", "message": "no", "traceback": "Trace"}}


async def test_call_is_sent_as_the_protocol_says(place: Place) -> None:
    async with (
        place.answering(answer('{"ok":true,"value":3}')) as server,
        RuntimeClient(server.url, token="secret") as client,
    ):
        assert await client.remote(stubs.add, 1, right=2) == 3
    [request] = server.requests
    assert request.line == "POST /_remote HTTP/1.1"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["authorization"] == "Bearer secret"
    assert json.loads(request.body) == {
        "package": "tests.client.stubs",
        "method": "add",
        "args": [],
        "kwargs": {"left": 1, "right": 2},
    }


@pytest.mark.parametrize(
    "body",
    [
        '{"ok":true,"value":{"text":"é"}}',
        '{"ok": true, "value": {"text": "\\u00e9"}}',
        '\n{ "value" : {"text":"é"}, "ok" : true }\n',
        '{"ok":true,"value":{"text":"é"},"extra":{}}',
    ],
)
async def test_success_is_decoded_however_it_is_spaced(place: Place, body: str) -> None:
    async with place.answering(answer(body)) as server, RuntimeClient(server.url) as client:
        assert await client.remote(stubs.greet, "x") == stubs.Token("é")


async def test_none_and_text_numbers_are_results(place: Place) -> None:
    answers = answer('{"ok":true,"value":null}'), answer('{"ok":true,"value":"1.10"}')
    async with place.answering(*answers) as server, RuntimeClient(server.url) as client:
        await client.remote(stubs.nothing)
        assert str(await client.remote(stubs.price, 110)) == str(Decimal("1.10"))


async def test_trace_context_travels_as_headers(place: Place) -> None:
    async with (
        place.answering(answer('{"ok":true,"value":1}')) as server,
        RuntimeClient(server.url) as client,
    ):
        await client.remote(stubs.add, 1)
        token = current_trace.set(TraceContext("00-1-2-01", "vendor=1"))
        try:
            await client.remote(stubs.add, 1)
        finally:
            current_trace.reset(token)
    without, with_trace = server.requests
    assert "traceparent" not in without.headers
    assert with_trace.headers["traceparent"] == "00-1-2-01"
    assert with_trace.headers["tracestate"] == "vendor=1"


async def test_failed_call_carries_what_the_sandbox_said(place: Place) -> None:
    async with (
        place.answering(answer(json.dumps(FAILURE))) as server,
        RuntimeClient(server.url) as client,
    ):
        with pytest.raises(RemoteCallError) as caught:
            await client.remote(stubs.add, 1)
    assert (caught.value.type, caught.value.message) == ("ValueError", "no")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert copy.traceback == "Trace"


async def test_unknown_namespace_is_an_error_of_its_own(place: Place) -> None:
    async with (
        place.answering(answer('{"error":"no namespace x is mounted"}', 404)) as server,
        RuntimeClient(server.url) as client,
    ):
        with pytest.raises(NamespaceNotFoundError, match="no namespace x is mounted"):
            await client.remote(stubs.add, 1)


@pytest.mark.parametrize("status", [400, 401, 413, 422])
async def test_refusal_carries_status_and_reason(place: Place, status: int) -> None:
    async with (
        place.answering(answer('{"error":"because"}', status)) as server,
        RuntimeClient(server.url) as client,
    ):
        with pytest.raises(RequestError) as caught:
            await client.remote(stubs.add, 1)
    assert (caught.value.status, caught.value.message) == (status, "because")


async def test_refusal_without_a_reason_says_its_status_line(place: Place) -> None:
    content = b"HTTP/1.1 418 \xff teapot\r\nContent-Length: 0\r\n\r\n"
    async with place.answering(content) as server, RuntimeClient(server.url) as client:
        with pytest.raises(RequestError) as caught:
            await client.remote(stubs.add, 1)
    assert (caught.value.status, caught.value.message) == (418, "\N{REPLACEMENT CHARACTER} teapot")


async def test_cookies_of_a_runtime_are_not_even_parsed(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    cookies = ["Set-Cookie: a=b", *["Set-Cookie: ,a=,a="] * 99]
    content = head(200, JSON, "Content-Length: 21", *cookies) + b'{"ok":true,"value":1}'
    async with place.answering(content) as server, RuntimeClient(server.url) as client:
        assert await client.remote(stubs.add, 1) == 1
        assert await client.remote(stubs.add, 1) == 1
    assert "cookie" not in server.requests[1].headers
    assert caplog.records == []


async def test_404_of_another_server_is_no_missing_namespace(place: Place) -> None:
    async with (
        place.answering(answer("<h1>Not here</h1>", 404, "text/html")) as server,
        RuntimeClient(server.url) as client,
    ):
        with pytest.raises(RequestError, match="<h1>Not here</h1>"):
            await client.remote(stubs.add, 1)


@pytest.mark.parametrize(
    "content",
    [
        answer("gateway", 502, "text/plain"),
        answer('{"error":"broken"}', 500),
        answer("moved", 302, "text/plain"),
        answer("not json"),
        answer(b"\xff\xfe"),
        answer(""),
        answer("null"),
        answer("[]"),
        answer('{"ok":true}'),
        answer('{"ok":false,"error":"text"}'),
        answer('{"ok":true,"value":1'),
        chunked('{"item":1}\n{"end":true}\n'),
    ],
)
async def test_answer_outside_the_protocol_means_gone(place: Place, content: bytes) -> None:
    async with place.answering(content) as server, RuntimeClient(server.url) as client:
        with pytest.raises(SandboxGoneError) as caught:
            await client.remote(stubs.add, 1)
        assert server.url in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-",
        b"garbage\r\n\r\n",
        head(200, "application/json", "Content-Length: 100") + b'{"ok":true,',
        chunked('{"ok":true,"val', media_type="application/json", end=False),
    ],
)
async def test_answer_that_breaks_off_means_gone(place: Place, content: bytes) -> None:
    async with place.answering(content, close=True) as server, RuntimeClient(server.url) as client:
        with pytest.raises(SandboxGoneError) as caught:
            await client.remote(stubs.add, 1)
        assert server.url in str(caught.value)


@pytest.mark.parametrize(
    "broken", ["ZZZ\r\n", "5\r\nhelloX\r\n", "0\r\nno field\r\n\r\n", "-1\r\n\r\n"]
)
async def test_framing_that_breaks_in_a_body_means_gone(place: Place, broken: str) -> None:
    begun = asyncio.Event()

    async def handle(exchange: Exchange) -> None:
        await exchange.request()
        await exchange.send(chunked("{", media_type="application/json", end=False))
        await begun.wait()
        await exchange.send(broken.encode())
        await exchange.left()

    async with place.serve(handle) as server, RuntimeClient(server.url) as client:
        task = asyncio.ensure_future(client.remote(stubs.add, 1))
        done, _ = await asyncio.wait([task], timeout=0.05)
        assert not done
        begun.set()
        with pytest.raises(SandboxGoneError, match="the framing of the answer is broken"):
            await asyncio.wait_for(task, 5)


async def test_several_values_of_another_type_are_told_or_counted(place: Place) -> None:
    few, many = ([""] * count for count in (2, 101))
    async with (
        place.answering(
            *(answer(json.dumps({"ok": True, "value": it})) for it in (few, many))
        ) as s,
        RuntimeClient(s.url) as client,
    ):
        with pytest.raises(SerializationError, match=r"0: Input should be .*; 1: Input should be"):
            await client.remote(stubs.numbers)
        with pytest.raises(SerializationError, match=r"type: 101 parts of it are not$"):
            await client.remote(stubs.numbers)


async def test_long_error_is_cut_in_its_middle(place: Place) -> None:
    error = {"type": "E" * 2000, "message": "m" * 70_000, "traceback": "t" * 300_000}
    async with (
        place.answering(answer(json.dumps({"ok": False, "error": error}))) as server,
        RuntimeClient(server.url) as client,
    ):
        with pytest.raises(RemoteCallError) as caught:
            await client.remote(stubs.add, 1)
        assert server.connections == 1
    half = 32 * 1024
    assert caught.value.message == f"{'m' * half}\n[... 4,464 characters cut ...]\n{'m' * half}"
    assert caught.value.type == f"{'E' * 512}\n[... 976 characters cut ...]\n{'E' * 512}"
    assert "[... 37,856 characters cut ...]" in caught.value.traceback
    assert len(caught.value.traceback) < 263_000


LIMITED = '{"ok":true,"value":{"text":"%s"}}'
"""A result; without the text it has 31 bytes."""


@pytest.mark.parametrize("framing", [answer, lambda body: chunked(body, media_type=JSON)])
async def test_result_is_taken_up_to_max_result(
    place: Place, framing: Callable[[str], bytes]
) -> None:
    fits, exceeds = (framing(LIMITED % ("x" * length)) for length in (69, 70))
    async with (
        place.answering(fits, exceeds, fits) as server,
        RuntimeClient(server.url, max_result=100) as client,
    ):
        assert await client.remote(stubs.greet, "x") == stubs.Token("x" * 69)
        with pytest.raises(
            AnswerTooLargeError, match="raise max_result of RuntimeClient"
        ) as caught:
            await client.remote(stubs.greet, "x")
        assert (caught.value.limit, caught.value.size) == (100, 101)
        assert await client.remote(stubs.greet, "x") == stubs.Token("x" * 69)


@pytest.mark.parametrize("name", ["result", "file"])
async def test_answer_that_is_too_large_closes_the_connection(
    place: Place, tmp_path: Path, name: str
) -> None:
    left = asyncio.Event()

    async def handle(exchange: Exchange) -> None:
        await exchange.request()
        await exchange.send(head(200, JSON, "Content-Length: 1000000000000") + b"{")
        await exchange.left()
        left.set()

    async with place.serve(handle) as server, RuntimeClient(server.url) as client:
        call: Awaitable[object] = (
            client.remote(stubs.add, 1)
            if name == "result"
            else client.download("x", tmp_path / "x", max_bytes=100)
        )
        with pytest.raises(AnswerTooLargeError) as caught:
            await call
        await asyncio.wait_for(left.wait(), 5)
    assert caught.value.size == 1_000_000_000_000


@pytest.mark.parametrize("limits", [{"max_result": 0}, {"max_item": 0}, {"max_item": -1}])
def test_limit_that_is_none_is_refused(limits: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="must be more than 0"):
        RuntimeClient("http://localhost", **limits)  # type: ignore[arg-type]


async def test_value_of_another_type_is_a_serialization_error(place: Place) -> None:
    bodies = '{"ok":true,"value":{"text":1}}', '{"ok": true, "value": null}'
    async with place.answering(*map(answer, bodies)) as server, RuntimeClient(server.url) as client:
        for _ in bodies:
            with pytest.raises(SerializationError, match=r"tests\.client\.stubs\.greet gave"):
                await client.remote(stubs.greet, "x")


async def test_wrong_calls_fail_before_anything_is_sent(place: Place) -> None:
    async with place.answering(answer("")) as server, RuntimeClient(server.url) as client:
        with pytest.raises(ArgumentsError, match="left"):
            client.remote(stubs.add)  # type: ignore[call-overload]
        with pytest.raises(ArgumentsError, match="right"):
            client.remote(stubs.add, 1, right="x")  # type: ignore[arg-type]
        with pytest.raises(ArgumentsError, match="limit"):
            client.remote(stubs.count, limit="x")  # type: ignore[call-overload]
        with pytest.raises(StubError):
            await client.remote(lambda: 1)
    assert server.connections == 0


async def test_client_outside_its_block_says_so() -> None:
    client = RuntimeClient("http://127.0.0.1:1")
    with pytest.raises(UsageError, match="async with RuntimeClient"):
        await client.remote(stubs.add, 1)
    with pytest.raises(UsageError, match="async with RuntimeClient"):
        client.run_stream("true")
    with pytest.raises(UsageError, match="async with RuntimeClient"):
        await client.health()


async def test_client_works_on_after_errors_and_reuses_connections(place: Place) -> None:
    good = answer('{"ok":true,"value":1}')
    contents = good, answer(json.dumps(FAILURE)), good, answer('{"error":"no"}', 404), good
    async with place.answering(*contents) as server, RuntimeClient(server.url) as client:
        assert await client.remote(stubs.add, 1) == 1
        with pytest.raises(RemoteCallError):
            await client.remote(stubs.add, 1)
        assert await client.remote(stubs.add, 1) == 1
        with pytest.raises(NamespaceNotFoundError):
            await client.remote(stubs.add, 1)
        assert await client.remote(stubs.add, 1) == 1
    assert server.connections == 1


async def test_call_that_breaks_off_is_not_sent_twice(place: Place) -> None:
    received = 0

    async def handle(exchange: Exchange) -> None:
        nonlocal received
        await exchange.request()
        await exchange.send(answer('{"ok":true,"value":1}'))
        await exchange.request()
        received += 1

    async with place.serve(handle) as server, RuntimeClient(server.url) as client:
        await client.remote(stubs.add, 1)
        with pytest.raises(SandboxGoneError):
            await client.remote(stubs.add, 1)
        assert received == 1
        assert await client.remote(stubs.add, 1) == 1


async def test_connection_closed_between_calls_is_not_used_again(place: Place) -> None:
    closed = asyncio.Event()

    async def handle(exchange: Exchange) -> None:
        await exchange.request()
        await exchange.send(answer('{"ok":true,"value":1}'))
        exchange.writer.close()
        await exchange.writer.wait_closed()
        closed.set()

    async with place.serve(handle) as server, RuntimeClient(server.url) as client:
        for _ in range(3):
            closed.clear()
            assert await client.remote(stubs.add, 1) == 1
            await asyncio.wait_for(closed.wait(), 5)
            await asyncio.to_thread(lambda: None)  # the event loop takes note of the end
    assert server.connections == 3


async def test_cancelled_call_closes_its_connection(place: Place) -> None:
    received, left = asyncio.Event(), asyncio.Event()

    async def handle(exchange: Exchange) -> None:
        await exchange.request()
        received.set()
        await exchange.left()
        left.set()

    async with place.serve(handle) as server, RuntimeClient(server.url) as client:
        task = asyncio.create_task(client.remote(stubs.add, 1))
        await asyncio.wait_for(received.wait(), 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(left.wait(), 5)


async def test_64_calls_are_in_flight_at_once(place: Place) -> None:
    waiting, all_there = [], asyncio.Event()

    async def handle(exchange: Exchange) -> None:
        request = json.loads((await exchange.request()).body)
        waiting.append(exchange)
        if len(waiting) == 64:
            all_there.set()
        await asyncio.wait_for(all_there.wait(), 10)
        await exchange.send(answer(json.dumps({"ok": True, "value": request["kwargs"]["left"]})))
        await exchange.left()

    async with place.serve(handle) as server, RuntimeClient(server.url) as client:
        results = await asyncio.gather(*(client.remote(stubs.add, n) for n in range(64)))
    assert results == list(range(64))


async def test_arguments_of_several_mebibytes_are_sent(place: Place) -> None:
    async with (
        place.answering(answer('{"ok":true,"value":{"text":""}}')) as server,
        RuntimeClient(server.url) as client,
    ):
        await client.remote(stubs.greet, "é" * 3_000_000)
    [request] = server.requests
    assert json.loads(request.body)["kwargs"]["name"] == "é" * 3_000_000
