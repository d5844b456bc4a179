"""The front door, with real connections: who is let in, who has to leave, what is logged."""

import asyncio
import logging
import os
import resource
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from agentix.linux.control import listen_unix
from agentix.linux.front_door import (
    SILENT_PATIENCE,
    DoorLimits,
    FrontDoor,
    Visitor,
    connection_limit,
)
from tests.agentserver.certificates import make_certificate

DEADLINE = 20.0
"""Seconds after which something that should have happened has not."""

PATIENT = DoorLimits(deadline=DEADLINE, connections=1000)
HASTY = DoorLimits(deadline=0.2, connections=1000)


@dataclass
class Host:
    """A server that admits whoever says so, and answers each line with the address it sees."""

    served: int = 0
    visitors: list[Visitor] = field(default_factory=list)

    async def serve(self, visitor: Visitor) -> None:
        self.served += 1
        self.visitors.append(visitor)
        while line := await visitor.reader.readline():
            if line == b"fail\n":
                raise ValueError("as asked")
            if line == b"friend\n":
                visitor.admit()
            visitor.writer.write(visitor.address.encode() + b"\n")


@asynccontextmanager
async def opened(
    limits: DoorLimits,
    listener: socket.socket | None = None,
    context: ssl.SSLContext | None = None,
) -> AsyncIterator[tuple[FrontDoor, Host, "Guests"]]:
    listener = listener or socket.create_server(("127.0.0.1", 0), backlog=1024)
    host = Host()
    door = FrontDoor(listener, host.serve, limits, context)
    guests = Guests(listener.family, listener.getsockname())
    door.open()
    try:
        async with asyncio.timeout(DEADLINE):
            yield door, host, guests
    finally:
        guests.leave()
        door.close()
        for task in door.tasks:
            task.cancel()
        await asyncio.gather(*door.tasks, return_exceptions=True)


class Guests:
    """Clients, as bare as can be."""

    def __init__(self, family: int, name: Any) -> None:
        self._family = family
        self.name = name
        self._stack = ExitStack()

    async def come(self, source: str | None = None) -> socket.socket:
        connection = self._stack.enter_context(socket.socket(self._family))
        connection.setblocking(False)
        if source is not None:
            connection.bind((source, 0))
        await asyncio.get_running_loop().sock_connect(connection, self.name)
        return connection

    def leave(self) -> None:
        self._stack.close()


async def say(connection: socket.socket, line: bytes) -> bytes:
    """Send a line, and return the answer: nothing where the door was shut."""
    loop = asyncio.get_running_loop()
    try:
        await loop.sock_sendall(connection, line)
        return await loop.sock_recv(connection, 1000)
    except (ConnectionResetError, BrokenPipeError):
        return b""


async def wait_for_end(connection: socket.socket) -> None:
    with suppress(ConnectionResetError):
        assert await asyncio.get_running_loop().sock_recv(connection, 1000) == b""


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the server under test sets no event
        await asyncio.sleep(0.005)


async def test_who_says_nothing_is_gone_by_the_deadline() -> None:
    async with opened(HASTY) as (door, _, guests):
        silent = [await guests.come() for _ in range(20)]
        for connection in silent:
            await wait_for_end(connection)
        await until(lambda: not door.tasks)


async def test_who_says_something_else_is_gone_by_the_deadline() -> None:
    async with opened(HASTY) as (_, _, guests):
        stranger = await guests.come()
        while await say(stranger, b"open\n"):
            pass


async def test_who_was_admitted_stays() -> None:
    async with opened(HASTY) as (_, _, guests):
        friend, stranger = await guests.come(), await guests.come()
        assert await say(friend, b"friend\n") == b"127.0.0.1\n"
        await wait_for_end(stranger)
        assert await say(friend, b"still here\n") == b"127.0.0.1\n"


async def halves(
    guests: Guests, host: Host, count: int, source: str = "127.0.0.1"
) -> list[socket.socket]:
    """Let guests come, one after the other, who say something that is not enough."""
    connections = []
    for _ in range(count):
        served = host.served
        connection = await guests.come(source)
        await asyncio.get_running_loop().sock_sendall(connection, b"hal")
        await until(lambda served=served: host.served > served)  # type: ignore[misc]
        connections.append(connection)
    return connections


async def test_one_more_from_an_address_makes_its_oldest_leave() -> None:
    limits = DoorLimits(DEADLINE, waiting=10, waiting_per_address=3, connections=1000)
    async with opened(limits) as (_, host, guests):
        (other,) = await halves(guests, host, 1, "127.0.0.2")
        first, *others = await halves(guests, host, 4)
        await wait_for_end(first)
        assert await say(other, b"?\n") == b"127.0.0.2\n"
        for connection in others:
            assert await say(connection, b"?\n") == b"127.0.0.1\n"


