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

from agentix.client.answer import FAILURE, cut_failure, decode_answer, not_found
from agentix.client.bounds import (
    MAX_DOWNLOAD,
    MAX_FILE,
    MAX_ITEM,
    MAX_RESULT,
    SMALL_ANSWER,
    Cap,
    cap_of,
    cap_of_output,
)
from agentix.client.connection import GRACE, JSON, Connection
from agentix.client.download import READ_BUFFER, range_header, save
from agentix.client.events import ExecDecoder
from agentix.client.items import ItemDecoder
from agentix.client.stream import FAILURE_START, Stream
from agentix.client.upload import Upload, size_of
from agentix.errors import ArgumentsError, UsageError
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
    """Precomputed encoding of the calls of one stub."""

    stub: Stub
    """The contract."""
    prefix: bytes
    """The body of a call up to its arguments."""
    items: Codec[list[Any]] | None
    """The codec of several items at once, for a stub that streams."""

    def body(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Return the body of a call.

        Raises:
            ArgumentsError: The arguments do not fit the stub.
        """
        encoded = self.stub.encode_arguments(args, kwargs)
        return b"".join((self.prefix, encoded.args, b',"kwargs":', encoded.kwargs, b"}"))


@lru_cache(maxsize=4096)
def plan_of(function: Callable[..., Any]) -> Plan:
    """Return the plan of a stub, which is kept for the next call.

    Raises:
        StubError: The function cannot be a stub.
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


SMALL = cap_of("the answer", SMALL_ANSWER, "no runtime of this protocol sends that much")


class RuntimeClient:
    """A client of the runtime in one sandbox, used as `async with RuntimeClient(url) as client`.

    Any number of calls may be in flight at once, each on a connection of its own. Cancelling a
    call closes its connection, which makes the sandbox cancel it too. Leaving the block ends what
    is still in flight with `SandboxGoneError`. No call is ever sent twice.

    All methods that talk to the sandbox raise `SandboxGoneError` where it cannot be reached or
    its answer breaks off, `RequestError` where the runtime refuses the request, with status 401
    where the token is missing or wrong, and `AnswerTooLargeError` where it sends more than is
    taken.

    A call, a command and a stream take as long as they run: put a limit around them with
    `asyncio.timeout`. Everything else ends with `SandboxGoneError` when the runtime stays silent.

    Args:
        url: Where the runtime listens: `http://host:port` or `unix:/path/of/the/socket`.
        token: The sandbox's bearer token, where it has one.
        connect_timeout: Seconds for opening a connection.
        answer_timeout: Seconds without a byte after which a runtime that runs no call counts as
            gone: while it is asked for its namespaces or a file, while it takes an upload, and
            once an answer has begun.
        max_result: Bytes that the result of a call may have, and four times those that the list
            of namespaces may have. Decoded, either may take three times its bytes in memory.
        max_item: Bytes that one item of a stream may have, or one event of a command. Decoded, it
            may take three times that in memory.

    Raises:
        UsageError: The URL or the token cannot be used, or a limit is not positive.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        connect_timeout: float = 10.0,
        answer_timeout: float = 30.0,
        max_result: int = MAX_RESULT,
        max_item: int = MAX_ITEM,
    ) -> None:
        if min(max_result, max_item) < 1:
            raise UsageError(f"max_result {max_result} and max_item {max_item} must be more than 0")
        self._connection = Connection(
            url, token=token, connect_timeout=connect_timeout, answer_timeout=answer_timeout
        )
        self._result = cap_of("the result", max_result, "raise max_result of RuntimeClient")
        self._list = cap_of(
            "the list of namespaces",
            max(max_result // 4, SMALL_ANSWER),
            "raise max_result of RuntimeClient, of which it may have a quarter",
        )
        self._item = cap_of("an item", max_item, "raise max_item of RuntimeClient")

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
        """Call a stub's function in the sandbox (protocol: Caller side, Streaming returns).

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
            StubError: `fn` cannot be a stub.
            ArgumentsError: The arguments do not fit the stub's signature or its types.
            UsageError: The client was not entered.
            NamespaceNotFoundError: The sandbox has no such namespace.
            RemoteCallError: The call failed in the sandbox. Of a message beyond 64 Ki characters
                and a traceback beyond 256 Ki the middle is cut out.
            SerializationError: The result is not of the stub's type.
            AnswerTooLargeError: The result is larger than `max_result`, an item than `max_item`.
        """
        plan = plan_of(fn)
        body = plan.body(args, kwargs)
        self._connection.session()
        if plan.items is None:
            return self._call(plan.stub, body)
        decoder: ItemDecoder[Any] = ItemDecoder(self._connection, plan.stub, plan.items, self._item)
        return Stream(self._connection, lambda: self._open(plan.stub, body), decoder, self._item)

    async def _call(self, stub: Stub, body: bytes) -> Any:
        response = await self._post_call(body)
        content = await self._read_result(response)
        return decode_answer(self._connection, stub, content, self._result)

    async def _open(self, stub: Stub, body: bytes) -> ClientResponse:
        """Send the call of a stub that streams, and return the answer once it does stream."""
        response = await self._post_call(body)
        if response.content_type == NDJSON:
            return response
        content = await self._read_result(response)
        decode_answer(self._connection, stub, content, self._result)
        raise self._connection.nonsense(content)

    async def _read_result(self, response: ClientResponse) -> bytes:
        """Read the whole of an answer; of one beyond its cap, why the call failed if it did.

        Raises:
            RemoteCallError: The call failed with a very long error.
            AnswerTooLargeError: The answer is beyond its cap.
        """
        length = response.content_length
        if length is not None and length > self._result.limit:
            start = await self._connection.read_start(
                response, FAILURE_START, prefix=FAILURE, seconds=GRACE
            )
            if (failure := cut_failure(start, length)) is not None:
                raise failure
            self._result.check_size(length)
        return await self._connection.read(response, self._result)

    async def _post_call(self, body: bytes) -> ClientResponse:
        trace = current_trace.get()
        headers = JSON if trace is None else JSON | trace.headers()
        response = await self._connection.request(
            "POST", "_remote", body=body, headers=headers, runs_a_call=True
        )
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
        """Run a shell command in the sandbox and wait for its end (protocol: Runtime built-ins).

        A command that fails or runs out of time is a result, not an error.

        Args:
            command: What the sandbox's `sh -c` runs.
            cwd: The working directory; the sandbox's own, which is the task image's `WORKDIR` in a
                container and the upload root in a local sandbox, where it is `None`.
            env: Variables on top of the sandbox's own.
            timeout: Seconds until the command and its children are stopped; `None` for no limit.
            paths_from: Packages whose `entry/bin` goes first on PATH; `["*"]` means all.
            max_output: Bytes kept of each of stdout and stderr; `None` for the runtime's own cap,
                which is taken for its default of 10 MiB.

        Returns:
            How it ended and what it printed.

        Raises:
            ArgumentsError: An argument has no meaning, such as a negative timeout.
            RequestError: The runtime refused, for instance an unknown package in `paths_from`.
            AnswerTooLargeError: The answer is larger than any with that `max_output`.
        """
        body = _exec_body(command, cwd, env, timeout, paths_from, max_output)
        cap = cap_of_output(max_output)
        answer = await self._connection.fetch(
            "POST", "exec", cap, body=body, headers=JSON, runs_a_call=True
        )
        return self._model(ExecResult, answer, cap)

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
        """Run a shell command and return its output as it comes, and last how it ended.

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
        decoder = ExecDecoder(self._connection, self._item)
        return Stream(self._connection, lambda: self._open_events(body), decoder, self._item)

    async def _open_events(self, body: bytes) -> ClientResponse:
        headers = JSON | {"Accept": SSE}
        response = await self._connection.request(
            "POST", "exec", body=body, headers=headers, runs_a_call=True
        )
        await self._connection.expect(response, 200)
        if response.content_type != SSE:
            raise self._connection.nonsense(await self._connection.read_start(response))
        return response

    async def upload(
        self, source: Path | bytes | BinaryIO, path: str, *, mode: int | None = None
    ) -> UploadResult:
        """Write a file in the sandbox; one that is there already is replaced as a whole.

        The time that reading the source takes is not limited.

        Args:
            source: A local file, the content itself, or a binary file that is read to its end.
            path: Where it goes, relative to the upload root or absolute below it.
            mode: The file's permission bits, such as `0o755`; the runtime's default where `None`.

        Returns:
            Where the file is now, and its size in bytes.

        Raises:
            OSError: The source cannot be read.
            RequestError: The runtime refused, for instance a path outside of the upload root.
            SandboxGoneError: The runtime took nothing, or did not answer, for `answer_timeout`.
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
            answer = await self._connection.fetch("POST", "upload", SMALL, body=body)
        except Exception:
            if body.failure is not None:
                raise body.failure from None
            raise
        return self._model(UploadResult, answer, SMALL)

    async def download(
        self,
        path: str,
        target: Path,
        *,
        start: int = 0,
        length: int | None = None,
        max_bytes: int = MAX_DOWNLOAD,
    ) -> int:
        """Copy a file of the sandbox, or a part of it, to a local file.

        The local file is replaced once all has come; on any error it is as it was before. Blocks
        of zeros take no room in it.

        Args:
            path: The file in the sandbox, relative to the upload root or absolute below it.
            target: The local file.
            start: The first byte.
            length: How many bytes at most; to the end of the file where it is `None`.
            max_bytes: The most bytes that are taken; a file that has more is not begun.

        Returns:
            The number of bytes written.

        Raises:
            OSError: The target cannot be written.
            RequestError: The runtime refused, for instance because there is no such file.
            AnswerTooLargeError: The file, or the part of it, is larger than `max_bytes`.
            SandboxGoneError: The runtime sent nothing for `answer_timeout`.
        """
        cap = cap_of(f"the file {path!r}", max_bytes, "pass download a larger max_bytes")
        response = await self._open_file(path, start, length)
        return await save(self._connection, response, target, cap)

    async def read_file(
        self,
        path: str,
        *,
        start: int = 0,
        length: int | None = None,
        max_bytes: int = MAX_FILE,
    ) -> bytes:
        """Return the content of a file of the sandbox, or of a part of it.

        Args:
            path: As for `download`.
            start: As for `download`.
            length: As for `download`.
            max_bytes: The most bytes that are taken into memory.

        Raises:
            RequestError: The runtime refused, for instance because there is no such file.
            AnswerTooLargeError: The file, or the part of it, is larger than `max_bytes`.
            SandboxGoneError: The runtime sent nothing for `answer_timeout`.
        """
        remedy = "pass read_file a larger max_bytes, or download it"
        cap = cap_of(f"the file {path!r}", max_bytes, remedy)
        return await self._connection.read(await self._open_file(path, start, length), cap)

    async def _open_file(self, path: str, start: int, length: int | None) -> ClientResponse:
        headers = range_header(start, length)
        response = await self._connection.request(
            "GET", "download", query={"path": path}, headers=headers, read_buffer=READ_BUFFER
        )
        await self._connection.expect(response, 206 if headers else 200)
        size = response.content_length
        if size is None or (length is not None and size > length):
            response.close()
            raise self._connection.gone(
                "it sent a file without its length"
                if size is None
                else f"it sent {size:,} bytes of a file where {length:,} were asked for"
            )
        return response

    @overload
    async def namespaces(self, *, schemas: Literal[False] = False) -> list[MountedNamespace]: ...

    @overload
    async def namespaces(self, *, schemas: Literal[True]) -> list[DescribedNamespace]: ...

    async def namespaces(
        self, *, schemas: bool = False
    ) -> list[MountedNamespace] | list[DescribedNamespace]:
        """List the namespaces that are mounted in the sandbox (protocol: GET /namespaces).

        Args:
            schemas: Whether to import each of them, and to describe its functions in JSON Schema.
                That runs their code, and takes as long as a call.

        Returns:
            One entry a namespace; a `DescribedNamespace` where schemas were asked for.
        """
        if not schemas:
            answer = await self._connection.fetch("GET", "namespaces", self._list)
            return self._model(NamespaceList, answer, self._list).namespaces
        answer = await self._connection.fetch(
            "GET", "namespaces", self._list, query={"schemas": "1"}, runs_a_call=True
        )
        return self._model(DescribedList, answer, self._list).namespaces

    async def health(self, *, timeout: float = 10.0) -> Health:
        """Ask whether the runtime serves; it needs no token.

        Args:
            timeout: Seconds for the whole answer.

        Raises:
            SandboxGoneError: It does not, or its answer did not come in time.
        """
        async with self._connection.within(timeout):
            answer = await self._connection.fetch("GET", "health", SMALL)
        return self._model(Health, answer, SMALL)

    def _model(self, model: type[M], body: bytes, cap: Cap) -> M:
        cap.check_decoded(body)
        try:
            return model.model_validate_json(body)
        except ValidationError:
            # What pydantic says is not kept: it takes half a kilobyte for each problem.
            problem = self._connection.nonsense(body)
        raise problem


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
        raise ArgumentsError(f"the command cannot be run: {why}") from error
    return request.model_dump_json(exclude_defaults=True).encode()
