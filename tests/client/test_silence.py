"""A runtime that is stopped or stuck: what runs no call ends in time, and a call waits."""

import asyncio
import io
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentix.client import RuntimeClient
from agentix.errors import RequestError, SandboxGoneError, UsageError
from tests.client import probe
from tests.client.conftest import Runtime
from tests.client.raw import Exchange, Place, answer, head

BOUND = 0.3
"""Seconds that a runtime may be silent in these tests."""

PATIENCE = 10.0
"""Seconds for what must come in time, on a busy machine too."""

SILENT = r"the runtime at .* does not answer: .* may be stopped or busy"

OCTETS = "application/octet-stream"

Call = Callable[[RuntimeClient, Path, float], Awaitable[object]]

BOUNDED: dict[str, Call] = {
    "health": lambda client, _, seconds: client.health(timeout=seconds),
    "namespaces": lambda client, *_: client.namespaces(),
    "read_file": lambda client, *_: client.read_file("file"),
    "download": lambda client, directory, _: client.download("file", directory / "file"),
    "upload": lambda client, *_: client.upload(b"x", "x"),
    "large upload": lambda client, *_: client.upload(bytes(64 * 1024 * 1024), "x"),
}

CALLS: dict[str, Call] = {
    "remote": lambda client, *_: client.remote(probe.add, 1),
    "stream": lambda client, *_: anext(client.remote(probe.count, 1)),
    "run": lambda client, *_: client.run("true"),
    "run_stream": lambda client, *_: anext(client.run_stream("true")),
    "schemas": lambda client, *_: client.namespaces(schemas=True),
}


@contextmanager
def stopped(runtime: Runtime) -> Iterator[Callable[[], None]]:
    """Stop a runtime, and let it go on at the end of the block or when what is given is called."""

    def go_on() -> None:
        os.kill(runtime.process.pid, signal.SIGCONT)

    os.kill(runtime.process.pid, signal.SIGSTOP)
    try:
        yield go_on
    finally:
        go_on()


@pytest.fixture
async def client(runtime: Runtime) -> AsyncIterator[RuntimeClient]:
    (runtime.workspace / "file").write_bytes(b"content")
    async with RuntimeClient(runtime.url, token=runtime.token, answer_timeout=BOUND) as client:
        await client.remote(probe.add, 1)
        yield client


@asynccontextmanager
async def silence() -> AsyncIterator[None]:
    """Expect that a block ends in time, because of a silence that was long enough."""
    begun = time.monotonic()
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(SandboxGoneError, match=SILENT):
            yield
    assert time.monotonic() - begun >= BOUND


async def goes_on(task: "asyncio.Task[Any]") -> None:
    """Let a task that must not end yet wait for longer than the bound."""
    done, _ = await asyncio.wait([task], timeout=2 * BOUND)
    assert not done


@pytest.mark.parametrize("name", BOUNDED)
async def test_stopped_runtime_does_not_hold_what_runs_no_call(
    client: RuntimeClient, runtime: Runtime, tmp_path: Path, name: str
) -> None:
    with stopped(runtime):
        async with silence():
            await BOUNDED[name](client, tmp_path, BOUND)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", CALLS)
async def test_call_waits_for_a_stopped_runtime(
    client: RuntimeClient, runtime: Runtime, tmp_path: Path, name: str
) -> None:
    with stopped(runtime) as go_on:
        task = asyncio.ensure_future(CALLS[name](client, tmp_path, BOUND))
        await goes_on(task)
        go_on()
        assert await asyncio.wait_for(task, 10) is not None


@pytest.mark.parametrize("name", BOUNDED)
async def test_runtime_that_goes_on_in_time_has_done_no_harm(
    client: RuntimeClient, runtime: Runtime, tmp_path: Path, name: str
) -> None:
    patient = RuntimeClient(runtime.url, token=runtime.token, answer_timeout=PATIENCE)
    async with patient:
        with stopped(runtime) as go_on:
            task = asyncio.ensure_future(BOUNDED[name](patient, tmp_path, PATIENCE))
            await goes_on(task)
            go_on()
            assert await asyncio.wait_for(task, PATIENCE) is not None