async def test_one_more_in_all_makes_the_oldest_of_the_most_frequent_address_leave() -> None:
    limits = DoorLimits(DEADLINE, waiting=4, waiting_per_address=3, connections=1000)
    async with opened(limits) as (_, host, guests):
        (alone,) = await halves(guests, host, 1, "127.0.0.2")
        first, *_ = await halves(guests, host, 3, "127.0.0.3")
        friend = await guests.come()
        assert await say(friend, b"friend\n") == b"127.0.0.1\n"
        await wait_for_end(first)
        assert await say(alone, b"?\n") == b"127.0.0.2\n"


async def test_who_spoke_last_is_served_first() -> None:
    """So nobody waits behind strangers, however many are there already."""
    async with opened(PATIENT) as (_, host, guests):
        loop = asyncio.get_running_loop()
        early = [await guests.come() for _ in range(500)]
        late = await guests.come()
        # No turn of the loop passes between these.
        for connection in early:
            connection.send(b"hal")
        late.send(b"friend\n")
        assert await loop.sock_recv(late, 1000) == b"127.0.0.1\n"
        assert host.served < 100


async def test_silent_visitors_are_not_served_and_stay() -> None:
    limits = DoorLimits(DEADLINE, waiting=4, waiting_per_address=3, connections=1000)
    async with opened(limits) as (door, host, guests):
        silent = [await guests.come() for _ in range(50)]
        friend = await guests.come()
        assert await say(friend, b"friend\n") == b"127.0.0.1\n"
        assert (host.served, len(door.tasks)) == (1, 1)
        for connection in silent:
            assert await say(connection, b"friend\n") == b"127.0.0.1\n"


async def test_silent_visitors_beyond_the_bound_take_the_place_of_the_oldest() -> None:
    async with opened(DoorLimits(DEADLINE, silent=3, connections=1000)) as (_, host, guests):
        begun = monotonic()
        (alone,) = [await guests.come("127.0.0.2")]
        first, second = [await guests.come("127.0.0.3") for _ in range(2)]
        friend = await guests.come()
        await wait_for_end(first)
        assert monotonic() - begun >= SILENT_PATIENCE
        for connection in (alone, second, friend):
            assert await say(connection, b"friend\n") != b""
        assert host.served == 3


async def test_visitor_that_leaves_without_a_word_is_not_served() -> None:
    async with opened(DoorLimits(DEADLINE, connections=1)) as (_, host, guests):
        (await guests.come()).close()
        reset = await guests.come()
        reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        reset.close()
        assert await say(await guests.come(), b"friend\n") == b"127.0.0.1\n"
        assert host.served == 1


async def test_burst_of_friends_is_let_in_by_and_by() -> None:
    """None of them is taken for a stranger because others have come at the same time."""
    async with opened(PATIENT) as (_, host, guests):
        friends = [await guests.come() for _ in range(900)]
        answers = await asyncio.gather(*(say(friend, b"friend\n") for friend in friends))
        assert set(answers) == {b"127.0.0.1\n"}
        assert host.served == 900


async def test_strangers_keep_no_friend_out() -> None:
    limits = DoorLimits(DEADLINE, waiting=20, waiting_per_address=10, connections=30)
    async with opened(limits) as (_, host, guests):
        await halves(guests, host, 100)
        friends = [await guests.come() for _ in range(5)]
        for friend in friends:
            assert await say(friend, b"friend\n") == b"127.0.0.1\n"


async def test_friends_beyond_the_bound_come_in_when_others_leave() -> None:
    async with opened(DoorLimits(DEADLINE, connections=2)) as (_, host, guests):
        first, second = [await guests.come() for _ in range(2)]
        for friend in (first, second):
            assert await say(friend, b"friend\n") == b"127.0.0.1\n"
        third = await guests.come()
        answer = asyncio.create_task(say(third, b"friend\n"))
        assert await say(second, b"?\n") == b"127.0.0.1\n"
        assert (host.served, answer.done()) == (2, False)
        first.close()
        assert await answer == b"127.0.0.1\n"


async def test_strangers_give_their_places_to_friends_at_the_bound() -> None:
    async with opened(DoorLimits(DEADLINE, connections=2)) as (_, _, guests):
        friend, stranger = await guests.come(), await guests.come()
        assert await say(friend, b"friend\n") == b"127.0.0.1\n"
        other = await guests.come()
        assert await say(other, b"friend\n") == b"127.0.0.1\n"
        await wait_for_end(stranger)


async def test_log_has_one_line_for_all_in_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    async with opened(HASTY) as (door, _, guests):
        silent = [await guests.come() for _ in range(5)]
        silent += [await guests.come("127.0.0.2") for _ in range(3)]
        for connection in silent:
            await wait_for_end(connection)
        assert lines(caplog) == ["turned away 1 connection(s) that nobody admitted: 127.0.0.1 (1)"]
        door.close()
    assert lines(caplog)[1:] == [
        "turned away 7 connection(s) that nobody admitted: 127.0.0.1 (4), 127.0.0.2 (3)"
    ]


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


