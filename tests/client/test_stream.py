"""Streams: items in order, an explicit end, and an error for anything else."""

import asyncio
import json
from contextlib import aclosing

import pytest

from agentix.client import RuntimeClient, Stream
from agentix.errors import (
    AnswerTooLargeError,
    NamespaceNotFoundError,
    RemoteCallError,
    RequestError,
    SandboxGoneError,
    SerializationError,
    UsageError,
)
from tests.client import stubs
from tests.client.raw import NDJSON, Exchange, Place, answer, chunk, chunked, head

END = '{"end":true}\n'
ERROR = '{"error":{"type":"ValueError","message":"no","traceback":""}}\n'


def items(*values: object) -> str:
    return "".join(json.dumps({"item": value}, separators=(",", ":")) + "\n" for value in values)


async def collect(stream: Stream[int]) -> tuple[list[int], Exception | None]:
    """Reads a stream to its end, and gives the items and the error that ended it."""
    seen: list[int] = []
    try:
        async for item in stream:
            seen.append(item)  # noqa: PERF401 - an error keeps what came before it
    except Exception as error:
        return seen, error
    return seen, None


@pytest.mark.parametrize(
    "chunks",
    [
        [items(1, 2, 3), END],
        [items(1, 2, 3) + END],
        [*(items(1, 2, 3) + END)],
        [items(1, 2), items(3) + '{"en', 'd":true}\n'],
        ['{"item": 1}\n{"item": 2}\n{"item": 3}\n{"end": true}\n'],
        ['{"item":1}\r\n\n{ "item" :2}\r\n{"item":3}\n', '{"end":true}'],
        [items(1, 2, 3) + END + items(4) + ERROR],
        [items(1, 2, 3) + END, "garbage\n"],
    ],
)
async def test_items_come_in_order_until_the_end(place: Place, chunks: list[str]) -> None:
    async with place.answering(chunked(*chunks)) as server, RuntimeClient(server.url) as client:
        assert await collect(client.remote(stubs.count, 3)) == ([1, 2, 3], None)


async def test_empty_stream_ends_and_the_connection_is_reused(place: Place) -> None:
    async with place.answering(chunked(END)) as server, RuntimeClient(server.url) as client:
        for _ in range(3):
            assert await collect(client.remote(stubs.count, 0)) == ([], None)
    assert server.connections == 1


@pytest.mark.parametrize(
    ("chunks", "seen"),
    [
        ([], []),
        ([items(1, 2)], [1, 2]),
        ([items(1, 2), '{"item":'], [1, 2]),
        ([items(1) + "garbage\n" + items(2)], [1]),
        ([items(1) + '{"other":2}\n' + END], [1]),
        ([items(1) + '{"error":"text"}\n'], [1]),
        ([items(1) + '{"item":2},{"item":3}\n' + END], [1]),
        ([items(1) + '{"item":2,3}\n' + END], [1]),
        ([items(1) + '{"end":false}\n'], [1]),
    ],
)
@pytest.mark.parametrize("end", [True, False])
async def test_stream_without_its_end_means_gone(
    place: Place, chunks: list[str], seen: list[int], end: bool
) -> None:
    content = chunked(*chunks, end=end)
    async with place.answering(content, close=True) as server, RuntimeClient(server.url) as client:
        found, error = await collect(client.remote(stubs.count, 3))
    assert found == seen
    assert isinstance(error, SandboxGoneError)
    assert server.url in str(error)


async def test_items_that_came_ahead_of_a_break_are_seen(place: Place) -> None:
    seen, closed = asyncio.Event(), asyncio.Event()

    async def handle(exchange: Exchange) -> None:
        await exchange.request()
        await exchange.send(head(200, NDJSON, "Transfer-Encoding: chunked") + chunk(items(1)))
        await seen.wait()
        await exchange.send(chunk(items(2, 3)))
        exchange.writer.close()
        await exchange.writer.wait_closed()
        closed.set()

    async with place.serve(handle) as server, RuntimeClient(server.url) as client:
        stream = client.remote(stubs.count, 3)
        assert await anext(stream) == 1
        seen.set()
        await asyncio.wait_for(closed.wait(), 5)
        await asyncio.to_thread(lambda: None)  # the event loop takes note of the end
        found, error = await collect(stream)
    assert found == [2, 3]
    assert isinstance(error, SandboxGoneError)