async def test_runtime_that_stops_in_the_middle_of_a_download(
    client: RuntimeClient, runtime: Runtime, tmp_path: Path
) -> None:
    with (runtime.workspace / "large").open("wb") as file:
        file.truncate(8 * 1024 * 1024 * 1024)
    task = asyncio.ensure_future(client.download("large", tmp_path / "large"))
    async with asyncio.timeout(10):
        while not os.listdir(tmp_path):  # noqa: ASYNC110 - nothing tells when it has begun
            await asyncio.sleep(0.005)
    with stopped(runtime), pytest.raises(SandboxGoneError, match=SILENT):
        await asyncio.wait_for(task, PATIENCE)
    assert os.listdir(tmp_path) == []


async def unfinished(exchange: Exchange) -> None:
    """Begin to answer with ten bytes, and send five."""
    await exchange.reader.readuntil(b"\r\n\r\n")
    await exchange.send(head(200, OCTETS, "Content-Length: 10") + b"12345")
    await exchange.left()


@pytest.mark.parametrize("name", ["remote", "run", "schemas", *BOUNDED])
async def test_answer_that_stops_in_its_middle(place: Place, tmp_path: Path, name: str) -> None:
    directory = tmp_path / "files"
    directory.mkdir()
    async with (
        place.serve(unfinished) as server,
        RuntimeClient(server.url, answer_timeout=BOUND) as client,
        silence(),
    ):
        await (BOUNDED | CALLS)[name](client, directory, BOUND)
    assert os.listdir(directory) == []


async def test_bytes_that_come_slowly_are_no_silence(place: Place) -> None:
    async def handle(exchange: Exchange) -> None:
        await exchange.request()
        await exchange.send(head(200, OCTETS, "Content-Length: 10"))
        for digit in b"0123456789":
            await asyncio.sleep(0.15)  # the pace of the answer
            await exchange.send(bytes([digit]))

    async with place.serve(handle) as server, RuntimeClient(server.url, answer_timeout=1) as client:
        begun = time.monotonic()
        assert await client.read_file("x") == b"0123456789"
    assert time.monotonic() - begun > 1.0


@dataclass
class SlowTaker:
    """A runtime that takes an upload at a pace of 64 reads a second."""

    piece: int

    async def __call__(self, exchange: Exchange) -> None:
        await exchange.reader.readuntil(b"\r\n\r\n")
        while b"--\r\n" not in await exchange.reader.read(self.piece):  # noqa: ASYNC110
            await asyncio.sleep(1 / 64)
        await exchange.send(answer('{"path":"/x","size":1}'))
        await exchange.left()


async def test_body_that_is_taken_slowly_is_no_silence(place: Place) -> None:
    taker = SlowTaker(256 * 1024)
    async with place.serve(taker) as server, RuntimeClient(server.url, answer_timeout=1) as client:
        begun = time.monotonic()
        await client.upload(bytes(32 * 1024 * 1024), "x")
    assert time.monotonic() - begun > 1.5


async def test_piece_that_is_taken_slowly_is_no_silence(tmp_path: Path) -> None:
    place, taker = Place(tmp_path / "socket"), SlowTaker(16 * 1024)
    async with (
        place.serve(taker) as server,
        RuntimeClient(server.url, answer_timeout=0.5) as client,
    ):
        begun = time.monotonic()
        await client.upload(io.BytesIO(bytes(2 * 1024 * 1024)), "x")
    assert time.monotonic() - begun > 1.5


async def test_source_that_gives_nothing_is_no_silence_of_the_runtime(
    client: RuntimeClient,
) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as source, os.fdopen(writing, "wb") as pipe:
        task = asyncio.ensure_future(client.upload(source, "piped"))
        await goes_on(task)
        pipe.write(b"late")
        pipe.close()
        assert (await asyncio.wait_for(task, 10)).size == 4


