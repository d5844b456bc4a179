"""The connection: URLs, tokens, and a runtime that can not be reached."""

import pickle
from pathlib import Path

import pytest

from agentix.client import RuntimeClient
from agentix.errors import RequestError, SandboxGoneError, UsageError
from tests.client.raw import Place, answer


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:8000",
        "ftp://localhost",
        "http://",
        "http://user:password@localhost",
        "http://localhost?x=1",
        "http://localhost:port",
        "http://localhost:0",
        "http://localhost:70000",
        "unix:relative",
        "unix://host/path",
    ],
)
def test_url_that_names_no_runtime_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="not the URL of a runtime"):
        RuntimeClient(url)


@pytest.mark.parametrize("token", ["", " x", "x\n", "é", "x\r\nHost: y"])
def test_token_that_is_no_header_is_refused(token: str) -> None:
    with pytest.raises(UsageError, match="token"):
        RuntimeClient("http://localhost", token=token)


async def test_refused_connection_means_gone(unused_tcp_url: str, tmp_path: Path) -> None:
    for url in (unused_tcp_url, f"unix:{tmp_path}/missing", f"unix:/{'x' * 200}"):
        async with RuntimeClient(url) as client:
            with pytest.raises(SandboxGoneError) as caught:
                await client.health()
        assert url in str(caught.value)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


async def test_client_is_entered_once_at_a_time(place: Place) -> None:
    async with place.answering(answer('{"status":"ok","version":"1"}')) as server:
        client = RuntimeClient(server.url)
        assert client.url == server.url
        async with client:
            with pytest.raises(UsageError, match="entered already"):
                await client.__aenter__()
        async with client:
            assert (await client.health()).version == "1"


async def test_redirect_is_not_followed(place: Place) -> None:
    moved = b"HTTP/1.1 307 Moved\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    async with (
        place.answering(moved) as server,
        RuntimeClient(server.url, token="secret") as client,
    ):
        with pytest.raises(SandboxGoneError, match="status 307"):
            await client.health()


async def test_namespaces_keep_additional_fields(place: Place) -> None:
    manifest = (
        '{"abi":1,"name":"x","version":"1.0.0","package":"agentix_namespaces.x","colour":"red"}'
    )
    body = f'{{"namespaces":[{{"manifest":{manifest},"loaded":true}}]}}'
    async with (
        place.answering(answer(body), answer("[]")) as server,
        RuntimeClient(server.url) as client,
    ):
        [namespace] = await client.namespaces()
        with pytest.raises(SandboxGoneError):
            await client.namespaces()
    assert namespace.loaded
    assert (namespace.manifest.model_extra or {})["colour"] == "red"


async def test_refusal_survives_a_process_boundary(place: Place) -> None:
    async with (
        place.answering(answer('{"error":"no token"}', 401)) as server,
        RuntimeClient(server.url) as client,
    ):
        with pytest.raises(RequestError) as caught:
            await client.namespaces()
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.status, copy.message) == (401, "no token")