async def test_items_are_seen_before_the_error(place: Place) -> None:
    async with (
        place.answering(chunked(items(1, 2) + ERROR + items(3))) as server,
        RuntimeClient(server.url) as client,
    ):
        stream = client.remote(stubs.count, 3)
        found, error = await collect(stream)
        assert found == [1, 2]
        assert isinstance(error, RemoteCallError)
        assert (error.type, error.message) == ("ValueError", "no")
        with pytest.raises(RemoteCallError):
            await anext(stream)


async def test_item_of_another_type_is_a_serialization_error(place: Place) -> None:
    async with (
        place.answering(chunked(items(1, 2, "x", 4) + END)) as server,
        RuntimeClient(server.url) as client,
    ):
        found, error = await collect(client.remote(stubs.count, 4))
    assert found == [1, 2]
    assert isinstance(error, SerializationError)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (answer('{"error":"no namespace"}', 404), NamespaceNotFoundError),
        (answer('{"error":"no token"}', 401), RequestError),
        (answer('{"error":"broken"}', 500), SandboxGoneError),
        (answer(ERROR.replace('{"error"', '{"ok":false,"error"')), RemoteCallError),
        (answer(ERROR, media_type=NDJSON), RemoteCallError),
        (answer('{"ok":true,"value":1}'), SandboxGoneError),
        (answer("garbage"), SandboxGoneError),
    ],
)
async def test_failure_before_the_first_item(
    place: Place, content: bytes, expected: type[Exception]
) -> None:
    async with place.answering(content) as server, RuntimeClient(server.url) as client:
        found, error = await collect(client.remote(stubs.count, 1))
    assert found == []
    assert type(error) is expected


async def test_item_of_5_mebibytes_arrives(place: Place) -> None:
    text = "x" * (5 * 1024 * 1024)
    content = items({"text": text}) + items({"text": "é"}) + END
    pieces = [content[start : start + 9973] for start in range(0, len(content), 9973)]
    async with place.answering(chunked(*pieces)) as server, RuntimeClient(server.url) as client:
        found = [token.text async for token in client.remote(stubs.chat, "x")]
    assert found == [text, "é"]


async def test_characters_split_over_chunks_survive(place: Place) -> None:
    content = '{"item":{"text":"é漢😀"}}\n' + END
    pieces = [bytes([byte]) for byte in content.encode()]
    async with place.answering(chunked(*pieces)) as server, RuntimeClient(server.url) as client:
        found = [token async for token in client.remote(stubs.chat, "x")]
    assert found == [stubs.Token("é漢😀")]


SMALL_ITEMS = items(*range(10)) * 20
"""Lines of eleven bytes each."""


@pytest.mark.parametrize("cut", [1, 7, 1000])
async def test_line_is_taken_up_to_max_item(place: Place, cut: int) -> None:
    fits, exceeds = (items("x" * length) for length in (38, 39))
    content = SMALL_ITEMS + fits + SMALL_ITEMS + exceeds + END
    pieces = [content[start : start + cut] for start in range(0, len(content), cut)]
    async with (
        place.answering(chunked(*pieces)) as server,
        RuntimeClient(server.url, max_item=50) as client,
    ):
        stream = client.remote(stubs.anything)
        seen = [await anext(stream) for _ in range(401)]
        with pytest.raises(AnswerTooLargeError, match="raise max_item of RuntimeClient") as caught:
            await anext(stream)
    assert seen == [*range(10)] * 20 + ["x" * 38] + [*range(10)] * 20
    assert (caught.value.limit, caught.value.size) == (50, None)


async def test_item_that_is_too_large_closes_the_connection(place: Place) -> None:
    endless = Endless(items("x" * 100))
    async with (
        place.serve(endless) as server,
        RuntimeClient(server.url, max_item=50) as client,
    ):
        with pytest.raises(AnswerTooLargeError):
            await asyncio.wait_for(anext(client.remote(stubs.anything)), 0.5)
        await asyncio.wait_for(endless.left.wait(), 0.5)


