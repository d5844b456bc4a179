"""Requests that two readers could read in two ways, or that are larger than any of ours."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.serving import Server, call_body, get, post, receive_until, serving, wait_until

TOKEN = "secret"
BEARER = f"Authorization: Bearer {TOKEN}"
MEBIBYTE = 1024 * 1024


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("requests"), unix=True, token=TOKEN) as running:
        yield running


def answers(server: Server, request: bytes) -> list[bytes]:
    """Return each answer that comes before the connection is closed."""
    return re.split(rb"(?=HTTP/1\.1 \d)", server.exchange(request))[1:]


def refusal(server: Server, request: bytes) -> tuple[int, str]:
    """Return the status and the reason of the only answer, which must end its connection."""
    (answer,) = answers(server, request)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower().split(b"\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


def kept_alive(request: bytes) -> bytes:
    return request.replace(b"Connection: close\r\n", b"")


ECHO = call_body("echo", 1)
SMUGGLED = kept_alive(post("/_remote", ECHO, BEARER))


@pytest.mark.parametrize(
    ("fields", "status", "reason"),
    [
        (
            ("Content-Length: 5", "Transfer-Encoding: chunked"),
            400,
            "a request has both Content-Length and Transfer-Encoding",
        ),
        (
            ("Transfer-Encoding: chunked", "Content-Length: 5"),
            400,
            "a request has both Content-Length and Transfer-Encoding",
        ),
        (("Content-Length: 5", "Content-Length: 6"), 400, "this is no request of HTTP/1.1"),
        (("Content-Length: 5, 6",), 400, "this is no request of HTTP/1.1"),
        (("Content-Length: +5",), 400, "this is no request of HTTP/1.1"),
        (("Transfer-Encoding: gzip, chunked",), 501, "the only Transfer-Encoding is chunked"),
        (("Transfer-Encoding: chunked",) * 2, 501, "the only Transfer-Encoding is chunked"),
        (("Transfer-Encoding : chunked",), 400, "this is no request of HTTP/1.1"),
        (("Transfer-Encoding: chun\rked",), 400, "this is no request of HTTP/1.1"),
        (("Host: localhost",), 400, "this is no request of HTTP/1.1"),
    ],
)
def test_body_of_two_lengths_is_refused_and_nothing_of_it_is_a_request(
    server: Server, fields: tuple[str, ...], status: int, reason: str
) -> None:
    lines = ["POST /_remote HTTP/1.1", "Host: localhost", BEARER, *fields, "", ""]
    request = "\r\n".join(lines).encode() + b"0\r\n\r\n" + SMUGGLED
    assert refusal(server, request) == (status, reason)


def test_chunks_in_http_1_0_are_refused(server: Server) -> None:
    lines = ["POST /_remote HTTP/1.0", BEARER, "Transfer-Encoding: chunked", "", ""]
    request = "\r\n".join(lines).encode() + b"0\r\n\r\n" + SMUGGLED
    assert refusal(server, request) == (400, "a request of HTTP/1.0 has a Transfer-Encoding")


@pytest.mark.parametrize(
    "fields",
    [
        ("X: first\r\n second",),
        ("X: first\r\n\tsecond",),
        ("Authorization: Bearer\r\n secret",),
        (f"{BEARER}\r\n ",),
        ("X: first\n second",),
    ],
)
def test_folded_field_is_refused(server: Server, fields: tuple[str, ...]) -> None:
    request = kept_alive(post("/_remote", ECHO, *fields))
    assert refusal(server, request) == (400, "a header field goes on in a second line")


@pytest.mark.parametrize("other", [BEARER, "authorization: Bearer guessed", "Authorization: x"])
@pytest.mark.parametrize("first", [True, False])
def test_doubled_authorization_is_refused(server: Server, other: str, first: bool) -> None:
    fields = (other, BEARER) if first else (BEARER, other)
    request = kept_alive(post("/_remote", ECHO, *fields))
    assert refusal(server, request) == (400, "a request has more than one Authorization")


def head_of(fields: int) -> bytes:
    """Return a request with so many header fields."""
    return get("/namespaces", BEARER, *(f"X-{number}: y" for number in range(fields - 3)))


def test_hundred_fields_are_taken_and_one_more_is_refused(server: Server) -> None:
    (answer,) = answers(server, head_of(100))
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert refusal(server, head_of(101)) == (
        431,
        "a request has more than 100 header fields",
    )


def test_large_head_is_refused_however_it_comes(server: Server) -> None:
    reason = "the head of a request is larger than 16384 bytes"
    head = kept_alive(get("/namespaces", BEARER, f"X: {'y' * 17_000}"))
    assert refusal(server, head) == (431, reason)
    with server.connect() as connection:
        connection.sendall(head[:100])
        connection.sendall(head[100:17_000])
        assert connection.recv(65536).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("size", [1000, 15_000])
def test_long_query_and_path_are_taken(server: Server, size: int) -> None:
    (answer,) = answers(server, get(f"/namespaces?{'a=b&' * (size // 4)}schemas=0", BEARER))
    assert answer.startswith(b"HTTP/1.1 200 ")
    (answer,) = answers(server, get(f"/download?path={'x' * size}", BEARER))
    assert answer.startswith(b"HTTP/1.1 400 ")
    (answer,) = answers(server, get(f"/{'x' * size}", BEARER))
    assert answer.startswith(b"HTTP/1.1 404 ")


def chunked(*pieces: bytes) -> bytes:
    lines = [
        "POST /_remote HTTP/1.1",
        "Host: localhost",
        "Connection: close",
        BEARER,
        "Transfer-Encoding: chunked",
        "",
        "",
    ]
    return "\r\n".join(lines).encode() + b"".join(pieces)


def test_extensions_and_trailers_mean_nothing(server: Server) -> None:
    pieces = [b'%x;a="b";c\r\n%b\r\n' % (len(ECHO), ECHO), b"0\r\n", b"Authorization: x\r\n\r\n"]
    (answer,) = answers(server, chunked(*pieces))
    assert answer.endswith(b'{"ok":true,"value":1}')


@pytest.mark.parametrize(
    "piece", [b"1;" + b"a" * 20_000, b"0\r\nX: " + b"a" * 20_000], ids=["extension", "trailer"]
)
def test_endless_line_of_a_chunked_body_is_refused(server: Server, piece: bytes) -> None:
    request = chunked(piece).replace(b"Connection: close\r\n", b"")
    assert refusal(server, request) == (431, "the head of a request is larger than 16384 bytes")


def test_body_of_tiny_chunks_is_read(server: Server) -> None:
    call = call_body("echo", "x" * 20_000)
    pieces = [b"1\r\n%c\r\n" % byte for byte in call]
    (answer,) = answers(server, chunked(*pieces, b"0\r\n\r\n"))
    assert answer.endswith(b'xxx"}')


def form(*parts: tuple[str, bytes]) -> bytes:
    """Return a form of parts, each with its header fields."""
    pieces = [f"--limit\r\n{head}\r\n\r\n".encode() + content for head, content in parts]
    return b"\r\n".join([*pieces, b"--limit--\r\n"])


def part(name: str, content: bytes = b"", filename: str | None = None) -> tuple[str, bytes]:
    more = "" if filename is None else f'; filename="{filename}"'
    return f'Content-Disposition: form-data; name="{name}"{more}', content


FILE = part("file", b"content", "name")
KIND = "Content-Type: multipart/form-data; boundary=limit"


def upload(server: Server, body: bytes) -> tuple[int, Any]:
    (answer,) = answers(server, post("/upload", body, KIND, BEARER))
    head, _, content = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(content)


@pytest.fixture
def place(server: Server, tmp_path: Path) -> Iterator[str]:
    """The name of a directory of the test's own, in which nothing may be left."""
    directory = server.workspace / tmp_path.name
    yield directory.name
    assert not directory.exists()


