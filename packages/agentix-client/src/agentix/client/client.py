"""RuntimeClient: calls functions, runs commands and moves files in one sandbox."""

import asyncio
from collections.abc import AsyncIterable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Literal, ParamSpec, Self, TypeVar, overload

from aiohttp import ClientResponse
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from agentix.client.answer import decode_answer, not_found
from agentix.client.connection import JSON, Connection
from agentix.client.download import READ_BUFFER, range_header, save
from agentix.client.events import ExecDecoder
from agentix.client.items import ItemDecoder
from agentix.client.stream import Stream
from agentix.client.upload import Upload, size_of
from agentix.errors import ArgumentsError
from agentix.schema import DescribedNamespace
from agentix.stub import Codec, Stub, stub_of
from agentix.trace import current_trace
from agentix.wire import (
    NDJSON,
    SSE,
    ExecExit,
    ExecOutput,
    ExecRequest,
    ExecResult,
    Health,
    MountedNamespace,
    UploadResult,
)

__all__ = ["RuntimeClient"]

P = ParamSpec("P")
T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a call of one stub needs, worked out once."""

    stub: Stub
    """The contract."""
    prefix: bytes
    """The body of a call up to its arguments."""
    items: Codec[list[Any]] | None
    """The codec of several items at once, for a stub that streams."""

    def body(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Puts the body of a call together.

        Raises:
            ArgumentsError: The arguments do not fit the stub.
        """
        encoded = self.stub.encode_arguments(args, kwargs)
        return b"".join((self.prefix, encoded.args, b',"kwargs":', encoded.kwargs, b"}"))


@lru_cache(maxsize=4096)
def plan_of(function: Callable[..., Any]) -> Plan:
    """Works out the plan of a stub; the result is kept for the next call.

    Raises:
        StubError: The function can not be a stub.
    """
    stub = stub_of(function)
    head = to_json({"package": stub.package, "method": stub.method})
    items: Codec[list[Any]] | None = None
    if stub.streams:
        item: Any = stub.result_type
        items = Codec(list[item])
    return Plan(stub, head[:-1] + b',"args":', items)


class NamespaceList(BaseModel):
    """The answer of `GET /namespaces`."""

    namespaces: list[MountedNamespace]


class DescribedList(BaseModel):
    """The answer of `GET /namespaces?schemas=1`."""

    namespaces: list[DescribedNamespace]


