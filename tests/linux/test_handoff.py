"""Handing a listening socket over."""

import asyncio
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentix.linux.control import SOCKET, listen_unix
from agentix.linux.handoff import INNER_SOCKET, Handoff, receive_listener

DEADLINE = 10.0


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="agentix-root-") as directory:
        yield Path(directory)


@pytest.fixture
def listener(root: Path) -> Iterator[socket.socket]:
    with listen_unix(root / "socket") as listener:
        yield listener


@pytest.fixture
def handoff(root: Path, listener: socket.socket) -> Iterator[Handoff]:
    handoff = Handoff(root / "handoff", listener)
    yield handoff
    handoff.close()


async def test_listening_socket_is_handed_over_once(root: Path, handoff: Handoff) -> None:
    meeting = handoff.directory / SOCKET
    serving = asyncio.create_task(handoff.serve())
    with await asyncio.to_thread(receive_listener, meeting) as received:
        await asyncio.wait_for(serving, DEADLINE)
        assert handoff.done
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(root / "socket"))
            received.accept()[0].close()
        assert [path.name for path in handoff.directory.iterdir()] == [INNER_SOCKET]
        with pytest.raises(ConnectionError, match="no listening socket came from"):
            receive_listener(meeting)


async def test_listening_socket_ends_with_the_server(
    root: Path, handoff: Handoff, listener: socket.socket
) -> None:
    serving = asyncio.create_task(handoff.serve())
    received = await asyncio.to_thread(receive_listener, handoff.directory / SOCKET)
    await asyncio.wait_for(serving, DEADLINE)
    received.close()
    assert listener.fileno() == -1
    with socket.socket(socket.AF_UNIX) as client, pytest.raises(ConnectionRefusedError):
        client.connect(str(root / "socket"))


async def test_nobody_comes(handoff: Handoff, listener: socket.socket) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(handoff.serve(), 0.1)
    assert (handoff.done, listener.fileno() >= 0) == (False, True)
    handoff.close()
    left = [path.name for path in handoff.directory.iterdir()]
    assert (left, listener.fileno()) == ([INNER_SOCKET], -1)


async def test_server_that_leaves_gets_nothing(handoff: Handoff) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(str(handoff.directory / SOCKET))
    with pytest.raises(BrokenPipeError):
        await asyncio.wait_for(handoff.serve(), DEADLINE)
    assert not handoff.done


async def test_server_waits_only_so_long(handoff: Handoff, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentix.linux.handoff.RECEIVE_TIMEOUT", 0.1)
    with pytest.raises(ConnectionError, match=r"came from .*: timed out"):
        receive_listener(handoff.directory / SOCKET)


async def test_server_whose_maker_leaves_is_told(handoff: Handoff) -> None:
    receiving = asyncio.create_task(asyncio.to_thread(receive_listener, handoff.directory / SOCKET))
    server, _ = await asyncio.get_running_loop().sock_accept(handoff._meeting)
    server.close()
    with pytest.raises(ConnectionError, match="it closed"):
        await asyncio.wait_for(receiving, DEADLINE)


def test_server_may_be_another_user_and_change_nothing(handoff: Handoff) -> None:
    assert handoff.directory.stat().st_mode & 0o777 == 0o755
    assert (handoff.directory / SOCKET).stat().st_mode & 0o777 == 0o666


def test_handoff_that_cannot_be_made_closes_the_listening_socket(
    root: Path, listener: socket.socket
) -> None:
    (root / "handoff").touch()
    with pytest.raises(FileExistsError):
        Handoff(root / "handoff", listener)
    assert listener.fileno() == -1