@pytest.mark.parametrize("mode", ["4755", "2755", "1777", "7777", "1000"])
def test_mode_beyond_permissions_is_refused(server: Server, place: str, mode: str) -> None:
    path, bits = part("path", f"{place}/a".encode()), part("mode", mode.encode())
    reason = f"mode={mode!r} has more than permission bits: 777 is the most"
    # The directory on the way was made before the mode was known.
    assert upload(server, form(path, bits, FILE)) == (400, {"error": reason})
    assert list((server.workspace / place).iterdir()) == []
    (server.workspace / place).rmdir()


def test_form_of_many_parts_is_refused(server: Server, place: str) -> None:
    fields = [part(f"field-{number}") for number in range(6)]
    path = part("path", f"{place}/a".encode())
    assert upload(server, form(*fields, path, FILE))[0] == 200
    (server.workspace / place / "a").unlink()
    (server.workspace / place).rmdir()
    refused = upload(server, form(*fields, part("one more"), path, FILE))
    assert refused == (400, {"error": "the form has more than 8 parts"})


@pytest.mark.parametrize("after", [False, True], ids=["before the file", "after it"])
def test_endless_field_is_refused(server: Server, place: str, after: bool) -> None:
    path, field = part("path", b"name"), part("unknown", b"x" * 70_000)
    parts = (path, FILE, field) if after else (path, field, FILE)
    assert upload(server, form(*parts)) == (400, {"error": "the field 'unknown' is too long"})
    assert not (server.workspace / "name").exists()


