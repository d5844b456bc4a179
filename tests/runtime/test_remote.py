"""`POST /_remote`: typed calls and their one wire."""

import json
import os
import socket
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest

from tests.runtime.serving import (
    PROBE_PACKAGE,
    Server,
    call_body,
    count_tasks,
    eventually,
    post,
    receive_until,
    remote,
    serving,
    until,
)

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PROBLEM = "application/json"


async def test_success_is_exactly_ok_and_value(session: aiohttp.ClientSession) -> None:
    body = call_body("parameters", 1, 2)
    async with session.post("/_remote", data=body) as response:
        assert response.status == 200
        assert response.content_type == "application/json"
        assert await response.read() == b'{"ok":true,"value":[1,2,[],3,{}]}'


def test_unary_answer_on_the_wire(server: Server) -> None:
    head, _, body = server.exchange(post("/_remote", call_body("echo", "é"))).partition(b"\r\n\r\n")
    fields = head.split(b"\r\n")
    assert fields[0] == b"HTTP/1.1 200 "
    assert fields[1:3] == [b"content-type: application/json", b"content-length: 24"]
    assert body == '{"ok":true,"value":"é"}'.encode()


async def test_positional_keyword_and_collected_arguments(session: aiohttp.ClientSession) -> None:
    body = call_body("parameters", 1, 2, 4, 5, c=6, d=7)
    async with session.post("/_remote", data=body) as response:
        assert await response.json() == {"ok": True, "value": [1, 2, [4, 5], 6, {"d": 7}]}


async def test_defaults_of_the_stub_fill_the_rest(session: aiohttp.ClientSession) -> None:
    assert await remote(session, "defaults", 1) == {"ok": True, "value": [1, [1, 2], "c"]}


EVERYTHING = {
    "blob": "_w==",
    "when": "2024-02-29T12:30:00+02:00",
    "amount": "1.10",
    "key": "0af76519-16cd-43dd-8448-eb211c80319c",
    "path": "/a/b",
    "colour": "red",
    "choice": "a",
    "inner": {"x": {"name": "n", "weights": [0.5]}},
}


async def test_every_type_comes_back_as_it_went(session: aiohttp.ClientSession) -> None:
    assert await remote(session, "everything", EVERYTHING) == {"ok": True, "value": EVERYTHING}


async def test_result_that_pydantic_turns_into_its_type(session: aiohttp.ClientSession) -> None:
    answer = {"ok": True, "value": {"name": "a mapping", "weights": [1.0, 2.5]}}
    assert await remote(session, "give_point") == answer


async def test_nan_travels_as_the_constant(session: aiohttp.ClientSession) -> None:
    async with session.post("/_remote", data=call_body("give_any", "nan")) as response:
        assert await response.read() == b'{"ok":true,"value":NaN}'


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (call_body("parameters", 1), "missing a required argument: 'b'"),
        (call_body("defaults", 1, d=1), "got an unexpected keyword argument 'd'"),
        (call_body("defaults", 1, [2], "c"), "too many positional arguments"),
        (call_body("defaults", 1, a=1), "multiple values for argument 'a'"),
        (
            call_body("defaults", "one"),
            "argument 'a': Input should be a valid integer, unable to parse string as an integer",
        ),
        (
            call_body("defaults", 1, [1, "x"], c=2),
            "argument 'b': 1: Input should be a valid integer, unable to parse string as an"
            " integer; argument 'c': Input should be a valid string",
        ),
    ],
)
async def test_arguments_that_do_not_fit_are_a_validation_error(
    session: aiohttp.ClientSession, body: bytes, message: str
) -> None:
    async with session.post("/_remote", data=body) as response:
        assert response.status == 200
        error = {"type": "ValidationError", "message": message, "traceback": ""}
        assert await response.json() == {"ok": False, "error": error}


async def test_unknown_method_is_method_not_found(session: aiohttp.ClientSession) -> None:
    message = f"{PROBE_PACKAGE} has no function 'absent'"
    error = {"type": "MethodNotFound", "message": message, "traceback": ""}
    assert await remote(session, "absent") == {"ok": False, "error": error}


MESSAGES = {
    "ValueError": "a wrong value",
    "SystemExit": "3",
    "KeyboardInterrupt": "",
    "GeneratorExit": "left",
    "CancelledError": "by itself",
    "TimeoutError": "too late",
    "OSError": "[Errno 28] No space left on device",
    "BrokenTextError": "<BrokenTextError whose text raised RuntimeError>",
    "OwnBaseException": "outside of Exception",
    "ExceptionGroup": "several (2 sub-exceptions)",
}
"""What the wire says of each kind that an impl of any sort can raise."""


