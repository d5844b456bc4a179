"""Leaving the client: whatever waits for the runtime ends at once, and says why."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agentix.client import RuntimeClient
from agentix.errors import SandboxGoneError, UsageError
from tests.client import stubs
from tests.client.raw import NDJSON, SSE, Exchange, Place, answer, chunk, head

AT_ONCE = 0.5
"""Seconds in which a wait must have ended."""

CLOSED = r"the client of the runtime at .* was closed"

OCTETS = "application/octet-stream"

ONE_ITEM = head(200, NDJSON, "Transfer-Encoding: chunked") + chunk('{"item":1}\n')

Call = Callable[[RuntimeClient, Path], Awaitable[object]]

CALLS: dict[str, Call] = {
    "remote": lambda client, _: client.remote(stubs.add, 1),
    "stream": lambda client, _: anext(client.remote(stubs.count, 1)),
    "run": lambda client, _: client.run("true"),
    "run_stream": lambda client, _: anext(client.run_stream("true")),
    "upload": lambda client, _: client.upload(b"x", "x"),
    "large upload": lambda client, _: client.upload(bytes(64 * 1024 * 1024), "x"),
    "download": lambda client, directory: client.download("x", directory / "x"),
    "read_file": lambda client, _: client.read_file("x"),
    "namespaces": lambda client, _: client.namespaces(),
    "schemas": lambda client, _: client.namespaces(schemas=True),
    "health": lambda client, _: client.health(timeout=60),
}

UNFINISHED = {
    "stream": head(200, NDJSON, "Transfer-Encoding: chunked"),
    "run_stream": head(200, SSE, "Transfer-Encoding: chunked"),
    "download": head(200, OCTETS, "Content-Length: 100") + b"x",
    "read_file": head(200, OCTETS, "Content-Length: 100") + b"x",
}
"""How an answer begins that then does not go on, where that is not JSON."""


class StalledRuntime:
    """A runtime that says something or nothing, and then waits for the client to leave."""

    def __init__(self, said: bytes) -> None:
        self.said = said
        self.reached = asyncio.Event()
        self.left = asyncio.Event()

    async def __call__(self, exchange: Exchange) -> None:
        await exchange.reader.readuntil(b"\r\n\r\n")
        await exchange.send(self.said)
        self.reached.set()
        await exchange.left()
        self.left.set()


@asynccontextmanager
async def ends_at_once(task: "asyncio.Task[object]") -> AsyncIterator[None]:
    """Run a block that closes the client of a task, which must end in time, and say why."""
    async with asyncio.timeout(AT_ONCE):
        yield
        with pytest.raises(SandboxGoneError, match=CLOSED):
            await task


async def reading(task: "asyncio.Task[object]") -> None:
    """Let a task that must not end yet run until it waits for the socket."""
    done, _ = await asyncio.wait([task], timeout=0.05)
    assert not done


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("begun", [False, True], ids=["no answer", "half an answer"])
async def test_call_in_flight_ends_when_the_client_is_left(
    place: Place, tmp_path: Path, name: str, begun: bool
) -> None:
    directory = tmp_path / "files"
    directory.mkdir()
    started = head(200, "application/json", "Content-Length: 100") + b"{"
    runtime = StalledRuntime(UNFINISHED.get(name, started) if begun else b"")
    async with place.serve(runtime) as server:
        client = RuntimeClient(server.url)
        await client.__aenter__()
        task = asyncio.ensure_future(CALLS[name](client, directory))
        await asyncio.wait_for(runtime.reached.wait(), 5)
        await reading(task)
        async with ends_at_once(task):
            await client.__aexit__()
        if name != "large upload":
            await asyncio.wait_for(runtime.left.wait(), 5)
    assert os.listdir(directory) == []


async def test_upload_that_is_not_taken_does_not_hold_up_the_leaving(place: Place) -> None:
    held = asyncio.Event()
    reached = asyncio.Event()

    async def handle(exchange: Exchange) -> None:
        reached.set()
        await held.wait()

    async with place.serve(handle) as server:
        client = RuntimeClient(server.url)
        await client.__aenter__()
        task = asyncio.ensure_future(client.upload(bytes(64 * 1024 * 1024), "x"))
        await asyncio.wait_for(reached.wait(), 5)
        await reading(task)
        async with ends_at_once(task):
            await client.__aexit__()
        held.set()


async def test_connecting_ends_when_the_client_is_left(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(f"{tmp_path}/socket")
        listener.listen(0)
        first.connect(f"{tmp_path}/socket")  # takes the only place of the backlog
        client = RuntimeClient(f"unix:{tmp_path}/socket", connect_timeout=60)
        await client.__aenter__()
        task = asyncio.ensure_future(client.remote(stubs.add, 1))
        await reading(task)
        async with ends_at_once(task):
            await client.__aexit__()


async def test_task_group_around_the_client_ends(place: Place) -> None:
    runtime = StalledRuntime(ONE_ITEM)
    first = asyncio.Event()

    async def read(client: RuntimeClient) -> None:
        async for _ in client.remote(stubs.count, 9):
            first.set()

    async def leave_while_reading(url: str) -> None:
        async with (
            asyncio.timeout(5),
            asyncio.TaskGroup() as group,
            RuntimeClient(url) as client,
        ):
            group.create_task(read(client))
            await first.wait()

    async with place.serve(runtime) as server:
        with pytest.raises(ExceptionGroup) as caught:
            await leave_while_reading(server.url)
    assert caught.group_contains(SandboxGoneError, match=CLOSED)


async def test_what_was_begun_inside_the_block_and_awaited_after_it_says_so(place: Place) -> None:
    async with place.answering(answer('{"ok":true,"value":1}')) as server:
        async with RuntimeClient(server.url) as client:
            call = client.remote(stubs.add, 1)
            stream = client.remote(stubs.count, 1)
            events = client.run_stream("true")
        for late in (call, anext(stream), anext(events), client.health(), client.run("true")):
            with pytest.raises(SandboxGoneError, match=CLOSED):
                await late
        with pytest.raises(SandboxGoneError, match=CLOSED):
            await client.remote(stubs.add, 1)
    assert server.connections == 0


async def test_stream_that_is_left_half_read_says_so_later(place: Place) -> None:
    runtime = StalledRuntime(ONE_ITEM)
    async with place.serve(runtime) as server:
        client = RuntimeClient(server.url)
        async with client:
            stream = client.remote(stubs.count, 9)
            assert await anext(stream) == 1
        with pytest.raises(SandboxGoneError, match=CLOSED):
            await anext(stream)


async def test_stream_of_a_block_that_was_left_does_not_wait_in_the_next(place: Place) -> None:
    runtime = StalledRuntime(ONE_ITEM)
    async with place.serve(runtime) as server:
        client = RuntimeClient(server.url)
        async with client:
            stream = client.remote(stubs.count, 9)
            assert await anext(stream) == 1
        async with client, asyncio.timeout(AT_ONCE):
            with pytest.raises(SandboxGoneError, match="the connection was closed"):
                await anext(stream)


async def test_client_is_closed_twice_without_harm(place: Place) -> None:
    runtime = StalledRuntime(b"")
    async with place.serve(runtime) as server:
        client = RuntimeClient(server.url)
        await client.__aexit__()
        await client.__aenter__()
        task = asyncio.ensure_future(client.remote(stubs.add, 1))
        await asyncio.wait_for(runtime.reached.wait(), 5)
        async with ends_at_once(task):
            await asyncio.gather(client.__aexit__(), client.__aexit__())
        await client.__aexit__()
    with pytest.raises(UsageError, match="async with RuntimeClient"):
        await RuntimeClient(server.url).health()


async def test_cancellation_by_the_caller_is_not_taken_for_the_closing(place: Place) -> None:
    runtime = StalledRuntime(b"")
    async with place.serve(runtime) as server, RuntimeClient(server.url) as client:
        task = asyncio.ensure_future(client.remote(stubs.add, 1))
        await asyncio.wait_for(runtime.reached.wait(), 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.remote(stubs.add, 1)


async def test_cancellation_counts_where_the_client_is_closed_too(place: Place) -> None:
    runtime = StalledRuntime(b"")
    async with place.serve(runtime) as server:
        client = RuntimeClient(server.url)
        await client.__aenter__()
        task = asyncio.ensure_future(client.remote(stubs.add, 1))
        await asyncio.wait_for(runtime.reached.wait(), 5)
        task.cancel()
        await client.__aexit__()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_task_that_waited_goes_on_as_if_never_cancelled(place: Place) -> None:
    runtime = StalledRuntime(b"")

    async def call(client: RuntimeClient) -> int:
        with pytest.raises(SandboxGoneError, match=CLOSED):
            await client.health(timeout=60)
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    async with place.serve(runtime) as server:
        async with RuntimeClient(server.url) as client:
            task = asyncio.create_task(call(client))
            await asyncio.wait_for(runtime.reached.wait(), 5)
        assert await asyncio.wait_for(task, AT_ONCE) == 0
