"""Strangers that hold connections: the owner's calls are answered, and the log stays short."""

import asyncio
import json
import os
import resource
import select
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from time import monotonic
from typing import Any

import aiohttp
import pytest

from agentix.linux.front_door import DoorLimits
from agentix.runtime.body import DROP_BYTES, DROP_SECONDS
from tests.runtime.serving import (
    DEADLINE,
    Server,
    call_body,
    get,
    post,
    receive_until,
    received,
    remote,
    serving,
    wait_until,
)

TOKEN = "the-owners-own"
BEARER = f"Authorization: Bearer {TOKEN}"
HALF = b"POST /exec HTTP/1.1\r\nHost: localhost\r\nContent-Le"
STRANGERS = 1100
MARGIN = 2.0
"""Seconds that a busy machine may take on top."""

LIMIT = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
os.execv(sys.argv[3], sys.argv[3:])
"""


@pytest.fixture(scope="module", autouse=True)
def _enough_descriptors() -> Iterator[None]:
    """Let this process hold as many connections as the strangers need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path, token=TOKEN) as server:
        yield server


@pytest.fixture
def strangers() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def come(server: Server, stack: ExitStack, source: str = "127.0.0.1") -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    address = (host, int(port))
    return stack.enter_context(
        socket.create_connection(address, timeout=DEADLINE, source_address=(source, 0))
    )


def answer_to_owner(server: Server, value: int = 1) -> Any:
    request = post("/_remote", call_body("echo", value), BEARER)
    return json.loads(server.exchange(request).partition(b"\r\n\r\n")[2])


def seconds_until_closed(connection: socket.socket, begun: float) -> float:
    """Return how long a connection lasted that was begun then."""
    with suppress(ConnectionResetError):
        received(connection)
    return monotonic() - begun


@pytest.mark.parametrize(
    ("beginning", "most"),
    [
        (b"", STRANGERS),
        (HALF, 256),  # of one address
    ],
    ids=["silent", "half a request"],
)
def test_many_strangers_keep_no_owner_waiting(
    guarded: Server, strangers: ExitStack, beginning: bytes, most: int
) -> None:
    assert answer_to_owner(guarded) == {"ok": True, "value": 1}
    for _ in range(STRANGERS):
        come(guarded, strangers).sendall(beginning)
    begun = monotonic()
    assert answer_to_owner(guarded, 2) == {"ok": True, "value": 2}
    assert monotonic() - begun < 1
    assert guarded.descriptors() < most + 50  # its own, and those that are about to close
    assert guarded.log.count("\n") < 5


def test_strangers_of_many_addresses_keep_no_owner_waiting(
    guarded: Server, strangers: ExitStack
) -> None:
    for number in range(STRANGERS):
        come(guarded, strangers, f"127.0.{number % 5}.{1 + number % 200}").sendall(HALF)
    begun = monotonic()
    assert answer_to_owner(guarded) == {"ok": True, "value": 1}
    assert monotonic() - begun < 1
    assert guarded.descriptors() < 512 + 50


def test_stranger_costs_little_memory(guarded: Server, strangers: ExitStack) -> None:
    answer_to_owner(guarded)
    before = guarded.resident_bytes()
    for number in range(500):
        come(guarded, strangers, f"127.0.0.{1 + number % 100}").sendall(HALF)
    wait_until(lambda: guarded.descriptors() > 500)
    assert (guarded.resident_bytes() - before) / 500 < 100_000


async def test_burst_of_calls_on_new_connections_is_answered(guarded: Server) -> None:
    """The owner's own calls are not taken for strangers, however many come at once."""
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    unlimited = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(guarded.url, connector=unlimited, headers=headers) as session:
        calls = (remote(session, "echo_async", number) for number in range(1000))
        answers = await asyncio.gather(*calls)
    assert answers == [{"ok": True, "value": number} for number in range(1000)]
    assert "turned away" not in guarded.log


