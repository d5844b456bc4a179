"""Plain functions that never return, imports that never end: what else the runtime does goes on."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from tests.runtime.serving import (
    Server,
    call_body,
    get,
    manifest_of,
    mount,
    mount_probe,
    post,
    received,
    serving,
    wait_until,
)

THREADS = 256
"""How many plain functions run at once."""

STUCK_IMPORTS = 40
"""More than the event loop has threads of its own."""

STUBS = """
def wait(path: str) -> str:
    raise NotImplementedError
async def wait_in_threads(path: str, count: int) -> None:
    raise NotImplementedError
"""
IMPLS = """
import asyncio
from pathlib import Path

def wait(path: str) -> str:
    return Path(path).read_text()

async def wait_in_threads(path: str, count: int) -> None:
    waiting = [asyncio.create_task(asyncio.to_thread(Path(path).read_text)) for _ in range(count)]
    await asyncio.sleep(0)
    Path(f"{path}.awaited").touch()
    await asyncio.gather(*waiting)
"""
REGISTER = """
from agentix.dispatch import Dispatcher
from . import _impl, wait, wait_in_threads

def register():
    dispatcher = Dispatcher()
    dispatcher.bind(wait, _impl.wait)
    dispatcher.bind(wait_in_threads, _impl.wait_in_threads)
    return dispatcher
"""
WAITING = "agentix_namespaces.waiting"


def prepare(mounts: Path) -> None:
    mount_probe(mounts)
    modules = {"__init__": STUBS, "_impl": IMPLS, "_register": REGISTER}
    mount(mounts, "c2", manifest_of("waiting"), **modules)
    # Opening a FIFO waits until somebody opens its other end.
    stuck = f"open({str(mounts / 'never')!r})\n"
    os.mkfifo(mounts / "never")
    for number in range(STUCK_IMPORTS):
        mount(mounts, f"d{number}", manifest_of(f"stuck{number}"), __init__=stuck, _register="")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path, unix=True, prepare=prepare) as running:
        yield running


def answer_of(server: Server, request: bytes) -> Any:
    return json.loads(server.exchange(request).partition(b"\r\n\r\n")[2])


def call(server: Server, method: str, *args: Any, package: str = WAITING) -> Any:
    return answer_of(server, post("/_remote", call_body(method, *args, package=package)))


def probe(server: Server, method: str, *args: Any) -> Any:
    return answer_of(server, post("/_remote", call_body(method, *args)))


def counts(server: Server) -> tuple[int, int]:
    health = answer_of(server, get("/health"))
    return health["calls"], health["abandoned"]


def begin(server: Server, stack: ExitStack, request: bytes) -> socket.socket:
    connection = stack.enter_context(server.connect())
    connection.sendall(request)
    return connection


@pytest.fixture
def abandoned(server: Server) -> Path:
    """The FIFO that as many calls wait for as there are threads, though their callers have left."""
    fifo = server.root / "fifo"
    os.mkfifo(fifo)
    with ExitStack() as stack:
        for _ in range(THREADS):
            begin(server, stack, post("/_remote", call_body("wait", str(fifo), package=WAITING)))
        wait_until(lambda: counts(server) == (THREADS, 0))
    wait_until(lambda: counts(server) == (THREADS, THREADS))
    return fifo


def busy(abandoned: int) -> dict[str, Any]:
    message = (
        f"busy: {THREADS} calls run, of which {abandoned} abandoned;"
        " another plain function can run once one of them returns"
    )
    return {"ok": False, "error": {"type": "Busy", "message": message, "traceback": ""}}


def test_call_is_told_within_a_second_that_all_threads_are_taken(
    server: Server, abandoned: Path
) -> None:
    begun = monotonic()
    assert probe(server, "echo", 1) == busy(THREADS)
    assert monotonic() - begun < 1


def test_all_but_plain_functions_goes_on(server: Server, abandoned: Path) -> None:
    assert probe(server, "echo_async", 1) == {"ok": True, "value": 1}
    result = answer_of(server, post("/exec", b'{"command": "echo on"}'))
    assert result["stdout"] == "on\n"
    assert up_and_down(server) == b"content"


def up_and_down(server: Server) -> bytes:
    """Upload a file and return what comes back by a download."""
    form = b"\r\n".join(
        [
            b"--limit",
            b'Content-Disposition: form-data; name="file"; filename="name"',
            b"",
            b"content",
            b"--limit--",
            b"",
        ]
    )
    answer_of(server, post("/upload", form, "Content-Type: multipart/form-data; boundary=limit"))
    return server.exchange(get("/download?path=name")).partition(b"\r\n\r\n")[2]


def test_threads_are_free_again_once_abandoned_calls_return(
    server: Server, abandoned: Path
) -> None:
    abandoned.write_text("all readers see this end")
    wait_until(lambda: counts(server) == (0, 0))
    assert probe(server, "echo", 1) == {"ok": True, "value": 1}


def test_call_that_waits_gets_the_thread_of_the_first_that_ends(server: Server) -> None:
    """All threads are taken by calls that end one after the other: nothing is refused."""
    fifos = [server.root / f"fifo{number}" for number in range(THREADS)]
    with ExitStack() as stack:
        for fifo in fifos:
            os.mkfifo(fifo)
            begin(server, stack, post("/_remote", call_body("wait", str(fifo), package=WAITING)))
        wait_until(lambda: counts(server) == (THREADS, 0))
        waiting = begin(server, stack, post("/_remote", call_body("echo", 1)))
        fifos[0].write_text("ends")
        answer = received(waiting)
        assert answer.endswith(b'{"ok":true,"value":1}')
        assert counts(server) == (THREADS - 1, 0)
        for fifo in fifos[1:]:
            fifo.write_text("ends")
        wait_until(lambda: counts(server) == (0, 0))


def test_caller_that_leaves_while_it_waits_takes_no_thread(server: Server, abandoned: Path) -> None:
    with ExitStack() as stack:
        begin(server, stack, post("/_remote", call_body("echo", 1)))
    assert probe(server, "echo", 1) == busy(THREADS)
    abandoned.write_text("all readers see this end")
    wait_until(lambda: counts(server) == (0, 0))


def test_imports_that_never_end_hold_no_other_up(server: Server) -> None:
    with ExitStack() as stack:
        for number in range(STUCK_IMPORTS):
            package = f"agentix_namespaces.stuck{number}"
            begin(server, stack, post("/_remote", call_body("echo", package=package)))
        assert probe(server, "echo", 1) == {"ok": True, "value": 1}
        assert up_and_down(server) == b"content"


def test_descriptions_that_never_end_hold_no_files_up(server: Server) -> None:
    with ExitStack() as stack:
        for _ in range(STUCK_IMPORTS):
            begin(server, stack, get("/namespaces?schemas=1"))
        assert probe(server, "echo", 1) == {"ok": True, "value": 1}
        assert up_and_down(server) == b"content"


def test_impls_that_fill_the_threads_of_the_loop_hold_no_files_up(server: Server) -> None:
    fifo = server.root / "fifo"
    os.mkfifo(fifo)
    with ExitStack() as stack:
        body = call_body("wait_in_threads", str(fifo), 100, package=WAITING)
        begin(server, stack, post("/_remote", body))
        wait_until((server.root / "fifo.awaited").exists)
        assert up_and_down(server) == b"content"
        assert probe(server, "echo", 1) == {"ok": True, "value": 1}


def test_runtime_ends_at_once_in_spite_of_them(server: Server, abandoned: Path) -> None:
    begun = monotonic()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(30) == 0
    assert monotonic() - begun < 3
