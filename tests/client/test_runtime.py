"""The client against a real runtime in a process of its own."""

import asyncio
import io
import os
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pytest

from agentix.client import RuntimeClient, Stream
from agentix.errors import (
    NamespaceNotFoundError,
    RemoteCallError,
    RequestError,
)
from agentix.trace import TraceContext, current_trace
from agentix.wire import ExecExit, ExecOutput
from tests.client import probe
from tests.client.conftest import Runtime


@pytest.fixture
async def client(runtime: Runtime) -> AsyncIterator[RuntimeClient]:
    async with RuntimeClient(runtime.url, token=runtime.token) as client:
        yield client


async def happens(client: RuntimeClient, event: str) -> None:
    await asyncio.wait_for(client.remote(probe.wait_for, event), 10)


async def test_call_gives_the_result(client: RuntimeClient) -> None:
    assert await client.remote(probe.add, 1) == 2
    assert await client.remote(probe.add, 1, right=5) == 6


async def test_values_survive_both_ways(client: RuntimeClient) -> None:
    parcel = probe.Parcel(
        text="é漢😀\0\n",
        data=bytes(range(256)),
        when=datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        price=Decimal("0.10"),
        key=UUID(int=7),
        place=Path("/a/b"),
        numbers={"a": 0.1, "b": float("inf"), "c": None},
    )
    assert await client.remote(probe.send_back, parcel) == parcel


async def test_exception_of_an_impl_arrives(client: RuntimeClient) -> None:
    with pytest.raises(RemoteCallError) as caught:
        await client.remote(probe.fail, "not here")
    assert (caught.value.type, caught.value.message) == ("LookupError", "not here")
    assert "raise LookupError(message)" in caught.value.traceback


async def test_missing_impl_and_missing_namespace(client: RuntimeClient) -> None:
    with pytest.raises(RemoteCallError, match="MethodNotFound"):
        await client.remote(probe.unbound)
    with pytest.raises(NamespaceNotFoundError, match=r"agentix_namespaces\.missing"):
        await client.remote(probe.misplaced)


async def test_trace_context_reaches_the_impl(client: RuntimeClient) -> None:
    assert await client.remote(probe.trace) is None
    traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    token = current_trace.set(TraceContext(traceparent))
    try:
        assert await client.remote(probe.trace) == traceparent
    finally:
        current_trace.reset(token)


async def test_without_the_token_only_health_answers(runtime: Runtime, tmp_path: Path) -> None:
    for token in (None, "wrong"):
        async with RuntimeClient(runtime.url, token=token) as stranger:
            assert (await stranger.health()).status == "ok"
            for call in (
                stranger.remote(probe.add, 1),
                anext(stranger.remote(probe.count, 1)),
                stranger.run("true"),
                anext(stranger.run_stream("true")),
                stranger.upload(bytes(8 * 1024 * 1024), "x"),
                stranger.download("x", tmp_path / "x"),
                stranger.namespaces(),
            ):
                with pytest.raises(RequestError) as caught:
                    await call
                assert caught.value.status == 401


async def test_64_calls_at_once(client: RuntimeClient) -> None:
    results = await asyncio.gather(*(client.remote(probe.add, n) for n in range(64)))
    assert results == list(range(1, 65))


async def test_cancelled_call_is_cancelled_in_the_sandbox(client: RuntimeClient) -> None:
    name = f"cancelled by {client.url}"
    task = asyncio.create_task(client.remote(probe.hang, name))
    await happens(client, f"{name} started")
    task.cancel()
    await happens(client, f"{name} ended")
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_call_out_of_time_is_cancelled_in_the_sandbox(client: RuntimeClient) -> None:
    name = f"out of time at {client.url}"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await client.remote(probe.hang, name)
    await happens(client, f"{name} ended")


async def test_stream_gives_every_item_in_order(client: RuntimeClient) -> None:
    assert [n async for n in client.remote(probe.count, 100_000)] == list(range(100_000))
    texts = ["", "é" * 100_000, "\n", "x" * (5 * 1024 * 1024), "end"]
    assert [token.text async for token in client.remote(probe.say, texts)] == texts


async def test_streams_share_a_client(client: RuntimeClient) -> None:
    async def total(stream: Stream[int]) -> int:
        return sum([n async for n in stream])

    totals = await asyncio.gather(*(total(client.remote(probe.count, n)) for n in range(64)))
    assert totals == [sum(range(n)) for n in range(64)]


async def test_items_are_seen_before_the_exception(client: RuntimeClient) -> None:
    stream = client.remote(probe.count_and_fail, 1000)
    for number in range(1000):
        assert await anext(stream) == number
    with pytest.raises(RemoteCallError, match="LookupError: after 1000"):
        await anext(stream)


async def test_stream_that_is_left_ends_in_the_sandbox(client: RuntimeClient) -> None:
    name = f"left by {client.url}"
    async for number in client.remote(probe.count_and_hang, name, 3):
        if number == 2:
            break
    await happens(client, f"{name} ended")


async def test_stream_that_is_closed_ends_in_the_sandbox(client: RuntimeClient) -> None:
    name = f"closed by {client.url}"
    async with aclosing(client.remote(probe.count_and_hang, name, 1)) as stream:
        assert await anext(stream) == 0
    await happens(client, f"{name} ended")


async def test_stream_that_is_cancelled_ends_in_the_sandbox(client: RuntimeClient) -> None:
    name = f"cancelled at {client.url}"
    stream = client.remote(probe.count_and_hang, name, 1)
    assert await anext(stream) == 0
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(stream), 0.05)
    await happens(client, f"{name} ended")


