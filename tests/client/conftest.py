"""Fixtures for the tests of the client."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.raw import Place


@pytest.fixture(params=["tcp", "unix"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Where the test's servers listen; each test runs once on TCP, once on a Unix socket."""
    return Place(tmp_path / "socket" if request.param == "unix" else None)


@pytest.fixture
def unused_tcp_url() -> Iterator[str]:
    """A URL where nobody listens, and nobody else can while the test runs."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"