def test_strangers_leave_by_the_deadline_and_the_owner_stays(
    guarded: Server, strangers: ExitStack
) -> None:
    owner = come(guarded, strangers)
    request = get("/namespaces", BEARER).replace(b"Connection: close\r\n", b"")
    owner.sendall(request)
    receive_until(owner, b"]}")
    begun = monotonic()
    beginnings = [b"", HALF, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET / HTTP/1.1\r\n"]
    waiting = [come(guarded, strangers) for _ in beginnings]
    for connection, beginning in zip(waiting, beginnings, strict=True):
        connection.sendall(beginning)
    deadline = DoorLimits().deadline
    for connection in waiting:
        assert seconds_until_closed(connection, begun) < deadline + MARGIN
    assert monotonic() - begun > deadline - 0.5
    owner.sendall(request)
    assert b"HTTP/1.1 200" in receive_until(owner, b"]}")


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"


def test_preface_of_http_2_is_refused_at_once(guarded: Server, strangers: ExitStack) -> None:
    begun = monotonic()
    stranger = come(guarded, strangers)
    stranger.sendall(PREFACE)
    answer = receive_until(stranger, b"}")
    assert answer.startswith(b"HTTP/1.1 505 ")
    assert answer.endswith(b'{"error":"only HTTP/1.1 is spoken here"}')
    assert seconds_until_closed(stranger, begun) < 1


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (get("/namespaces"), 401),
        (get("/namespaces", "Authorization: Bearer guessed"), 401),
        (get("/health"), 200),
        (get("/health", "Authorization: Bearer guessed"), 200),
    ],
)
def test_answer_to_a_stranger_is_its_last(guarded: Server, request_: bytes, status: int) -> None:
    keeping = request_.replace(b"Connection: close\r\n", b"")
    head = guarded.exchange(keeping).partition(b"\r\n\r\n")[0]
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"connection: close" in head.lower().split(b"\r\n")


def test_health_with_the_token_admits(guarded: Server, strangers: ExitStack) -> None:
    owner = come(guarded, strangers)
    for _ in range(2):
        owner.sendall(get("/health", BEARER).replace(b"Connection: close\r\n", b""))
        assert b"connection: close" not in receive_until(owner, b"}").lower()


def drip(connection: socket.socket, ended: threading.Event) -> None:
    with suppress(OSError):
        while not ended.wait(0.05):
            connection.sendall(b"x")


def refused_with_a_body(*fields: str) -> bytes:
    lines = ["POST /exec HTTP/1.1", "Host: localhost", "Content-Length: 1000000", *fields, "", ""]
    return "\r\n".join(lines).encode() + b"x" * 100


REFUSED = [
    (refused_with_a_body(), 401),
    (refused_with_a_body("Authorization: Bearer guessed"), 401),
    (refused_with_a_body(BEARER), 413),
]


def test_body_after_a_refusal_holds_no_connection(tmp_path: Path, strangers: ExitStack) -> None:
    """Neither one that comes byte by byte, nor one that never comes."""
    ended = threading.Event()
    with serving(tmp_path, {"AGENTIX_MAX_BODY": "10"}, token=TOKEN) as server:
        begun = monotonic()
        connections = []
        for dripping in (True, False):
            for request, status in REFUSED:
                connection = come(server, strangers)
                connections.append(connection)
                connection.sendall(request)
                assert receive_until(connection, b"}").startswith(b"HTTP/1.1 %d " % status)
                if dripping:
                    threading.Thread(target=drip, args=(connection, ended), daemon=True).start()
        try:
            for connection in connections:
                assert seconds_until_closed(connection, begun) < DROP_SECONDS + MARGIN
        finally:
            ended.set()
        wait_until(lambda: server.descriptors() < 20)