class RuntimeClient:
    """A client of the runtime in one sandbox, used as `async with RuntimeClient(url) as client`.

    Any number of calls may be in flight at once, each on a connection of its own. Cancelling a
    call closes its connection, which makes the sandbox cancel it too. No call is ever sent twice.

    All methods that talk to the sandbox raise `SandboxGoneError` where it can not be reached or
    its answer breaks off, and `RequestError` where the runtime refuses the request; with status
    401 where the token is missing or wrong.

    Args:
        url: Where the runtime listens: `http://host:port` or `unix:/path/of/the/socket`.
        token: The sandbox's bearer token, where it has one.
        connect_timeout: Seconds for opening a connection. Calls themselves have no time limit:
            put one around them with `asyncio.timeout`.

    Raises:
        UsageError: The URL or the token can not be used.
    """

    def __init__(
        self, url: str, *, token: str | None = None, connect_timeout: float = 10.0
    ) -> None:
        self._connection = Connection(url, token=token, connect_timeout=connect_timeout)

    @property
    def url(self) -> str:
        """Where the runtime listens."""
        return self._connection.url

    async def __aenter__(self) -> Self:
        await self._connection.open()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._connection.close()

    @overload
    def remote(  # type: ignore[overload-overlap]  # the first match is the one that is meant
        self, fn: Callable[P, AsyncIterable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Stream[T]: ...

    @overload
    def remote(
        self, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...

    @overload
    def remote(
        self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...

    def remote(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Stream[Any] | Coroutine[Any, Any, Any]:
        """Calls a stub's function in the sandbox (protocol: Caller side, Streaming returns).

        The arguments are checked and encoded before this returns; the call is sent when the
        result is awaited, or its first item asked for. The context in `agentix.trace` travels on.

        Args:
            fn: The stub, a function of a namespace package; its signature is the contract.
            args: Its positional arguments.
            kwargs: Its keyword arguments.

        Returns:
            For a stub that returns an `AsyncIterator`, `AsyncGenerator` or `AsyncIterable`, a
            stream of its items; for any other, an awaitable of its result.

        Raises:
            StubError: `fn` can not be a stub.
            ArgumentsError: The arguments do not fit the stub's signature or its types.
            UsageError: The client was not entered.
            NamespaceNotFoundError: The sandbox has no such namespace.
            RemoteCallError: The call failed in the sandbox.
            SerializationError: The result is not of the stub's type.
        """
        plan = plan_of(fn)
        body = plan.body(args, kwargs)
        self._connection.session()
        if plan.items is None:
            return self._call(plan.stub, body)
        decoder: ItemDecoder[Any] = ItemDecoder(self._connection, plan.stub, plan.items)
        return Stream(self._connection, lambda: self._open(plan.stub, body), decoder)

    async def _call(self, stub: Stub, body: bytes) -> Any:
        response = await self._post_call(body)
        content = await self._connection.read(response)
        return decode_answer(self._connection, stub, content)

    async def _open(self, stub: Stub, body: bytes) -> ClientResponse:
        """Sends the call of a stub that streams, and gives the answer once it does stream."""
        response = await self._post_call(body)
        if response.content_type == NDJSON:
            return response
        content = await self._connection.read(response)
        decode_answer(self._connection, stub, content)
        raise self._connection.nonsense(content)

    async def _post_call(self, body: bytes) -> ClientResponse:
        trace = current_trace.get()
        headers = JSON if trace is None else JSON | trace.headers()
        response = await self._connection.request("POST", "_remote", body=body, headers=headers)
        if response.status == 404:
            raise not_found(self._connection, await self._connection.read_refusal(response))
        if response.status != 200:
            await self._connection.expect(response, 200)
        return response

    async def run(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        paths_from: Sequence[str] = (),
        max_output: int | None = None,
    ) -> ExecResult:
        """Runs a shell command in the sandbox and waits for its end (protocol: Runtime built-ins).

        A command that fails or runs out of time is a result, not an error.

        Args:
            command: What the sandbox's `sh -c` runs.
            cwd: The working directory; the sandbox's own, which is the task image's `WORKDIR` in a
                container and the upload root in a local sandbox, where it is `None`.
            env: Variables on top of the sandbox's own.
            timeout: Seconds until the command and its children are stopped; `None` for no limit.
            paths_from: Packages whose `entry/bin` goes first on PATH; `["*"]` means all.
            max_output: Bytes kept of each of stdout and stderr; `None` for the runtime's own cap.

        Returns:
            How it ended and what it printed.

        Raises:
            ArgumentsError: An argument has no meaning, such as a negative timeout.
            RequestError: The runtime refused, for instance an unknown package in `paths_from`.
        """
        body = _exec_body(command, cwd, env, timeout, paths_from, max_output)
        answer = await self._connection.fetch("POST", "exec", body=body, headers=JSON)
        return self._model(ExecResult, answer)

    def run_stream(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        paths_from: Sequence[str] = (),
        max_output: int | None = None,
    ) -> Stream[ExecOutput | ExecExit]:
        """Runs a shell command and gives its output as it comes, and last how it ended.

        Closing the stream before its end stops the command and its children.

        Args:
            command: What the sandbox's `sh -c` runs.
            cwd: As for `run`.
            env: As for `run`.
            timeout: As for `run`.
            paths_from: As for `run`.
            max_output: As for `run`.

        Returns:
            Pieces of output, then exactly one `ExecExit`.

        Raises:
            ArgumentsError: An argument has no meaning, such as a negative timeout.
            RequestError: The runtime refused, for instance an unknown package in `paths_from`.
            RemoteCallError: The runtime could not run the command.
        """
        body = _exec_body(command, cwd, env, timeout, paths_from, max_output)
        self._connection.session()
        return Stream(
            self._connection, lambda: self._open_events(body), ExecDecoder(self._connection)
        )

    async def _open_events(self, body: bytes) -> ClientResponse:
        headers = JSON | {"Accept": SSE}
        response = await self._connection.request("POST", "exec", body=body, headers=headers)
        await self._connection.expect(response, 200)
        if response.content_type != SSE:
            raise self._connection.nonsense(await self._connection.read(response))
        return response

    async def upload(
        self, source: Path | bytes | BinaryIO, path: str, *, mode: int | None = None
    ) -> UploadResult:
        """Writes a file in the sandbox; one that is there already is replaced as a whole.

        Args:
            source: A local file, the content itself, or a binary file that is read to its end.
            path: Where it goes, relative to the upload root or absolute below it.
            mode: The file's permission bits, such as `0o755`; the runtime's default where `None`.

        Returns:
            Where the file is now, and its size in bytes.

        Raises:
            OSError: The source can not be read.
            RequestError: The runtime refused, for instance a path outside of the upload root.
        """
        if not isinstance(source, Path):
            return await self._upload(source, path, mode)
        file = await asyncio.to_thread(source.open, "rb")
        try:
            return await self._upload(file, path, mode)
        finally:
            file.close()

    async def _upload(self, source: bytes | BinaryIO, path: str, mode: int | None) -> UploadResult:
        body = Upload(source, size_of(source), path, mode)
        try:
            answer = await self._connection.fetch("POST", "upload", body=body)
        except Exception:
            if body.failure is not None:
                raise body.failure from None
            raise
        return self._model(UploadResult, answer)

    async def download(
        self, path: str, target: Path, *, start: int = 0, length: int | None = None
    ) -> int:
        """Copies a file of the sandbox, or a part of it, to a local file.

        The local file is replaced once all has come; on any error it is as it was before.

        Args:
            path: The file in the sandbox, relative to the upload root or absolute below it.
            target: The local file.
            start: The first byte.
            length: How many bytes at most; to the end of the file where it is `None`.

        Returns:
            The number of bytes written.

        Raises:
            OSError: The target can not be written.
            RequestError: The runtime refused, for instance because there is no such file.
        """
        response = await self._open_file(path, start, length)
        return await save(self._connection, response, target)

    async def read_file(self, path: str, *, start: int = 0, length: int | None = None) -> bytes:
        """Gives the content of a file of the sandbox, or of a part of it.

        Args:
            path: As for `download`.
            start: As for `download`.
            length: As for `download`.

        Raises:
            RequestError: The runtime refused, for instance because there is no such file.
        """
        return await self._connection.read(await self._open_file(path, start, length))

    async def _open_file(self, path: str, start: int, length: int | None) -> ClientResponse:
        headers = range_header(start, length)
        response = await self._connection.request(
            "GET", "download", query={"path": path}, headers=headers, read_buffer=READ_BUFFER
        )
        await self._connection.expect(response, 206 if headers else 200)
        if response.content_length is None:
            response.close()
            raise self._connection.gone("it sent a file without its length")
        return response

    @overload
    async def namespaces(self, *, schemas: Literal[False] = False) -> list[MountedNamespace]: ...

    @overload
    async def namespaces(self, *, schemas: Literal[True]) -> list[DescribedNamespace]: ...

    async def namespaces(
        self, *, schemas: bool = False
    ) -> list[MountedNamespace] | list[DescribedNamespace]:
        """Lists the namespaces that are mounted in the sandbox (protocol: GET /namespaces).

        Args:
            schemas: Whether to import each of them, and to describe its functions in JSON Schema.

        Returns:
            One entry a namespace; a `DescribedNamespace` where schemas were asked for.
        """
        if not schemas:
            answer = await self._connection.fetch("GET", "namespaces")
            return self._model(NamespaceList, answer).namespaces
        answer = await self._connection.fetch("GET", "namespaces", query={"schemas": "1"})
        return self._model(DescribedList, answer).namespaces

    async def health(self) -> Health:
        """Asks whether the runtime serves; it needs no token."""
        return self._model(Health, await self._connection.fetch("GET", "health"))

    def _model(self, model: type[M], body: bytes) -> M:
        try:
            return model.model_validate_json(body)
        except ValidationError as error:
            raise self._connection.nonsense(body) from error


def _exec_body(
    command: str,
    cwd: str | None,
    env: Mapping[str, str] | None,
    timeout: float | None,
    paths_from: Sequence[str],
    max_output: int | None,
) -> bytes:
    try:
        request = ExecRequest(
            command=command,
            cwd=cwd,
            env=dict(env or {}),
            timeout=timeout,
            paths_from=list(paths_from),
            max_output=max_output,
        )
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        why = "; ".join(f"{'.'.join(map(str, it['loc']))}: {it['msg']}" for it in problems)
        raise ArgumentsError(f"the command can not be run: {why}") from error
    return request.model_dump_json(exclude_defaults=True).encode()