async def test_error_of_a_stream_beyond_max_item_is_still_the_error(place: Place) -> None:
    error = ERROR.replace('"no"', f'"{"x" * 200}"')
    async with (
        place.answering(chunked(items(1) + error)) as server,
        RuntimeClient(server.url, max_item=100) as client,
    ):
        found, error_ = await collect(client.remote(stubs.count, 1))
    assert found == [1]
    assert isinstance(error_, RemoteCallError)
    assert error_.type == "ValueError"
    assert error_.message.startswith("xxx")
    assert error_.message.endswith("x\n[... the rest of a very long error was cut]")


class Endless:
    """Sends one item and waits for the client to leave."""

    def __init__(self, text: str = items(1, 2)) -> None:
        self.text = text
        self.left = asyncio.Event()

    async def __call__(self, exchange: Exchange) -> None:
        await exchange.request()
        await exchange.send(head(200, NDJSON, "Transfer-Encoding: chunked") + chunk(self.text))
        await exchange.left()
        self.left.set()


async def test_leaving_the_loop_closes_the_connection(place: Place) -> None:
    endless = Endless()
    async with place.serve(endless) as server, RuntimeClient(server.url) as client:
        async for item in client.remote(stubs.count, 9):
            assert item == 1
            break
        await asyncio.wait_for(endless.left.wait(), 5)


async def test_aclose_closes_the_connection_and_drops_items(place: Place) -> None:
    endless = Endless()
    async with place.serve(endless) as server, RuntimeClient(server.url) as client:
        async with aclosing(client.remote(stubs.count, 9)) as stream:
            assert await anext(stream) == 1
        await asyncio.wait_for(endless.left.wait(), 5)
        assert await anext(stream, None) is None


async def test_aclose_before_the_first_item_sends_nothing(place: Place) -> None:
    async with place.answering(chunked(END)) as server, RuntimeClient(server.url) as client:
        stream = client.remote(stubs.count, 9)
        await stream.aclose()
        assert await collect(stream) == ([], None)
    assert server.connections == 0


async def test_cancellation_closes_the_connection(place: Place) -> None:
    endless, both = Endless(), asyncio.Event()

    async def consume(stream: Stream[int]) -> None:
        async for item in stream:
            if item == 2:
                both.set()

    async with place.serve(endless) as server, RuntimeClient(server.url) as client:
        stream = client.remote(stubs.count, 9)
        task = asyncio.create_task(consume(stream))
        await asyncio.wait_for(both.wait(), 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(endless.left.wait(), 5)
        with pytest.raises(UsageError, match="cancelled"):
            await anext(stream)


async def test_item_that_comes_alone_is_seen_at_once(place: Place) -> None:
    endless = Endless(items(1))
    async with (
        place.serve(endless) as server,
        RuntimeClient(server.url) as client,
        aclosing(client.remote(stubs.count, 9)) as stream,
    ):
        assert await asyncio.wait_for(anext(stream), 5) == 1


async def test_slow_reader_stalls_the_writer(place: Place) -> None:
    sent, stalled = 0, asyncio.Event()
    line = items("x" * 100_000).replace('"' + "x", '{"text":"x', 1).replace('"}', '"}}')

    async def handle(exchange: Exchange) -> None:
        nonlocal sent
        await exchange.request()
        await exchange.send(head(200, NDJSON, "Transfer-Encoding: chunked"))
        exchange.writer.transport.set_write_buffer_limits(0)
        for _ in range(1000):
            try:
                await asyncio.wait_for(exchange.send(chunk(line)), 0.5)
            except TimeoutError:
                stalled.set()
                return
            sent += 1

    async with (
        place.serve(handle) as server,
        RuntimeClient(server.url) as client,
        aclosing(client.remote(stubs.chat, "x")) as stream,
    ):
        await anext(stream)
        await asyncio.wait_for(stalled.wait(), 20)
    assert sent < 200
