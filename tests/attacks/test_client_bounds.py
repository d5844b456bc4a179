"""A hostile runtime: whatever it sends without end or measure, its client stays small."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

KIBIBYTE = 1024
MEBIBYTE = 1024 * KIBIBYTE
GIBIBYTE = 1024 * MEBIBYTE
TEBIBYTE = 1024 * GIBIBYTE

MARGIN = 200 * MEBIBYTE
"""Bytes of memory that a client may take beyond the cap in force."""

ENOUGH = 512 * MEBIBYTE
"""Bytes after which the hostile runtime ends what would otherwise have no end."""

DEADLINE = 60.0
"""Seconds after which a client has not noticed."""

RESULT = 32 * MEBIBYTE
LIST = RESULT // 4
ITEM = 16 * MEBIBYTE
FILE = 64 * MEBIBYTE
DOWNLOAD = 16 * GIBIBYTE
OUTPUT = 120 * MEBIBYTE + 64 * KIBIBYTE
SMALL = 64 * KIBIBYTE

JSON = "application/json"
NDJSON = "application/x-ndjson"
SSE = "text/event-stream"
OCTETS = "application/octet-stream"

BLOCK = b"x" * 64 * KIBIBYTE
VALUE = b'{"ok":true,"value":'
ERROR = b'{"type":"E","message":"'
FACE = "\N{GRINNING FACE}".encode()

Play = Callable[[], Iterable[bytes]]
"""What the runtime answers to every request, piece by piece."""


class HostileRuntime:
    """A runtime that answers all requests alike, until the client has had enough of it."""

    def __init__(self, play: Play) -> None:
        self.url = ""
        self.sent = 0
        self.ended = asyncio.Event()
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self._play = play

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            for piece in self._play():
                writer.write(piece)
                await writer.drain()
                self.sent += len(piece)
                await self.goes_on.wait()
                if self.sent > ENOUGH:
                    break
            else:
                await reader.read()
        writer.close()
        self.ended.set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self.answer, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            yield


def head(*fields: str, status: int = 200, media_type: str = JSON) -> bytes:
    lines = (f"HTTP/1.1 {status} Status", f"Content-Type: {media_type}", *fields, "", "")
    return "\r\n".join(lines).encode()


CHUNKED = head("Transfer-Encoding: chunked")


def chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def endless(
    start: bytes, piece: bytes = BLOCK, *, status: int = 200, media_type: str = JSON
) -> Play:
    """Return an answer that begins in some way and then has no end."""
    begin = head("Transfer-Encoding: chunked", status=status, media_type=media_type)
    return lambda: chain([begin, chunk(start)], repeat(chunk(piece)))


def framing(start: bytes, piece: bytes = BLOCK) -> Play:
    """Return what has no end outside of a body."""
    return lambda: chain([start], repeat(piece))


def whole(body: Callable[[], bytes], *, status: int = 200, media_type: str = JSON) -> Play:
    """Return an answer that is complete; its body is made when it is asked for."""

    def play() -> Iterable[bytes]:
        content = body()
        return [
            head(f"Content-Length: {len(content)}", status=status, media_type=media_type),
            content,
        ]

    return play


def huge(start: bytes = b"", *, status: int = 200, media_type: str = JSON) -> Play:
    """Return the beginning of an answer of a tebibyte."""
    begin = head(f"Content-Length: {TEBIBYTE}", status=status, media_type=media_type)
    return lambda: [begin, start]


def nested(before: bytes, after: bytes, depth: int = 256 * KIBIBYTE) -> Callable[[], bytes]:
    return lambda: before + b"[" * depth + b"]" * depth + after


def filled(before: bytes, piece: bytes, after: bytes, size: int) -> Callable[[], bytes]:
    """Return pieces with commas between them, up to a size."""
    return lambda: before + b",".join(repeat(piece, size // (len(piece) + 1) - 64)) + after


@dataclass(frozen=True)
class Attack:
    """What a runtime sends to a call, and what must come of it."""

    call: str
    play: Play
    error: str
    message: str
    cap: int
    """The cap in force, for the memory."""
    limit: int | None = None
    size: int | None = None
    options: tuple[str, ...] = ()


def too_large(call: str, play: Play, cap: int, remedy: str, *options: str) -> Attack:
    """Return an attack that ends at a cap, which becomes known only by reading."""
    return Attack(call, play, "AnswerTooLargeError", remedy, cap, cap, None, options)


def announced(call: str, play: Play, cap: int, remedy: str) -> Attack:
    """Return an attack with an answer of a tebibyte, which ends before that is read."""
    return Attack(call, play, "AnswerTooLargeError", remedy, SMALL, cap, TEBIBYTE)


def gone(call: str, play: Play, message: str, *options: str, cap: int = SMALL) -> Attack:
    """Return an attack with what is no answer of the protocol."""
    return Attack(call, play, "SandboxGoneError", message, cap, options=options)


def failed(call: str, play: Play, error: str, message: str, cap: int = SMALL) -> Attack:
    """Return an attack with a refusal or a failure, which ends as an honest one does."""
    return Attack(call, play, error, message, cap)


MORE_RESULT = "raise max_result of RuntimeClient"
MORE_ITEM = "raise max_item of RuntimeClient"
MORE_OUTPUT = "pass run a max_output"
MORE_FILE = "pass read_file a larger max_bytes"
MORE_DOWNLOAD = "pass download a larger max_bytes"
NO_MORE = "no runtime of this protocol sends that much"
CUT = "the rest of a very long error was cut"
NOT_JSON = "its answer is not of the protocol (recursion limit exceeded"

ENDLESS = {
    "result": too_large("remote", endless(VALUE + b'"'), RESULT, MORE_RESULT),
    "result of a stream": too_large("stream", endless(VALUE + b'"'), RESULT, MORE_RESULT),
    "result without framing": too_large(
        "remote", framing(head() + VALUE + b'"'), RESULT, MORE_RESULT
    ),
    "result in tiny chunks": too_large(
        "remote", endless(VALUE, b"x"), 256 * KIBIBYTE, MORE_RESULT, "max_result=262144"
    ),
    "item": too_large("stream", endless(b'{"item":"', media_type=NDJSON), ITEM, MORE_ITEM),
    "item after others": too_large(
        "stream", endless(b'{"item":1}\n{"item":2}\n{', media_type=NDJSON), ITEM, MORE_ITEM
    ),
    "name of an event": too_large(
        "run_stream", endless(b"event: ", media_type=SSE), ITEM, MORE_ITEM
    ),
    "data of an event": too_large(
        "run_stream",
        endless(b"event: exit\n", b"data:12\n" * 8192, media_type=SSE),
        ITEM,
        MORE_ITEM,
    ),
    "output": too_large("run", endless(b'{"stdout":"'), OUTPUT, MORE_OUTPUT),
    "output to be short": too_large(
        "run_little", endless(b'{"stdout":"'), 64 * KIBIBYTE + 1200, MORE_OUTPUT
    ),
    "health": too_large("health", endless(b'{"x":"'), SMALL, NO_MORE),
    "upload": too_large("upload", endless(b'{"x":"'), SMALL, NO_MORE),
    "namespaces": too_large("namespaces", endless(b'{"x":"'), LIST, MORE_RESULT),
    "schemas": too_large("schemas", endless(b'{"x":"'), LIST, MORE_RESULT),
    "file": gone("read_file", endless(b"x", media_type=OCTETS), "without its length"),
    "download": gone("download", endless(b"x", media_type=OCTETS), "without its length"),
    "refusal": failed("remote", endless(b"x", status=400), "RequestError", "status 400"),
    "missing namespace": failed(
        "remote", endless(b'{"error":"', status=404), "RequestError", "status 404"
    ),
    "error of the runtime": gone("run", endless(b"x", status=500), "status 500"),
    "output that is no stream": gone("run_stream", endless(b"x"), "not of the protocol"),
    "error of a stream": failed(
        "stream", endless(b'{"error":' + ERROR, media_type=NDJSON), "RemoteCallError", CUT, ITEM
    ),
}
"""Bodies without an end."""

ANNOUNCED = {
    "result": announced("remote", huge(VALUE), RESULT, MORE_RESULT),
    "output": announced("run", huge(), OUTPUT, MORE_OUTPUT),
    "health": announced("health", huge(), SMALL, NO_MORE),
    "upload": announced("upload", huge(), SMALL, NO_MORE),
    "namespaces": announced("namespaces", huge(), LIST, MORE_RESULT),
    "file": announced("read_file", huge(), FILE, MORE_FILE),
    "download": announced("download", huge(), DOWNLOAD, MORE_DOWNLOAD),
    "part of a file": gone("part", huge(status=206), "where 3 were asked for"),
    "refusal": failed("remote", huge(BLOCK * 2, status=413), "RequestError", "status 413"),
    "failure": failed(
        "remote",
        huge(b'{"ok":false,"error":' + ERROR + BLOCK * 8),
        "RemoteCallError",
        "the rest of an error of 1,099,511,627,776 bytes was cut",
    ),
}
"""Answers of a tebibyte, which say so."""

FRAMING = {
    "status line": gone("remote", framing(b"HTTP/1.1 200 "), "Got more than 8190 bytes"),
    "name of a field": gone("remote", framing(b"HTTP/1.1 200 OK\r\n"), "Got more than 8190 bytes"),
    "field": gone("remote", framing(b"HTTP/1.1 200 OK\r\na: "), "Got more than 8190 bytes"),
    "fields": gone(
        "remote", framing(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n" * 999), "Too many headers"
    ),
    "answers with status 100": gone(
        "remote", framing(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 4096), "disconnected"
    ),
    "extension of a chunk": gone(
        "namespaces", framing(CHUNKED + b"5;"), "does not answer", "answer_timeout=0.2"
    ),
    "trailer": gone("health", framing(CHUNKED + b"0\r\na: "), "broke off"),
    "trailers": gone("health", framing(CHUNKED + b"0\r\n", b"a: b\r\n" * 999), "broke off"),
    "two lengths": gone(
        "read_file",
        framing(head("Content-Length: 5", "Transfer-Encoding: chunked"), chunk(BLOCK)),
        "Content-Length",
    ),
}
"""What is around bodies, without an end."""

DECODED = {
    "nested result": gone("remote", whole(nested(VALUE, b"}")), NOT_JSON),
    "nested answer": gone("remote", whole(nested(b"", b"")), NOT_JSON),
    "nested item": gone("stream", whole(nested(b'{"item":', b"}\n"), media_type=NDJSON), NOT_JSON),
    "nested event": gone(
        "run_stream",
        whole(nested(b"event: exit\ndata: ", b"\n\n"), media_type=SSE),
        NOT_JSON,
    ),
    "nested output": gone("run", whole(nested(b"", b"")), "not of the protocol"),
    "nested namespaces": gone("namespaces", whole(nested(b"", b"")), "not of the protocol"),
    "wrong namespaces": gone(
        "namespaces",
        whole(filled(b'{"namespaces":[', b"1", b"]}", 600_000)),
        "not of the protocol",
    ),
    "nested refusal": failed(
        "remote", whole(nested(b"", b"", 30_000), status=422), "RequestError", "status 422"
    ),
}
"""Bodies that are far from what was asked for."""

LISTS, DICTS, DIGITS = b"[]", b"{}", b"1"

HEAVY = {
    "lists": ("remote", whole(filled(VALUE + b"[", LISTS, b"]}", RESULT)), RESULT),
    "dicts": ("remote", whole(filled(VALUE + b"[", DICTS, b"]}", RESULT)), RESULT),
    "models": ("points", whole(filled(VALUE + b"[", DICTS, b"]}", RESULT)), RESULT),
    "digits": ("numbers", whole(filled(VALUE + b"[", DIGITS, b"]}", RESULT)), RESULT),
    "spaced digits": (
        "numbers",
        whole(filled(b' {"ok":true,"value":[', DIGITS, b"]}", RESULT)),
        RESULT,
    ),
    "characters": ("remote", whole(lambda: VALUE + b'"' + FACE + BLOCK * 500 + b'"}'), RESULT),
    "escapes": ("remote", whole(lambda: VALUE + b'"\\uD83D\\uDE00' + BLOCK * 500 + b'"}'), RESULT),
    "item": ("stream", whole(filled(b'{"item":[', LISTS, b"]}\n", ITEM), media_type=NDJSON), ITEM),
    "namespaces": ("namespaces", whole(filled(b'{"namespaces":[', LISTS, b"]}", LIST)), LIST),
}
"""Bodies within their caps that take many times their size in memory."""


async def call(attack: Attack, runtime: HostileRuntime) -> dict[str, Any]:
    """Let a client in a process of its own make a call, and return what came of it."""
    client = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.attacks.client_program",
        runtime.url,
        attack.call,
        *attack.options,
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(DEADLINE):
            if attack.call == "idle":
                assert client.stdout is not None
                assert await client.stdout.readline() == b"idle\n"
                runtime.goes_on.set()
                await runtime.ended.wait()
            output, _ = await client.communicate(b"\n")
    finally:
        with suppress(ProcessLookupError):
            client.kill()
        await client.wait()
    report: dict[str, Any] = json.loads(output)
    return report


def check(attack: Attack, report: dict[str, Any]) -> None:
    assert report["error"] == attack.error, report
    assert attack.message in report["message"]
    assert report["limit"] == attack.limit
    assert report["peak"] < attack.cap + MARGIN, report["peak"] / MEBIBYTE


@pytest.mark.parametrize("name", ENDLESS)
async def test_body_without_an_end_is_cut_at_its_cap(name: str) -> None:
    attack = ENDLESS[name]
    runtime = HostileRuntime(attack.play)
    async with runtime.serving():
        report = await call(attack, runtime)
    check(attack, report)
    assert report["size"] is None
    assert runtime.sent < ENOUGH


@pytest.mark.parametrize("name", ANNOUNCED)
async def test_length_is_told_before_the_body_is_read(name: str) -> None:
    attack = ANNOUNCED[name]
    runtime = HostileRuntime(attack.play)
    async with runtime.serving():
        report = await call(attack, runtime)
    check(attack, report)
    assert report["size"] == attack.size


@pytest.mark.parametrize("name", FRAMING)
async def test_framing_without_an_end_is_bounded(name: str) -> None:
    attack = FRAMING[name]
    runtime = HostileRuntime(attack.play)
    async with runtime.serving():
        report = await call(attack, runtime)
    check(attack, report)


@pytest.mark.parametrize("name", DECODED)
async def test_body_that_is_far_from_an_answer_is_an_error(name: str) -> None:
    attack = DECODED[name]
    runtime = HostileRuntime(attack.play)
    async with runtime.serving():
        check(attack, await call(attack, runtime))


@pytest.mark.parametrize("name", HEAVY)
async def test_body_is_weighed_before_it_is_decoded(name: str) -> None:
    method, play, cap = HEAVY[name]
    remedy = MORE_ITEM if cap == ITEM else MORE_RESULT
    attack = Attack(method, play, "AnswerTooLargeError", remedy, cap, 3 * cap)
    runtime = HostileRuntime(play)
    async with runtime.serving():
        report = await call(attack, runtime)
    check(attack, report)
    assert report["size"] > 3 * cap


async def test_answers_that_nobody_asked_for_close_an_idle_connection() -> None:
    healthy = head("Content-Length: 15") + b'{"status":"ok"}'
    unasked = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n" * 4096

    def play() -> Iterable[bytes]:
        yield healthy
        yield from repeat(unasked)

    attack = Attack("idle", play, "NoneType", "None", SMALL)
    runtime = HostileRuntime(play)
    runtime.goes_on.clear()
    async with runtime.serving():
        check(attack, await call(attack, runtime))
    assert runtime.sent < ENOUGH


async def test_huge_items_are_read_in_linear_time_where_they_are_allowed() -> None:
    size = 100_000_000
    line = b'{"item":"' + b"x" * size + b'"}\n'

    def play() -> Iterable[bytes]:
        yield head("Transfer-Encoding: chunked", media_type=NDJSON)
        for _ in range(3):
            yield from (chunk(line[at : at + 65536]) for at in range(0, len(line), 65536))
        yield chunk(b'{"end":true}\n') + b"0\r\n\r\n"

    attack = Attack("stream", play, "NoneType", "None", 3 * size, options=("max_item=100000100",))
    runtime = HostileRuntime(play)
    async with runtime.serving():
        report = await call(attack, runtime)
    check(attack, report)
    assert report["seconds"] < 5.0  # of the processor; on an idle machine it is less than one
