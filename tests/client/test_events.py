"""Commands: a result for every outcome, and an error only where there is none."""

import asyncio
import json
from contextlib import aclosing

import pytest

from agentix.client import RuntimeClient
from agentix.errors import (
    AnswerTooLargeError,
    ArgumentsError,
    RemoteCallError,
    RequestError,
    SandboxGoneError,
)
from agentix.wire import ExecExit, ExecOutput, ExecResult
from tests.client.raw import SSE, Exchange, Place, answer, chunk, chunked, head

EXIT = 'event: exit\ndata: {"exit_code":3,"stdout_bytes":2}\n\n'
ERROR = 'event: error\ndata: {"type":"OSError","message":"no shell","traceback":""}\n\n'


def output(stream: str, text: str) -> str:
    return f"event: {stream}\ndata: {json.dumps({'text': text}, ensure_ascii=False)}\n\n"


async def test_command_is_sent_with_what_was_given(place: Place) -> None:
    body = '{"exit_code":1,"stdout":"a","stderr":"b","timed_out":true}'
    async with place.answering(answer(body)) as server, RuntimeClient(server.url) as client:
        result = await client.run("false")
        await client.run("true", cwd="/", env={"A": "b"}, timeout=2, paths_from=["*"], max_output=0)
    assert result == ExecResult(exit_code=1, stdout="a", stderr="b", timed_out=True)
    first, second = (json.loads(request.body) for request in server.requests)
    assert first == {"command": "false"}
    assert second == {
        "command": "true",
        "cwd": "/",
        "env": {"A": "b"},
        "timeout": 2.0,
        "paths_from": ["*"],
        "max_output": 0,
    }


async def test_command_without_meaning_is_not_sent(place: Place) -> None:
    async with place.answering(answer("")) as server, RuntimeClient(server.url) as client:
        with pytest.raises(ArgumentsError, match="command"):
            await client.run("")
        with pytest.raises(ArgumentsError, match="timeout"):
            client.run_stream("true", timeout=-1)
    assert server.connections == 0


@pytest.mark.parametrize(
    "content",
    [answer("garbage"), answer('{"stdout":""}'), answer('{"error":"x"}', 500), b"HTTP/1.1 2"],
)
async def test_result_outside_the_protocol_means_gone(place: Place, content: bytes) -> None:
    async with place.answering(content, close=True) as server, RuntimeClient(server.url) as client:
        with pytest.raises(SandboxGoneError):
            await client.run("true")


@pytest.mark.parametrize(
    "chunks",
    [
        [output("stdout", "é"), output("stderr", "\n"), EXIT],
        [output("stdout", "é") + output("stderr", "\n") + EXIT],
        [
            bytes([byte])
            for byte in (output("stdout", "é") + output("stderr", "\n") + EXIT).encode()
        ],
        [(output("stdout", "é") + output("stderr", "\n") + EXIT).replace("\n", "\r\n")],
        [
            ": comment\n\nid: 7\nevent: other\ndata: x\n\n" + output("stdout", "é"),
            output("stderr", "\n"),
            EXIT + output("stdout", "late"),
            "garbage",
        ],
        [
            output("stdout", "é").replace(':{"', ':\ndata: {"').replace(": {", ":{"),
            output("stderr", "\n"),
            EXIT,
        ],
    ],
)
async def test_events_come_in_order_until_the_exit(place: Place, chunks: list[str]) -> None:
    async with (
        place.answering(chunked(*chunks, media_type=f"{SSE}; charset=utf-8")) as server,
        RuntimeClient(server.url) as client,
    ):
        events = [event async for event in client.run_stream("x")]
    assert server.requests[0].headers["accept"] == SSE
    assert events == [
        ExecOutput(stream="stdout", text="é"),
        ExecOutput(stream="stderr", text="\n"),
        ExecExit(exit_code=3, stdout_bytes=2),
    ]


@pytest.mark.parametrize("end", [True, False])
@pytest.mark.parametrize(
    "last",
    [
        "",
        EXIT[:-1],
        "event: exit\ndata: {}\n\n",
        "event: exit\ndata: garbage\n\n",
        "event: stdout\ndata: 1\n\n",
        'event: error\ndata: "x"\n\n',
        'event: stderr\ndata: {"text":1}\n\n',
    ],
)
async def test_events_without_an_exit_mean_gone(place: Place, last: str, end: bool) -> None:
    content = chunked(output("stdout", "a"), last, media_type=SSE, end=end)
    async with place.answering(content, close=True) as server, RuntimeClient(server.url) as client:
        events = client.run_stream("x")
        assert await anext(events) == ExecOutput(stream="stdout", text="a")
        with pytest.raises(SandboxGoneError):
            await anext(events)


@pytest.mark.parametrize(
    "event",
    [
        output("stdout", "x" * 100),
        "event: stdout\ndata: {\n" + "data:\n" * 100,
        "event: " + "x" * 100,
        ": " + "x" * 100,
    ],
)
async def test_event_is_taken_up_to_max_item(place: Place, event: str) -> None:
    content = chunked(output("stdout", "a"), event, media_type=SSE, end=False)
    async with (
        place.answering(content) as server,
        RuntimeClient(server.url, max_item=50) as client,
    ):
        events = client.run_stream("x")
        assert await anext(events) == ExecOutput(stream="stdout", text="a")
        with pytest.raises(AnswerTooLargeError, match="raise max_item of RuntimeClient") as caught:
            await asyncio.wait_for(anext(events), 5)
    assert caught.value.limit == 50


async def test_output_is_taken_up_to_what_max_output_can_become(place: Place) -> None:
    fits, exceeds = (12 * 1000 + 64 * 1024 + more for more in (0, 1))
    body = '{"exit_code":0}'
    async with (
        place.answering(answer(body.ljust(fits)), answer(body.ljust(exceeds))) as server,
        RuntimeClient(server.url) as client,
    ):
        assert (await client.run("x", max_output=1000)).exit_code == 0
        with pytest.raises(AnswerTooLargeError, match="pass run a max_output") as caught:
            await client.run("x", max_output=1000)
    assert (caught.value.limit, caught.value.size) == (fits, exceeds)


async def test_error_event_is_a_failed_call(place: Place) -> None:
    async with (
        place.answering(chunked(output("stdout", "a") + ERROR, media_type=SSE)) as server,
        RuntimeClient(server.url) as client,
    ):
        events = client.run_stream("x")
        assert await anext(events) == ExecOutput(stream="stdout", text="a")
        with pytest.raises(RemoteCallError, match="OSError: no shell"):
            await anext(events)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (answer('{"error":"unknown package"}', 400), RequestError),
        (answer('{"exit_code":0}'), SandboxGoneError),
        (answer("", 503), SandboxGoneError),
    ],
)
async def test_refused_command(place: Place, content: bytes, expected: type[Exception]) -> None:
    async with place.answering(content) as server, RuntimeClient(server.url) as client:
        with pytest.raises(expected):
            await anext(client.run_stream("x"))


async def test_closing_the_events_closes_the_connection(place: Place) -> None:
    left = asyncio.Event()

    async def handle(exchange: Exchange) -> None:
        await exchange.request()
        await exchange.send(head(200, SSE, "Transfer-Encoding: chunked"))
        await exchange.send(chunk(output("stdout", "a")))
        await exchange.left()
        left.set()

    async with place.serve(handle) as server, RuntimeClient(server.url) as client:
        async with aclosing(client.run_stream("x")) as events:
            await anext(events)
        await asyncio.wait_for(left.wait(), 5)