@pytest.mark.parametrize(
    "fields",
    [
        [f"X: {'y' * 20_000}"],
        [f"{'X' * 20_000}: y"],
        [f"X-{number}: {'y' * 100}" for number in range(100)],
    ],
    ids=["a long value", "a long name", "many"],
)
def test_large_head_of_a_part_is_refused(server: Server, place: str, fields: list[str]) -> None:
    head, content = FILE
    status, body = upload(server, form((f"{head}\r\n" + "\r\n".join(fields), content)))
    assert status == 400
    assert "header" in body["error"].lower() or "head of a part" in body["error"]
    assert not (server.workspace / "name").exists()


def test_endless_head_of_a_part_takes_no_memory(server: Server) -> None:
    before = server.resident_bytes()
    server.reset_peak()
    body = form((f"{FILE[0]}\r\nX: {'y' * 30 * MEBIBYTE}", b""))
    with server.connect() as connection:
        connection.settimeout(30)
        with suppress(BrokenPipeError, ConnectionResetError):  # it is refused meanwhile
            connection.sendall(post("/upload", body, KIND, BEARER))
        assert connection.recv(65536).startswith(b"HTTP/1.1 400 ")
    assert server.peak_bytes() - before < 10 * MEBIBYTE


@pytest.mark.parametrize("method", ["upload", "download"])
def test_path_deeper_than_any_of_ours_is_refused(server: Server, method: str) -> None:
    before = server.descriptors()
    path = "/".join(["d"] * 258)
    directory = server.workspace / "/".join(["d"] * 257)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "d").write_text("content")
    if method == "upload":
        status, body = upload(server, form(part("path", path.encode()), FILE))
    else:
        (answer,) = answers(server, get(f"/download?path={path}", BEARER))
        head, _, content = answer.partition(b"\r\n\r\n")
        status, body = int(head.split()[1]), json.loads(content)
    assert (status, body) == (400, {"error": f"'{path}' lies deeper than 256 directories"})
    assert (directory / "d").read_text() == "content"
    wait_until(lambda: server.descriptors() <= before)


def test_connection_is_read_no_further_after_a_refusal(server: Server) -> None:
    """What comes behind the refused head is not parsed, whatever it is."""
    with server.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: 1\r\n 2\r\n\r\n")
        assert receive_until(connection, b"}").startswith(b"HTTP/1.1 400 ")
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(SMUGGLED)
            assert connection.recv(65536) == b""
