"""Streams: NDJSON, one event a line, stalled by a reader that stalls."""

import json
import os
import socket
from contextlib import closing, suppress
from pathlib import Path

import aiohttp
import anyio
import pytest

from tests.runtime.serving import (
    Server,
    call_body,
    count_tasks,
    eventually,
    post,
    receive_until,
    remote,
    until,
    wait_until,
)

MEBIBYTE = 1024 * 1024


def test_stream_on_the_wire(server: Server) -> None:
    answer = server.exchange(post("/_remote", call_body("count", 3)))
    head, _, chunks = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"content-type: application/x-ndjson" in head
    assert b"Transfer-Encoding: chunked" in head
    text = b'{"item":0}\n{"item":1}\n{"item":2}\n{"end":true}\n'
    assert chunks == b"%x\r\n%b\r\n0\r\n\r\n" % (len(text), text)


async def lines_of(session: aiohttp.ClientSession, body: bytes) -> list[str]:
    async with session.post("/_remote", data=body) as response:
        assert (response.status, response.content_type) == (200, "application/x-ndjson")
        return (await response.text()).splitlines()


async def test_empty_stream_is_only_its_end(session: aiohttp.ClientSession) -> None:
    assert await lines_of(session, call_body("count", 0)) == ['{"end":true}']


async def test_every_item_of_a_long_stream_arrives_in_order(
    session: aiohttp.ClientSession,
) -> None:
    lines = await lines_of(session, call_body("count", 50_000))
    assert lines == [f'{{"item":{n}}}' for n in range(50_000)] + ['{"end":true}']


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("ValueError", "a wrong value"),
        ("SystemExit", "3"),
        ("KeyboardInterrupt", ""),
        ("GeneratorExit", "left"),
        ("CancelledError", "by itself"),
        ("BrokenTextError", "<BrokenTextError whose text raised RuntimeError>"),
        ("OwnBaseException", "outside of Exception"),
        ("surrogate", "half ? a character"),
    ],
)
async def test_error_midway_follows_the_items(
    session: aiohttp.ClientSession, kind: str, message: str
) -> None:
    *items, last = await lines_of(session, call_body("fail_stream", kind, 2))
    assert items == ['{"item":0}', '{"item":1}']
    error = json.loads(last)["error"]
    assert error["message"] == message
    assert error["type"] == ("ValueError" if kind == "surrogate" else kind)
    assert "in fail_stream" in error["traceback"]


@pytest.mark.parametrize("kind", ["object", "text", "circle", "surrogate"])
async def test_item_without_json_form_ends_the_stream(
    session: aiohttp.ClientSession, kind: str
) -> None:
    first, last = await lines_of(session, call_body("give_stream", kind))
    assert first == '{"item":1}'
    assert json.loads(last)["error"]["type"] == "SerializationError"


async def test_wrong_argument_of_a_stream_is_answered_whole(
    session: aiohttp.ClientSession,
) -> None:
    answer = await remote(session, "count", "many")
    assert (answer["ok"], answer["error"]["type"]) == (False, "ValidationError")


async def test_item_yielded_alone_is_sent_at_once(
    session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    body = call_body("lines", str(fifo))
    request = session.post("/_remote", data=body)
    async with request as response:
        with await anyio.to_thread.run_sync(lambda: fifo.open("w", buffering=1)) as gate:
            for word in ("one", "two", "three"):
                gate.write(f"{word}\n")
                assert await response.content.readline() == b'{"item":"%b"}\n' % word.encode()
        assert await response.content.read() == b'{"end":true}\n'


def start_endless(server: Server, tmp_path: Path) -> tuple[socket.socket, Path, Path]:
    counter, closed = tmp_path / "counter", tmp_path / "closed"
    counter.write_text("0")
    connection = server.connect()
    connection.sendall(post("/_remote", call_body("endless", str(counter), str(closed))))
    return connection, counter, closed


def number_in(counter: Path) -> int:
    return int(counter.read_text())


async def wait_until_stalled(session: aiohttp.ClientSession, counter: Path) -> int:
    """Waits until a counter no longer moves while the runtime answers fifty other calls."""
    last = -1
    with anyio.fail_after(20):
        while last != (now := number_in(counter)) or now == 0:
            last = now
            for _ in range(50):
                await remote(session, "echo_async", 1)
    return last


async def test_reader_that_stops_stalls_the_producer_in_bounded_memory(
    server: Server, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    await remote(session, "echo_async", 1)
    before = server.resident_bytes()
    connection, counter, closed = start_endless(server, tmp_path)
    with closing(connection):
        stalled_at = await wait_until_stalled(session, counter)
        assert server.resident_bytes() - before < 8 * MEBIBYTE
        # It goes on once the reader does.
        await anyio.to_thread.run_sync(receive_until, connection, b"x" * 1000)
        while number_in(counter) == stalled_at:
            assert await anyio.to_thread.run_sync(connection.recv, MEBIBYTE)
        assert not closed.exists()
    await until(closed.exists)


async def test_generator_that_never_waits_starves_no_other_call(
    server: Server, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    connection, counter, _ = start_endless(server, tmp_path)

    def read_until_shut() -> None:
        with suppress(ConnectionError):
            while connection.recv(MEBIBYTE):
                pass

    with closing(connection):
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.to_thread.run_sync, read_until_shut)
            await until(lambda: number_in(counter) > 1000)
            before = number_in(counter)
            for number in range(100):
                answer = await remote(session, "echo_async", number)
                assert answer == {"ok": True, "value": number}
            assert number_in(counter) > before
            connection.shutdown(socket.SHUT_RDWR)


async def test_gone_reader_closes_a_generator_that_never_waits(
    server: Server, tmp_path: Path
) -> None:
    connection, _, closed = start_endless(server, tmp_path)
    with closing(connection):
        receive_until(connection, b"item")
    await until(closed.exists)


async def test_gone_reader_closes_a_stalled_generator(
    server: Server, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    connection, counter, closed = start_endless(server, tmp_path)
    with closing(connection):
        await wait_until_stalled(session, counter)
        assert not closed.exists()
    await until(closed.exists)


def test_gone_reader_closes_a_generator_that_waits_for_ever(server: Server, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    with server.connect() as connection:
        connection.sendall(post("/_remote", call_body("one_then_wait", str(closed))))
        receive_until(connection, b'{"item":1}')
        assert not closed.exists()
    wait_until(closed.exists)


async def test_generator_that_swallows_its_cancellation_is_ended_at_its_next_item(
    server: Server, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    before = await count_tasks(session)
    cancelled = tmp_path / "cancelled"
    with server.connect() as connection:
        connection.sendall(post("/_remote", call_body("stubborn", str(cancelled))))
        receive_until(connection, b'{"item":1}')
    await until(cancelled.exists)

    async def idle() -> bool:
        return await count_tasks(session) <= before

    await eventually(idle)


async def test_streams_leave_nothing_behind(
    server: Server, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    await remote(session, "tasks")
    before = (await count_tasks(session), server.descriptors())
    for number in range(20):
        closed = tmp_path / str(number)
        with server.connect() as connection:
            connection.sendall(post("/_remote", call_body("one_then_wait", str(closed))))
            receive_until(connection, b'{"item":1}')
        await until(closed.exists)

    async def same() -> bool:
        return (await count_tasks(session), server.descriptors()) == before

    await eventually(same)
