"""Bodies in pieces: the answer counts, also where the connection breaks under them."""

import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentix.client.body import Pieces
from agentix.client.bounds import cap_of
from agentix.client.connection import Connection
from agentix.errors import RequestError
from tests.client.raw import answer


class RefusedBody(Pieces):
    """A body that is refused, and its connection closed, right after its first piece."""

    def __init__(self, listener: socket.socket) -> None:
        super().__init__(listener)
        self._listener = listener

    async def pieces(self) -> AsyncIterator[bytes]:
        yield bytes(1000)
        connection, _ = self._listener.accept()
        with connection:
            connection.sendall(answer('{"error":"too large"}', 413))
        yield bytes(1_000_000)


async def test_refusal_is_read_ahead_of_the_broken_connection(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{tmp_path}/socket")
        listener.listen()
        connection = Connection(
            f"unix:{tmp_path}/socket", token=None, connect_timeout=5, answer_timeout=5
        )
        cap = cap_of("the answer", 1000, "there is none")
        await connection.open()
        try:
            with pytest.raises(RequestError, match="too large"):
                await connection.fetch("POST", "upload", cap, body=RefusedBody(listener))
        finally:
            await connection.close()