async def test_time_in_which_the_own_loop_stood_still_is_no_silence(runtime: Runtime) -> None:
    async with RuntimeClient(runtime.url, token=runtime.token) as client:
        task = asyncio.ensure_future(client.health(timeout=1.6))
        await asyncio.sleep(0)
        time.sleep(2)  # noqa: ASYNC251 - the owner blocks its loop while the client connects
        assert (await task).status == "ok"


async def test_reason_that_does_not_come_does_not_hold_a_refusal(place: Place) -> None:
    async def handle(exchange: Exchange) -> None:
        await exchange.request()
        await exchange.send(head(401, "application/json", "Content-Length: 100") + b'{"err')
        await exchange.left()

    async with (
        place.serve(handle) as server,
        RuntimeClient(server.url, answer_timeout=BOUND) as client,
        asyncio.timeout(PATIENCE),
    ):
        for call in (client.remote(probe.add, 1), client.namespaces()):
            with pytest.raises(RequestError, match="401"):
                await call


@contextmanager
def full_backlog(listener: socket.socket) -> Iterator[int]:
    """Take the places of a backlog, until the next to come must wait, and give their number."""
    places = 0
    with ExitStack() as stack:
        while True:
            waiting = stack.enter_context(socket.socket(listener.family))
            waiting.settimeout(0.1)
            try:
                waiting.connect(listener.getsockname())
            except (BlockingIOError, TimeoutError):
                break
            places += 1
        yield places


@pytest.fixture(params=["tcp", "unix"])
def listener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[socket.socket]:
    """A socket that listens and whose owner accepts nothing."""
    family = socket.AF_UNIX if request.param == "unix" else socket.AF_INET
    with socket.socket(family) as listener:
        listener.bind(f"{tmp_path}/socket" if request.param == "unix" else ("127.0.0.1", 0))
        listener.listen(0)
        yield listener


def url_of(listener: socket.socket) -> str:
    name = listener.getsockname()
    return f"unix:{name}" if isinstance(name, str) else f"http://127.0.0.1:{name[1]}"


async def test_full_backlog_is_bounded_by_the_time_for_connecting(
    listener: socket.socket,
) -> None:
    with full_backlog(listener):
        async with RuntimeClient(url_of(listener), connect_timeout=BOUND) as client:
            begun = time.monotonic()
            with pytest.raises(SandboxGoneError, match=r"took no connection within 0\.3 s"):
                await asyncio.wait_for(client.remote(probe.add, 1), PATIENCE)
    assert BOUND <= time.monotonic() - begun < PATIENCE


async def test_connection_waits_for_a_place_in_the_backlog_of_a_unix_socket(
    tmp_path: Path,
) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{tmp_path}/socket")
        listener.listen(0)
        listener.setblocking(False)
        with full_backlog(listener) as places:
            async with RuntimeClient(f"unix:{tmp_path}/socket", answer_timeout=BOUND) as client:
                task = asyncio.ensure_future(client.read_file("x"))
                done, _ = await asyncio.wait([task], timeout=0.05)
                assert not done
                for _ in range(places):
                    listener.accept()[0].close()
                loop = asyncio.get_running_loop()
                connection, _ = await asyncio.wait_for(loop.sock_accept(listener), 5)
                with connection:
                    connection.sendall(answer(b"1", media_type=OCTETS))
                    assert await asyncio.wait_for(task, 5) == b"1"


@pytest.mark.parametrize(("connect", "silent"), [(0, 1), (1, 0), (1, -1), (float("nan"), 1)])
def test_time_that_is_none_is_refused(connect: float, silent: float) -> None:
    with pytest.raises(UsageError, match="must be more than 0"):
        RuntimeClient("http://localhost", connect_timeout=connect, answer_timeout=silent)