def test_body_after_a_refusal_is_read_for_a_mebibyte_at_most(
    guarded: Server, strangers: ExitStack
) -> None:
    stranger = come(guarded, strangers)
    size = 100 * DROP_BYTES
    stranger.sendall(f"POST /exec HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n".encode())
    stranger.setblocking(False)
    sent, begun = 0, monotonic()
    with suppress(ConnectionError):
        while monotonic() - begun < DROP_SECONDS:
            select.select([], [stranger], [], DEADLINE)
            sent += stranger.send(b"x" * 65536)
    # What the buffers of both ends hold counts as sent.
    assert sent < DROP_BYTES + 16 * 2**20
    assert monotonic() - begun < DROP_SECONDS


def limited(soft: int, hard: int) -> tuple[str, ...]:
    return (sys.executable, "-c", LIMIT, str(soft), str(hard))


def test_strangers_take_no_descriptor_that_commands_need(
    tmp_path: Path, strangers: ExitStack
) -> None:
    with serving(tmp_path, token=TOKEN, through=limited(64, 128)) as server:
        for number in range(300):
            with suppress(OSError):
                come(server, strangers, f"127.0.0.{1 + number % 100}").sendall(HALF)
        begun = monotonic()
        request = post("/exec", b'{"command": "echo on"}', BEARER)
        assert b'"stdout":"on\\n"' in server.exchange(request)
        assert monotonic() - begun < 1
        assert server.descriptors() < 100
        assert server.log.count("\n") < 5


def test_lack_of_descriptors_neither_ends_the_runtime_nor_fills_its_log(
    tmp_path: Path, strangers: ExitStack
) -> None:
    """Commands take the descriptors that are kept back; nobody else comes in until they end."""
    os.mkfifo(tmp_path / "fifo")
    command = json.dumps({"command": f"cat {tmp_path}/fifo"}).encode()
    waiting = post("/exec", command, BEARER, "Accept: text/event-stream")
    with serving(tmp_path, token=TOKEN, through=limited(128, 128)) as server:
        owner = come(server, strangers)
        health = get("/health", BEARER).replace(b"Connection: close\r\n", b"")
        owner.sendall(health)
        receive_until(owner, b"}")
        for _ in range(20):
            come(server, strangers).sendall(waiting)
        wait_until(lambda: len(server.children()) == 20)
        for _ in range(60):
            come(server, strangers).sendall(health)
        wait_until(lambda: "accept(2) failed" in server.log)
        owner.sendall(health)
        assert b"HTTP/1.1 200" in receive_until(owner, b"}")
        (tmp_path / "fifo").write_text("all readers see this end")
        assert answer_to_owner(server) == {"ok": True, "value": 1}
        assert server.log.count("accept(2) failed") == 1
        assert server.log.count("\n") < 10


@pytest.mark.parametrize("user", [None, "65534"], ids=["own user", "another user"])
@pytest.mark.parametrize("connections", [1, 150], ids=["few connections", "many connections"])
def test_commands_have_the_limit_that_the_runtime_was_started_with(
    tmp_path: Path, strangers: ExitStack, user: str | None, connections: int
) -> None:
    if user is not None and os.geteuid() != 0:
        pytest.skip("only root can run commands as somebody else")
    tmp_path.chmod(0o755)
    environ = {} if user is None else {"AGENTIX_EXEC_USER": user}
    request = post("/exec", b'{"command": "ulimit -Sn; (ulimit -Sn); ulimit -Hn"}', BEARER)
    with serving(tmp_path, environ, token=TOKEN, through=limited(200, 400)) as server:
        for _ in range(connections):
            come(server, strangers)
        wait_until(lambda: server.descriptors() > connections)
        for _ in range(5):
            assert b'"stdout":"200\\n200\\n400\\n"' in server.exchange(request)
        limits = Path(f"/proc/{server.process.pid}/limits").read_text()
    line = next(line for line in limits.splitlines() if line.startswith("Max open files"))
    assert line.split()[3:5] == ["400", "400"]