@pytest.mark.parametrize("method", ["fail", "fail_async"])
@pytest.mark.parametrize("kind", MESSAGES)
async def test_what_an_impl_raises_is_data(
    session: aiohttp.ClientSession, method: str, kind: str
) -> None:
    answer = await remote(session, method, kind)
    error = answer.pop("error")
    assert answer == {"ok": False}
    assert (error["type"], error["message"]) == (kind, MESSAGES[kind])
    assert "in fail" in error["traceback"]


async def test_stop_iteration_of_a_plain_function(session: aiohttp.ClientSession) -> None:
    error = (await remote(session, "fail", "StopIteration"))["error"]
    assert (error["type"], error["message"]) == ("StopIteration", "stopped")


async def test_stop_iteration_of_a_coroutine_is_what_python_makes_of_it(
    session: aiohttp.ClientSession,
) -> None:
    error = (await remote(session, "fail_async", "StopIteration"))["error"]
    assert (error["type"], error["message"]) == (
        "RuntimeError",
        "coroutine raised StopIteration",
    )


async def test_lone_surrogates_in_a_message_are_replaced(session: aiohttp.ClientSession) -> None:
    error = (await remote(session, "fail", "surrogate"))["error"]
    assert (error["type"], error["message"]) == ("ValueError", "half ? a character")


@pytest.mark.parametrize("kind", ["SystemExit", "KeyboardInterrupt", "OwnBaseException"])
async def test_what_a_validator_raises_is_data(session: aiohttp.ClientSession, kind: str) -> None:
    answer = await remote(session, "hostile", {"raises": kind})
    assert (answer["ok"], answer["error"]["type"]) == (False, kind)


@pytest.mark.parametrize("kind", ["object", "text", "circle", "surrogate"])
@pytest.mark.parametrize("method", ["give", "give_any"])
async def test_result_without_json_form_is_a_serialization_error(
    session: aiohttp.ClientSession, method: str, kind: str
) -> None:
    answer = await remote(session, method, kind)
    if (method, kind) == ("give_any", "text"):
        assert answer == {"ok": True, "value": "text"}
        return
    assert (answer["ok"], answer["error"]["type"]) == (False, "SerializationError")


async def test_unknown_package_is_404(session: aiohttp.ClientSession) -> None:
    body = call_body("echo", 1, package="agentix_namespaces.absent")
    async with session.post("/_remote", data=body) as response:
        assert (response.status, response.content_type) == (404, PROBLEM)
        reason = "no namespace agentix_namespaces.absent is mounted"
        assert await response.json() == {"error": reason}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "Invalid JSON: EOF while parsing a value at line 1 column 0"),
        (b"[]", "Input should be an object"),
        (b'{"package": "p"}', "method: Field required"),
        (b'{"package": 1, "method": "m"}', "package: Input should be a valid string"),
        (
            b'{"package": "p", "method": "m", "args": {}}',
            "args: Input should be a valid array",
        ),
        (
            b'{"package": "p", "method": "m", "kwargs": []}',
            "kwargs: Input should be an object",
        ),
    ],
)
async def test_malformed_call_is_400(
    session: aiohttp.ClientSession, body: bytes, reason: str
) -> None:
    async with session.post("/_remote", data=body) as response:
        assert (response.status, response.content_type) == (400, PROBLEM)
        assert await response.json() == {"error": reason}


async def test_unknown_fields_of_a_call_are_ignored(session: aiohttp.ClientSession) -> None:
    body = json.loads(call_body("echo", 1)) | {"later": "version"}
    async with session.post("/_remote", json=body) as response:
        assert await response.json() == {"ok": True, "value": 1}


async def test_args_and_kwargs_may_be_absent(session: aiohttp.ClientSession) -> None:
    body = {"package": PROBE_PACKAGE, "method": "trace"}
    async with session.post("/_remote", json=body) as response:
        assert await response.json() == {"ok": True, "value": []}


@pytest.mark.parametrize("method", ["trace", "trace_async"])
async def test_trace_context_is_visible_and_returned(
    session: aiohttp.ClientSession, method: str
) -> None:
    headers = {"traceparent": TRACEPARENT, "tracestate": "a=1,b=2"}
    async with session.post("/_remote", data=call_body(method), headers=headers) as response:
        assert {name: response.headers[name] for name in headers} == headers
        assert await response.json() == {"ok": True, "value": [TRACEPARENT, "a=1,b=2"]}


async def test_trace_context_is_visible_in_a_stream_and_returned(
    session: aiohttp.ClientSession,
) -> None:
    headers = {"traceparent": TRACEPARENT}
    body = call_body("trace_stream")
    async with session.post("/_remote", data=body, headers=headers) as response:
        assert response.headers["traceparent"] == TRACEPARENT
        assert "tracestate" not in response.headers
        assert json.loads(await response.content.readline()) == {"item": [TRACEPARENT, None]}


async def test_trace_state_in_several_lines_is_one_list(server: Server) -> None:
    lines = (f"traceparent: {TRACEPARENT}", "tracestate: a=1", "tracestate: b=2")
    answer = server.exchange(post("/_remote", call_body("trace"), *lines))
    assert b"tracestate: a=1,b=2\r\n" in answer


