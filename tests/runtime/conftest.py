"""Fixtures for the tests of the runtime."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.runtime.serving import Server, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A runtime on TCP that the tests of a module share."""
    with serving(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """A runtime on a Unix socket that one test has to itself."""
    with serving(tmp_path, unix=True) as running:
        yield running


@pytest.fixture
async def session(server: Server) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of the shared runtime."""
    async with server.session() as client:
        yield client