@contextmanager
def no_descriptors() -> Iterator[list[int]]:
    """Leave this process no descriptor; closing those that are handed out frees as many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 10, hard))
    held: list[int] = []
    try:
        while True:
            try:
                held.append(os.dup(0))
            except OSError:
                break
        yield held
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in held:
            os.close(descriptor)


async def test_lack_of_descriptors_is_logged_once_and_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with opened(PATIENT) as (_, host, guests):
        connections = [await guests.come() for _ in range(5)]
        before = await say(connections[0], b"friend\n")
        friend = socket.socket()
        friend.setblocking(False)
        with friend, no_descriptors() as held:
            await asyncio.get_running_loop().sock_connect(friend, guests.name)
            answer = asyncio.create_task(say(friend, b"friend\n"))
            await until(lambda: bool(lines(caplog)))
            assert await say(connections[0], b"?\n") == before
            assert (host.served, answer.done()) == (1, False)
            os.close(held.pop())
            assert await answer == before
        assert lines(caplog) == ["accept(2) failed 1 time(s): Too many open files (1)"]


async def test_peer_of_a_unix_socket_is_its_user(tmp_path: Path) -> None:
    async with opened(PATIENT, listen_unix(tmp_path / "s")) as (_, _, guests):
        assert await say(await guests.come(), b"?\n") == f"user {os.geteuid()}\n".encode()


@pytest.mark.parametrize(("host", "seen"), [("::1", "::/64"), ("::ffff:127.0.0.1", "127.0.0.1")])
async def test_peer_of_ipv6_is_its_network(host: str, seen: str) -> None:
    listener = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    async with opened(PATIENT, listener) as (_, _, guests):
        guests.name = (host, guests.name[1])
        assert await say(await guests.come(), b"?\n") == f"{seen}\n".encode()


async def test_closing_lets_strangers_go_and_friends_stay() -> None:
    async with opened(PATIENT) as (door, _, guests):
        friend, stranger = await guests.come(), await guests.come()
        assert await say(friend, b"friend\n") == b"127.0.0.1\n"
        assert await say(stranger, b"?\n") == b"127.0.0.1\n"
        door.close()
        await wait_for_end(stranger)
        with pytest.raises(ConnectionRefusedError):
            await guests.come()
        assert await say(friend, b"?\n") == b"127.0.0.1\n"


async def test_aborting_ends_friends_that_do_not_read() -> None:
    async with opened(PATIENT) as (door, host, guests):
        friend = await guests.come()
        assert await say(friend, b"friend\n") == b"127.0.0.1\n"
        host.visitors[0].writer.write(b"x" * 50_000_000)
        door.close()
        door.abort()
        await until(lambda: not door.tasks)


async def test_server_that_fails_is_logged_and_its_connection_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with opened(PATIENT) as (door, _, guests):
        assert await say(await guests.come(), b"fail\n") == b""
        assert not door.tasks
    assert lines(caplog) == ["the server of a connection failed"]


async def test_admission_after_the_end_changes_nothing() -> None:
    async with opened(DoorLimits(0.2, connections=1)) as (door, host, guests):
        (stranger,) = await halves(guests, host, 1)
        await wait_for_end(stranger)
        await until(lambda: not door.tasks)
        host.visitors[0].admit()
        assert await say(await guests.come(), b"friend\n") == b"127.0.0.1\n"


@pytest.fixture
def certified(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The settings of a server and of a client that trusts it."""
    certificate = make_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert, certificate.key)
    return context, certificate.client()


async def test_handshake_is_part_of_the_deadline(
    certified: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    async with opened(HASTY, context=certified[0]) as (door, host, guests):
        silent = await guests.come()
        halfway = await guests.come()
        await asyncio.get_running_loop().sock_sendall(halfway, b"\x16\x03\x01\x02\x00\x01")
        await wait_for_end(silent)
        await wait_for_end(halfway)
        await until(lambda: not door.tasks)
        assert host.served == 0


async def test_who_speaks_no_tls_leaves_without_a_word_in_the_log(
    certified: tuple[ssl.SSLContext, ssl.SSLContext], caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(PATIENT, context=certified[0]) as (door, host, guests):
        stranger = await guests.come()
        await asyncio.get_running_loop().sock_sendall(stranger, b"GET / HTTP/1.1\r\n\r\n")
        await wait_for_end(stranger)
        await until(lambda: not door.tasks)
        assert host.served == 0
    assert lines(caplog) == []


async def test_friend_comes_in_by_tls(
    certified: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    async with opened(HASTY, context=certified[0]) as (_, _, guests):
        stranger = await guests.come()
        plain = await guests.come()
        reader, writer = await asyncio.open_connection(
            sock=plain, ssl=certified[1], server_hostname="127.0.0.1"
        )
        writer.write(b"friend\n")
        assert await reader.readline() == b"127.0.0.1\n"
        await wait_for_end(stranger)
        writer.write(b"?\n")
        assert await reader.readline() == b"127.0.0.1\n"
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(
    ("descriptors", "connections"), [(32, 8), (128, 64), (1024, 896), (65536, 57344)]
)
def test_descriptors_are_kept_back(descriptors: int, connections: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(descriptors, hard), hard))
        expected = connections if descriptors <= hard else hard - hard // 8
        assert connection_limit() == expected
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