async def test_trace_context_does_not_leak_into_the_next_call(
    session: aiohttp.ClientSession,
) -> None:
    headers = {"traceparent": TRACEPARENT}
    await (await session.post("/_remote", data=call_body("trace"), headers=headers)).read()
    assert await remote(session, "trace_async") == {"ok": True, "value": []}


async def test_plain_functions_run_beside_each_other_and_the_loop(
    session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    fifos = [tmp_path / name for name in "ab"]
    values: dict[str, Any] = {}

    async def read(fifo: Path) -> None:
        values[fifo.name] = (await remote(session, "read", str(fifo)))["value"]

    for fifo in fifos:
        os.mkfifo(fifo)
    async with anyio.create_task_group() as group:
        for fifo in fifos:
            group.start_soon(read, fifo)
        assert await remote(session, "echo", 1) == {"ok": True, "value": 1}
        # Opening for writing returns only once the impl has opened for reading.
        for fifo in reversed(fifos):
            await anyio.to_thread.run_sync(fifo.write_text, fifo.name)
    assert values == {"a": "a", "b": "b"}


async def test_client_that_goes_away_cancels_its_call(server: Server, tmp_path: Path) -> None:
    started, cancelled = tmp_path / "started", tmp_path / "cancelled"
    connection = server.connect()
    connection.sendall(post("/_remote", call_body("wait_for_ever", str(started), str(cancelled))))
    await until(started.exists)
    assert not cancelled.exists()
    connection.close()
    await until(cancelled.exists)


async def test_client_that_goes_away_at_once_cancels_its_call(
    server: Server, tmp_path: Path
) -> None:
    started, cancelled = tmp_path / "started", tmp_path / "cancelled"
    with server.connect() as connection:
        body = call_body("wait_for_ever", str(started), str(cancelled))
        connection.sendall(post("/_remote", body))
    await until(cancelled.exists)


async def test_call_of_one_client_survives_the_departure_of_another(
    server: Server, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    started, cancelled, fifo = (tmp_path / name for name in ("started", "cancelled", "fifo"))
    os.mkfifo(fifo)
    async with anyio.create_task_group() as group:
        values: list[Any] = []

        async def read() -> None:
            values.append(await remote(session, "read", str(fifo)))

        group.start_soon(read)
        with server.connect() as connection:
            body = call_body("wait_for_ever", str(started), str(cancelled))
            connection.sendall(post("/_remote", body))
            await until(started.exists)
        await until(cancelled.exists)
        await anyio.to_thread.run_sync(fifo.write_text, "still here")
    assert values == [{"ok": True, "value": "still here"}]


async def test_stuck_plain_function_does_not_hold_its_client(
    server: Server, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    before = await count_tasks(session)

    async def busy() -> bool:
        return await count_tasks(session) > before

    async def idle() -> bool:
        return await count_tasks(session) <= before

    with server.connect() as connection:
        connection.sendall(post("/_remote", call_body("read", str(fifo))))
        await eventually(busy)
    await eventually(idle)
    await anyio.to_thread.run_sync(fifo.write_text, "let the thread end")


async def test_body_beyond_the_limit_is_413(tmp_path: Path) -> None:
    with serving(tmp_path, {"AGENTIX_MAX_BODY": "1000"}) as small:
        async with small.session() as session:
            async with session.post("/_remote", data=b" " * 1001) as response:
                assert (response.status, response.content_type) == (413, PROBLEM)
                reason = "the body is larger than 1000 bytes"
                assert await response.json() == {"error": reason}
            padded = call_body("echo", 1).ljust(1000)
            async with session.post("/_remote", data=padded) as response:
                assert await response.json() == {"ok": True, "value": 1}


def test_keep_alive_connection_takes_call_after_call(server: Server) -> None:
    body = call_body("echo", 7)
    request = post("/_remote", body).replace(b"Connection: close\r\n", b"")
    with server.connect() as connection:
        for _ in range(3):
            connection.sendall(request)
            assert receive_until(connection, b'"value":7}').count(b"HTTP/1.1 200") == 1


def test_pipelined_calls_are_answered_in_order(server: Server) -> None:
    first = post("/_remote", call_body("echo", 1)).replace(b"Connection: close\r\n", b"")
    answer = server.exchange(first + post("/_remote", call_body("echo", 2)))
    assert [part.split(b"}")[0] for part in answer.split(b'"value":')[1:]] == [b"1", b"2"]


def test_client_that_only_stops_sending_counts_as_gone(server: Server, tmp_path: Path) -> None:
    started, cancelled = tmp_path / "started", tmp_path / "cancelled"
    with server.connect() as connection:
        body = call_body("wait_for_ever", str(started), str(cancelled))
        connection.sendall(post("/_remote", body))
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""
    assert cancelled.exists()
