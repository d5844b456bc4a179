"""Whatever is sent: no 5xx, no hang, and the next request is answered."""

import json
import string
from typing import Any
from urllib.parse import quote_from_bytes

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.runtime.serving import PROBE_PACKAGE, Server

FUZZ = settings(
    max_examples=150,
    deadline=None,  # the sockets of the server's test client have one
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

PATHS = ["/_remote", "/exec", "/upload", "/download", "/namespaces", "/health", "/nowhere", "/"]
TOKEN_CHARACTERS = string.ascii_letters + string.digits + "-_.!#$%&'*+^`|~"

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda children: (
        st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=8), children, max_size=4)
    ),
    max_leaves=12,
)
methods = st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "BREW"])
header_names = st.sampled_from(
    ["Accept", "Authorization", "Content-Type", "Range", "traceparent", "tracestate", "Upgrade"]
) | st.text(TOKEN_CHARACTERS, min_size=1, max_size=12)
header_values = (
    st.sampled_from(
        [
            "text/event-stream",
            "application/json",
            "multipart/form-data",
            "multipart/form-data; boundary=b",
            "bytes=0-",
            "bytes=-0",
            "bytes=9-1,3-",
            "Bearer ",
            "websocket",
            "h2c",
        ]
    )
    | st.text(st.characters(min_codepoint=0x21, max_codepoint=0xFF, exclude_characters="\x7f"))
).map(lambda value: value.encode("latin-1"))
headers = st.lists(st.tuples(header_names.map(str.encode), header_values), max_size=5)
queries = st.binary(max_size=30).map(lambda data: f"path={quote_from_bytes(data)}") | st.just("")


def calls() -> st.SearchStrategy[Any]:
    """Bodies that are nearly calls."""
    return st.fixed_dictionaries(
        {"package": st.just(PROBE_PACKAGE) | json_values, "method": st.just("echo") | json_values},
        optional={
            "args": st.lists(json_values, max_size=3) | json_values,
            "kwargs": st.fixed_dictionaries({"value": json_values}) | json_values,
        },
    )


def commands() -> st.SearchStrategy[Any]:
    """Bodies that are nearly commands, of which none does anything."""
    return st.fixed_dictionaries(
        {"command": st.sampled_from(["true", "exit 3", "echo \x00", ""]) | st.integers()},
        optional={
            "cwd": st.sampled_from(["/", "/nowhere", "", "a\x00b"]) | json_values,
            "env": st.dictionaries(st.text(max_size=4), st.text(max_size=4)) | json_values,
            "timeout": st.sampled_from([5, 0, -1, 1e400]) | json_values,
            "paths_from": st.lists(st.sampled_from(["*", PROBE_PACKAGE, "x"])) | json_values,
            "max_output": st.integers() | json_values,
            "unknown": json_values,
        },
    )


def forms() -> st.SearchStrategy[bytes]:
    """Bodies that are nearly multipart forms with the boundary `b`."""
    lines = st.sampled_from(
        [
            b"--b",
            b"--b--",
            b"",
            b'Content-Disposition: form-data; name="path"',
            b'Content-Disposition: form-data; name="mode"',
            b'Content-Disposition: form-data; name="file"; filename="f"',
            b"Content-Disposition: nonsense",
            b"../outside",
            b"file",
            b"755",
        ]
    ) | st.binary(max_size=20)
    return st.lists(lines, max_size=16).map(b"\r\n".join)


def exchange(
    server: Server, method: str, target: str, fields: list[tuple[bytes, bytes]], body: bytes
) -> bytes:
    """Sends one request on a connection of its own and gives the whole answer."""
    reserved = {b"content-length", b"transfer-encoding", b"connection", b"host", b"expect"}
    kept = [(name, value) for name, value in fields if name.lower() not in reserved]
    if not any(name.lower() == b"content-type" for name, _ in fields):
        kept += [(b"Content-Type", b"application/json")]
    kept += [(b"Host", b"localhost"), (b"Connection", b"close")]
    kept += [(b"Content-Length", b"%d" % len(body))]
    head = b"".join(b"%b: %b\r\n" % field for field in kept)
    return server.exchange(f"{method} {target} HTTP/1.1\r\n".encode() + head + b"\r\n" + body)


def check(server: Server, answer: bytes) -> None:
    """Checks that an answer is none of the server's own failures, and that the server goes on."""
    assert 100 <= int(answer.split(b" ", 2)[1]) < 500, answer
    assert exchange(server, "GET", "/health", [], b"").startswith(b"HTTP/1.1 200 ")


@FUZZ
@given(methods, st.sampled_from(PATHS), queries, headers, st.binary(max_size=200))
def test_any_request_is_answered(
    server: Server,
    method: str,
    path: str,
    query: str,
    fields: list[tuple[bytes, bytes]],
    body: bytes,
) -> None:
    check(server, exchange(server, method, f"{path}?{query}", fields, body))


@FUZZ
@given(calls(), headers)
def test_any_call_is_answered(server: Server, call: Any, fields: list[tuple[bytes, bytes]]) -> None:
    body = json.dumps(call).encode("utf-8", "surrogatepass")
    check(server, exchange(server, "POST", "/_remote", fields, body))


@FUZZ
@given(commands(), headers)
def test_any_command_is_answered(
    server: Server, command: Any, fields: list[tuple[bytes, bytes]]
) -> None:
    body = json.dumps(command).encode("utf-8", "surrogatepass")
    check(server, exchange(server, "POST", "/exec", fields, body))


@FUZZ
@given(forms())
def test_any_form_is_answered(server: Server, form: bytes) -> None:
    fields = [(b"Content-Type", b"multipart/form-data; boundary=b")]
    check(server, exchange(server, "POST", "/upload", fields, form))


@FUZZ
@given(st.binary(min_size=1, max_size=200))
def test_bytes_that_are_no_request_do_no_harm(server: Server, data: bytes) -> None:
    answer = server.exchange(data + b"\r\n\r\n")
    assert not answer or 100 <= int(answer.split(b" ", 2)[1]) < 500
    assert exchange(server, "GET", "/health", [], b"").startswith(b"HTTP/1.1 200 ")