async def test_command_gives_its_outcome(client: RuntimeClient) -> None:
    result = await client.run("echo out; echo err >&2; exit 3", env={"A": "b"}, timeout=10)
    assert (result.exit_code, result.stdout, result.stderr) == (3, "out\n", "err\n")
    assert (await client.run("echo $A; pwd", env={"A": "b"}, cwd="/")).stdout == "b\n/\n"
    cut = await client.run("echo 12345", max_output=2)
    assert (cut.stdout, cut.stdout_truncated, cut.stdout_bytes) == ("12", True, 6)
    assert (await client.run("echo a; sleep 60", timeout=0.2)).timed_out
    with pytest.raises(RequestError, match="missing"):
        await client.run("true", paths_from=["agentix_namespaces.missing"])


async def test_output_comes_while_the_command_runs(client: RuntimeClient) -> None:
    async with aclosing(client.run_stream("echo é; read x; echo $x >&2; exit 4")) as events:
        assert await anext(events) == ExecOutput(stream="stdout", text="é\n")
        *output, last = [event async for event in events]
    assert output == [ExecOutput(stream="stderr", text="\n")]
    assert isinstance(last, ExecExit)
    assert (last.exit_code, last.stdout_bytes, last.stderr_bytes) == (4, 3, 1)


async def test_command_that_is_left_is_stopped(client: RuntimeClient, runtime: Runtime) -> None:
    fifo = runtime.workspace / "left"
    os.mkfifo(fifo)
    async for event in client.run_stream(f"exec 9<>{fifo}; echo ready; sleep 60"):
        assert event == ExecOutput(stream="stdout", text="ready\n")
        held = await read_pipe(fifo)
        break
    assert await asyncio.wait_for(held.read(), 10) == b""  # no process of the command is left


async def read_pipe(fifo: Path) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    pipe = os.fdopen(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK), "rb")
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    return reader


@pytest.mark.parametrize("size", [0, 1, 5_000_000])
async def test_file_makes_the_round_trip(
    client: RuntimeClient, runtime: Runtime, tmp_path: Path, size: int
) -> None:
    content = os.urandom(size)
    source = tmp_path / "source"
    source.write_bytes(content)
    for given in (content, source, io.BytesIO(content)):
        result = await client.upload(given, "dir/é file.bin", mode=0o750)
        assert (Path(result.path), result.size) == (runtime.workspace / "dir/é file.bin", size)
    assert (runtime.workspace / "dir/é file.bin").stat().st_mode & 0o777 == 0o750
    assert await client.download("dir/é file.bin", tmp_path / "target") == size
    assert (tmp_path / "target").read_bytes() == content
    assert await client.read_file(result.path) == content


async def test_part_of_a_file_is_read(client: RuntimeClient, tmp_path: Path) -> None:
    await client.upload(b"0123456789", "digits")
    assert await client.read_file("digits", start=7) == b"789"
    assert await client.read_file("digits", length=3) == b"012"
    assert await client.download("digits", tmp_path / "part", start=2, length=100) == 8
    assert (tmp_path / "part").read_bytes() == b"23456789"
    with pytest.raises(RequestError) as caught:
        await client.read_file("digits", start=10)
    assert caught.value.status == 416


async def test_pipe_is_uploaded_to_its_end(client: RuntimeClient) -> None:
    reading, writing = os.pipe()

    def write() -> None:
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(b"x" * 300_000)

    thread = threading.Thread(target=write)
    thread.start()
    with os.fdopen(reading, "rb") as source:
        assert (await client.upload(source, "piped")).size == 300_000
    thread.join()


async def test_file_outside_of_the_root_is_refused(client: RuntimeClient, tmp_path: Path) -> None:
    for path in ("../x", "/etc/passwd", "a\0b"):
        with pytest.raises(RequestError):
            await client.upload(bytes(8 * 1024 * 1024), path)
        with pytest.raises(RequestError):
            await client.download(path, tmp_path / "x")
    with pytest.raises(RequestError):
        await client.download("missing", tmp_path / "x")
    assert os.listdir(tmp_path) == []


async def test_upload_that_is_cancelled_leaves_the_old_file(
    client: RuntimeClient, runtime: Runtime
) -> None:
    await client.upload(b"old", "kept/file")
    reading, writing = os.pipe()
    begun = threading.Event()

    class Source(io.FileIO):
        def read(self, size: int | None = -1) -> bytes:
            begun.set()
            return super().read(size) or b""

    with Source(reading, "rb") as source:
        task = asyncio.create_task(client.upload(source, "kept/file"))
        assert await asyncio.to_thread(begun.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        os.close(writing)
    assert await client.read_file("kept/file") == b"old"


async def test_namespaces_and_health(client: RuntimeClient) -> None:
    await client.remote(probe.add, 1)
    [namespace] = await client.namespaces()
    assert namespace.manifest.package == probe.PACKAGE
    assert namespace.loaded
    assert namespace.error is None
    assert (await client.health()).status == "ok"


async def test_functions_are_described_where_it_is_asked_for(client: RuntimeClient) -> None:
    (described,) = await client.namespaces(schemas=True)
    assert described.schemas is not None
    functions = {function.name: function for function in described.schemas.functions}
    add = functions["add"]
    assert [(each.name, each.required, each.value) for each in add.parameters] == [
        ("left", True, {"type": "integer"}),
        ("right", False, {"type": "integer", "default": 1}),
    ]
    assert (add.streams, add.result) == (False, {"type": "integer"})
    assert "Token" in described.schemas.definitions
    (plain,) = await client.namespaces()
    assert not hasattr(plain, "schemas")
