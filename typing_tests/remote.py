# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""What a type checker knows of `RuntimeClient.remote`; checked, never run."""

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, assert_type

from agentix import RuntimeClient as RootRuntimeClient
from agentix.client import RuntimeClient, Stream
from agentix.schema import DescribedNamespace
from agentix.wire import ExecExit, ExecOutput, ExecResult, MountedNamespace, UploadResult

T = TypeVar("T")


@dataclass
class Token:
    """An item."""

    text: str


@dataclass
class Page(Generic[T]):
    """A generic result."""

    rows: list[T]


def run(instruction: str, /, workdir: str = "/testbed", *, retries: int = 0) -> Token:
    """A plain stub."""
    raise NotImplementedError


async def fetch(name: str) -> list[Token]:
    """An asynchronous stub."""
    raise NotImplementedError


def page(number: int) -> Page[int]:
    """A stub with a generic result."""
    raise NotImplementedError


def nothing(*names: str, **options: int) -> None:
    """A stub without a result."""
    raise NotImplementedError


def iterate(limit: int) -> AsyncIterator[Token]:
    """A streaming stub."""
    raise NotImplementedError


def generate(limit: int) -> AsyncGenerator[Token, None]:
    """A streaming stub that says generator."""
    raise NotImplementedError


def each(limit: int) -> AsyncIterable[Token]:
    """A streaming stub that says no more than it must."""
    raise NotImplementedError


def several() -> AsyncIterator[Token | int]:
    """A streaming stub of a union."""
    raise NotImplementedError


def test_root_name(client: RootRuntimeClient) -> None:
    """The name in the root package is the same class."""
    assert_type(client, RuntimeClient)


async def test_unary(client: RuntimeClient) -> None:
    """A stub without a stream is awaited."""
    call: Coroutine[Any, Any, Token] = client.remote(run, "x")
    assert_type(await call, Token)
    assert_type(await client.remote(run, "x", workdir="/", retries=1), Token)
    assert_type(await client.remote(fetch, name="x"), list[Token])
    assert_type(await client.remote(page, 1), Page[int])
    assert_type(await client.remote(nothing, "a", b=1), None)


async def test_streams(client: RuntimeClient) -> None:
    """A streaming stub is iterated, not awaited."""
    assert_type(client.remote(iterate, 3), Stream[Token])
    assert_type(client.remote(generate, limit=3), Stream[Token])
    assert_type(client.remote(each, 3), Stream[Token])
    async for token in client.remote(iterate, 3):
        assert_type(token, Token)
    async for item in client.remote(several):
        assert_type(item, Token | int)


async def test_wrong_calls(client: RuntimeClient) -> None:
    """What the signature does not allow is an error."""
    await client.remote(run)  # type: ignore[call-overload]
    await client.remote(run, 1)  # type: ignore[call-overload]
    await client.remote(run, instruction="x")  # type: ignore[call-overload]
    await client.remote(fetch, "x", "y")  # type: ignore[call-overload]
    client.remote(iterate, "x")  # type: ignore[call-overload]
    await client.remote(iterate, 3)  # type: ignore[misc]
    async for _ in client.remote(fetch, "x"):  # type: ignore[attr-defined]
        pass


async def test_commands_and_files(client: RuntimeClient, target: Path) -> None:
    """The built-ins are typed too."""
    assert_type(await client.run("true"), ExecResult)
    async for event in client.run_stream("true"):
        assert_type(event, ExecOutput | ExecExit)
    assert_type(await client.upload(b"", "x"), UploadResult)
    assert_type(await client.download("x", target), int)
    assert_type(await client.read_file("x"), bytes)


async def test_namespaces(client: RuntimeClient) -> None:
    """What is mounted; its functions where they are asked for."""
    assert_type(await client.namespaces(), list[MountedNamespace])
    assert_type(await client.namespaces(schemas=True), list[DescribedNamespace])
