"""The process `agentix-server`: its settings, its token and its end."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, closing
from importlib.metadata import entry_points
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from agentix.runtime.server import CLEANUP, GRACE
from agentix.version import VERSION
from tests.runtime.serving import (
    DEADLINE,
    Server,
    call_body,
    get,
    inspecting,
    is_alive,
    post,
    receive_until,
    received,
    serving,
    wait_until,
)


def answer_of(server: Server, request: bytes) -> tuple[int, Any]:
    head, _, body = server.exchange(request).partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head
    return int(head.split()[1]), json.loads(body)


def test_health(server: Server) -> None:
    health = {"status": "ok", "version": VERSION, "calls": 0, "abandoned": 0}
    assert answer_of(server, get("/health")) == (200, health)


@pytest.mark.parametrize("path", ["/", "/absent", "/health/", "/exec/", "//health", "/_remote/x"])
def test_unknown_path_is_404(server: Server, path: str) -> None:
    assert answer_of(server, get(path)) == (404, {"error": "Not Found"})


@pytest.mark.parametrize(
    ("path", "method", "allowed"),
    [
        ("/health", "POST", "GET, HEAD"),
        ("/namespaces", "DELETE", "GET, HEAD"),
        ("/download", "PUT", "GET, HEAD"),
        ("/_remote", "GET", "POST"),
        ("/exec", "OPTIONS", "POST"),
        ("/upload", "GET", "POST"),
    ],
)
def test_other_method_is_405(server: Server, path: str, method: str, allowed: str) -> None:
    answer = server.exchange(get(path).replace(b"GET", method.encode(), 1))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 405 ")
    assert sorted(field_of(head, "allow").split(", ")) == sorted(allowed.split(", "))
    assert json.loads(body) == {"error": "Method Not Allowed"}


def field_of(head: bytes, name: str) -> str:
    lines = (line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
    return next(value for key, value in lines if key.lower() == name)


def test_command_is_installed() -> None:
    (script,) = entry_points(group="console_scripts", name="agentix-server")
    assert script.value == "agentix.runtime.__main__:main"


@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
def test_ready_line_names_the_url(tmp_path: Path, unix: bool) -> None:
    with serving(tmp_path, unix=unix) as server:
        assert server.url.startswith(f"unix:{tmp_path}/socket" if unix else "http://127.0.0.1:")
        assert answer_of(server, get("/health"))[0] == 200


def test_ipv6_loopback_needs_no_token(tmp_path: Path) -> None:
    with serving(tmp_path, {"AGENTIX_BIND_HOST": "::1"}) as server:
        assert server.url.startswith("http://[::1]:")
        assert answer_of(server, get("/health"))[0] == 200


def test_unix_socket_is_for_its_owner_alone(own_server: Server) -> None:
    assert os.stat(own_server.socket_path).st_mode & 0o777 == 0o600


def test_stale_unix_socket_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(tmp_path / "socket"))
    with serving(tmp_path, unix=True) as server:
        assert answer_of(server, get("/health"))[0] == 200


TOKEN = "a token of more than one word"
ENDPOINTS = [
    post("/_remote", call_body("echo", 1)),
    post("/exec", b'{"command": "true"}'),
    post("/exec", b'{"command": "true"}', "Accept: text/event-stream"),
    post("/upload", b""),
    get("/download?path=x"),
    get("/namespaces"),
    get("/absent"),
    get("//health"),
    get("/health/"),
]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with serving(tmp_path_factory.mktemp("guarded"), unix=True, token=TOKEN) as running:
        yield running


NEEDED = "a bearer token is needed"
WRONG = "the bearer token is wrong"


@pytest.mark.parametrize(
    ("credentials", "reason"),
    [
        ("", NEEDED),
        (f"Authorization: Bearer {TOKEN}x\r\n", WRONG),
        (f"Authorization: Bearer {TOKEN[:-1]}\r\n", WRONG),
        (f"Authorization: bearer {TOKEN.upper()}\r\n", WRONG),
        ("Authorization: Bearer\r\n", NEEDED),
        ("Authorization: Bearer \r\n", NEEDED),
        (f"Authorization: {TOKEN}\r\n", NEEDED),
        (f"Authorization: Basic {TOKEN}\r\n", NEEDED),
        (f"X-Authorization: Bearer {TOKEN}\r\n", NEEDED),
    ],
)
@pytest.mark.parametrize("request_", ENDPOINTS, ids=lambda value: value.split(b" ")[1].decode())
def test_call_without_the_token_is_401(
    guarded: Server, request_: bytes, credentials: str, reason: str
) -> None:
    request = request_.replace(b"Host:", credentials.encode() + b"Host:", 1)
    head, _, body = guarded.exchange(request).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 401 ")
    assert field_of(head, "www-authenticate") == "Bearer"
    assert json.loads(body) == {"error": reason}


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_call_with_the_token_is_answered(guarded: Server, scheme: str) -> None:
    request = post("/_remote", call_body("echo", 1), f"Authorization: {scheme} {TOKEN}")
    assert answer_of(guarded, request) == (200, {"ok": True, "value": 1})


def test_health_needs_no_token(guarded: Server) -> None:
    assert answer_of(guarded, get("/health"))[0] == 200


@pytest.mark.parametrize(
    "fields",
    [
        ("Upgrade: websocket", "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {'A' * 22}=="),
        ("Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"),
    ],
    ids=["websocket", "h2c"],
)
def test_request_for_another_protocol_is_answered_by_this_one(
    guarded: Server, fields: tuple[str, ...]
) -> None:
    for path, status in (("/health", b"200"), ("/namespaces", b"401")):
        request = get(path, *fields).replace(b"Connection: close", b"Connection: Upgrade")
        assert guarded.exchange(request).startswith(b"HTTP/1.1 %b " % status)


def test_file_of_the_token_is_gone_once_the_runtime_is_ready(guarded: Server) -> None:
    assert not (guarded.root / "token").exists()
    command_line = Path(f"/proc/{guarded.process.pid}/cmdline").read_text()
    assert TOKEN not in command_line
    assert TOKEN not in guarded.log
    with inspecting():
        assert TOKEN not in Path(f"/proc/{guarded.process.pid}/environ").read_text()


HUGE = "9" * 5000
"""More digits than Python turns into a number."""


def run_briefly(**environ: str) -> "subprocess.CompletedProcess[str]":
    """Runs a server that must end by itself."""
    return subprocess.run(
        [sys.executable, "-m", "agentix.runtime"],
        env=os.environ | {"AGENTIX_BIND_PORT": "0", "AGENTIX_MOUNT_ROOT": "/absent"} | environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", ""])
def test_open_address_without_a_token_is_refused(host: str) -> None:
    ended = run_briefly(AGENTIX_BIND_HOST=host)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == (
        f"agentix-server: refusing to listen on {host} without a token: set AGENTIX_TOKEN_FILE,"
        " or bind to 127.0.0.1 or a Unix socket\n"
    )


def test_open_address_with_a_token_is_served(tmp_path: Path) -> None:
    with serving(tmp_path, {"AGENTIX_BIND_HOST": "0.0.0.0"}, token="t") as server:
        assert server.url.startswith("http://0.0.0.0:")
        assert answer_of(server, get("/health"))[0] == 200


@pytest.mark.parametrize(
    ("environ", "reason"),
    [
        ({"AGENTIX_BIND_PORT": "x"}, "AGENTIX_BIND_PORT='x' is not a whole number up to 65535"),
        ({"AGENTIX_BIND_PORT": "-1"}, "AGENTIX_BIND_PORT='-1' is not a whole number up to 65535"),
        (
            {"AGENTIX_BIND_PORT": "65536"},
            "AGENTIX_BIND_PORT='65536' is not a whole number up to 65535",
        ),
        ({"AGENTIX_MAX_BODY": "1e3"}, "AGENTIX_MAX_BODY='1e3' is not a whole number"),
        ({"AGENTIX_MAX_OUTPUT": "x"}, "AGENTIX_MAX_OUTPUT='x' is not a whole number"),
        ({"AGENTIX_MAX_OUTPUT": HUGE}, f"AGENTIX_MAX_OUTPUT='{HUGE}' is not a whole number"),
        ({"AGENTIX_MOUNT_ROOT": "mnt"}, "AGENTIX_MOUNT_ROOT='mnt' is not an absolute path"),
        ({"AGENTIX_UPLOAD_ROOT": "./x"}, "AGENTIX_UPLOAD_ROOT='x' is not an absolute path"),
        ({"AGENTIX_BIND_FD": "x"}, f"AGENTIX_BIND_FD='x' is not a whole number up to {2**31 - 1}"),
        (
            {"AGENTIX_BIND_FD": str(2**31)},
            f"AGENTIX_BIND_FD='{2**31}' is not a whole number up to {2**31 - 1}",
        ),
        ({"AGENTIX_BIND_FD": "900"}, "AGENTIX_BIND_FD=900 is no socket: Bad file descriptor"),
        (
            {"AGENTIX_BIND_FD": "0"},
            "AGENTIX_BIND_FD=0 is no socket: Socket operation on non-socket",
        ),
        (
            {"AGENTIX_BIND_HANDOFF": "/absent/socket"},
            "no listening socket came from /absent/socket: [Errno 2] No such file or directory",
        ),
        *(
            (
                {first: value, second: "/x/socket"},
                "AGENTIX_BIND_UNIX, AGENTIX_BIND_FD and AGENTIX_BIND_HANDOFF exclude each other",
            )
            for first, value, second in (
                ("AGENTIX_BIND_FD", "3", "AGENTIX_BIND_UNIX"),
                ("AGENTIX_BIND_FD", "3", "AGENTIX_BIND_HANDOFF"),
                ("AGENTIX_BIND_UNIX", "/x/other", "AGENTIX_BIND_HANDOFF"),
            )
        ),
        (
            {"AGENTIX_TOKEN_FILE": "/absent"},
            "AGENTIX_TOKEN_FILE='/absent' cannot be taken:"
            " [Errno 2] No such file or directory: '/absent'",
        ),
        ({"AGENTIX_EXEC_USER": "nobody-here"}, "the task image has no user 'nobody-here'"),
        ({"AGENTIX_BIND_UNIX": "/absent/socket"}, "[Errno 2] No such file or directory"),
        ({"AGENTIX_BIND_UNIX": f"/tmp/{'x' * 200}"}, "AF_UNIX path too long"),
    ],
)
def test_unusable_setting_is_one_line(environ: dict[str, str], reason: str) -> None:
    ended = run_briefly(**environ)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f"agentix-server: {reason}\n"


@pytest.mark.parametrize("host", ["a" * 70 + ".example", "host..example"])
def test_host_that_is_no_name_is_one_line(host: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    ended = run_briefly(AGENTIX_BIND_HOST=host, AGENTIX_TOKEN_FILE=f"{tmp_path}/token")
    assert ended.returncode == 1
    assert ended.stderr.startswith("agentix-server: ")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("content", [b"", b" \n", "tökén".encode()])
def test_unusable_token_is_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(content)
    ended = run_briefly(AGENTIX_TOKEN_FILE=f"{tmp_path}/token")
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"agentix-server: AGENTIX_TOKEN_FILE='{tmp_path}/token' ")
    assert ended.stderr.count("\n") == 1


def test_taken_port_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = run_briefly(AGENTIX_BIND_PORT=str(taken.getsockname()[1]))
    assert ended.returncode == 1
    assert ended.stderr.startswith("agentix-server: [Errno 98] Address already in use")
    assert ended.stderr.count("\n") == 1


def occupy(server: Server, stack: ExitStack, root: Path) -> list[socket.socket]:
    """Begins one of everything that could keep a runtime from ending."""
    os.mkfifo(root / "fifo")
    pids = root / "pids"
    ignoring = f"trap '' TERM; sleep 1000 & echo $! $$ > {pids}.new; mv {pids}.new {pids}; wait"
    requests = [
        post("/_remote", call_body("wait_for_ever", f"{root}/started", f"{root}/cancelled")),
        post("/_remote", call_body("read", f"{root}/fifo")),
        post("/_remote", call_body("one_then_wait", f"{root}/closed")),
        post("/_remote", call_body("endless", f"{root}/counter", f"{root}/ended")),
        post("/exec", json.dumps({"command": ignoring}).encode()),
        post("/exec", b'{"command": "echo on; sleep 1000"}', "Accept: text/event-stream"),
        post("/exec", b"{}")[:-1],
        b"GET /hea",
    ]
    connections = []
    for request in requests:
        connection = stack.enter_context(closing(server.connect()))
        connection.sendall(request)
        connections.append(connection)
    for index, mark in ((2, b'{"item":1}'), (3, b"item"), (5, b"stdout")):
        receive_until(connections[index], mark)
    wait_until((root / "started").exists)
    wait_until(pids.exists)
    return connections


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_everything_in_a_bounded_time(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path) as server, ExitStack() as stack:
        occupy(server, stack, tmp_path)
        begun = monotonic()
        server.process.send_signal(number)
        assert server.process.wait(DEADLINE) == 0
        assert monotonic() - begun < GRACE + CLEANUP + 2
        for pid in (tmp_path / "pids").read_text().split():
            wait_until(lambda pid=pid: not is_alive(int(pid)))  # type: ignore[misc]
        for marker in ("cancelled", "closed", "ended"):
            assert (tmp_path / marker).exists(), marker
        assert "Traceback" not in server.log


def test_idle_runtime_ends_at_once(tmp_path: Path) -> None:
    with serving(tmp_path) as server, server.connect() as idle:
        idle.sendall(get("/health").replace(b"Connection: close\r\n", b""))
        receive_until(idle, b"}")
        begun = monotonic()
        server.process.terminate()
        assert server.process.wait(DEADLINE) == 0
        assert monotonic() - begun < GRACE
        assert idle.recv(1) == b""


def test_call_under_way_may_finish_after_sigterm(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with serving(tmp_path) as server, server.connect() as connection:
        command = f"echo on > {tmp_path}/fifo; sleep 0.5; echo done"
        connection.sendall(post("/exec", json.dumps({"command": command}).encode()))
        assert (tmp_path / "fifo").read_text() == "on\n"
        server.process.terminate()
        assert b'"stdout":"done\\n"' in received(connection)
        assert server.process.wait(DEADLINE) == 0


def test_what_is_not_http_is_400(server: Server) -> None:
    answer = answer_of(server, b"not http\r\n\r\n")
    assert answer == (400, {"error": "this is no request of HTTP/1.1"})
