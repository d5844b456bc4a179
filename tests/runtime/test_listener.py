"""Listening sockets that somebody else made: inherited, and handed over."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal

from agentix.linux.control import SOCKET, listen_unix
from agentix.linux.handoff import Handoff
from agentix.wire import READY_PREFIX
from tests.runtime.serving import DEADLINE, Server, call_body, inspecting, mount_probe, post

TOKEN = "secret"


@contextmanager
def serving_on(
    root: Path, environ: dict[str, str], passed: tuple[int, ...] = ()
) -> Iterator[Server]:
    """Run a server that binds nothing itself, and end it."""
    mounts = root / "mnt"
    mounts.mkdir()
    mount_probe(mounts)
    (root / "token").write_text(TOKEN)
    own = {
        "AGENTIX_MOUNT_ROOT": str(mounts),
        "AGENTIX_UPLOAD_ROOT": f"{root}/workspace",
        "AGENTIX_TOKEN_FILE": f"{root}/token",
    }
    server = Server(root)
    server.process = subprocess.Popen(
        [sys.executable, "-m", "agentix.runtime"],
        env=os.environ | own | environ,
        stdout=subprocess.PIPE,
        pass_fds=passed,
        cwd=root,
    )
    try:
        assert server.process.stdout is not None
        line = server.process.stdout.readline().decode()
        assert line.startswith(READY_PREFIX), line
        server.url = line.removeprefix(READY_PREFIX).strip()
        yield server
    finally:
        server.process.kill()
        server.process.communicate()


@contextmanager
def inherited(listener: socket.socket, root: Path) -> Iterator[Server]:
    environ = {"AGENTIX_BIND_FD": str(listener.fileno())}
    with serving_on(root, environ, (listener.fileno(),)) as server:
        yield server


@contextmanager
def handed_over(listener: socket.socket, root: Path) -> Iterator[Server]:
    handoff = Handoff(root / "handoff", listener.dup())
    with closing(handoff), start_blocking_portal() as portal:
        served = portal.start_task_soon(handoff.serve)
        environ = {"AGENTIX_BIND_HANDOFF": f"{root}/handoff/{SOCKET}"}
        with serving_on(root, environ) as server:
            served.result(DEADLINE)
            yield server


def on_unix(root: Path) -> socket.socket:
    return listen_unix(root / "s")


def on_tcp(root: Path) -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


@dataclass(frozen=True)
class Adopted:
    """A runtime whose listening socket another process made, and what that one calls it."""

    server: Server
    url: str


@pytest.fixture(
    params=[(on_unix, inherited), (on_tcp, inherited), (on_unix, handed_over)],
    ids=["unix inherited", "tcp inherited", "unix handed over"],
)
def adopted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Adopted]:
    make, serve = request.param
    with make(tmp_path) as listener:
        name = listener.getsockname()
        unix = listener.family == socket.AF_UNIX
        with serve(listener, tmp_path) as server:
            listener.close()
            yield Adopted(server, f"unix:{name}" if unix else f"http://127.0.0.1:{name[1]}")


def answer_of(server: Server, path: str, body: bytes) -> Any:
    fields = ("Content-Type: application/json", f"Authorization: Bearer {TOKEN}")
    return json.loads(server.exchange(post(path, body, *fields)).split(b"\r\n\r\n", 1)[1])


def test_socket_of_another_maker_is_served(adopted: Adopted) -> None:
    assert adopted.server.url == adopted.url
    answer = answer_of(adopted.server, "/_remote", call_body("echo", 1))
    assert answer == {"ok": True, "value": 1}


def test_commands_inherit_neither_the_socket_nor_its_name(adopted: Adopted) -> None:
    command = "for each in /proc/self/fd/*; do readlink $each; done; env"
    output = answer_of(adopted.server, "/exec", json.dumps({"command": command}).encode())["stdout"]
    assert "/dev/null" in output
    assert "socket:" not in output
    assert "AGENTIX_" not in output


def test_programs_of_impls_inherit_neither_the_socket_nor_its_name(adopted: Adopted) -> None:
    seen = answer_of(adopted.server, "/_remote", call_body("environment", "env"))["value"]
    assert seen["AGENTIX_MOUNT_ROOT"] == f"{adopted.server.root}/mnt"
    handed_in = {"AGENTIX_BIND_FD", "AGENTIX_BIND_HANDOFF", "AGENTIX_TOKEN_FILE"}
    assert handed_in & set(seen) == set()
    assert listening_descriptors(adopted.server.process.pid) == [True]


def listening_descriptors(pid: int) -> list[bool]:
    """Return of each listening socket of a process whether it is closed on exec."""
    listening = {
        line.split()[index]
        for table, state, index in (("tcp", "0A", 9), ("unix", "00010000", 6))
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
        if line.split()[3] == state
    }
    found = []
    with inspecting():
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            target = os.readlink(entry)
            if target.startswith("socket:[") and target[len("socket:[") : -1] in listening:
                information = Path(f"/proc/{pid}/fdinfo/{entry.name}").read_text()
                flags = information.split("flags:")[1].split()[0]
                found.append(bool(int(flags, base=8) & os.O_CLOEXEC))
    return found


def ended_by_itself(listener: socket.socket) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "agentix.runtime"],
        env=os.environ | {"AGENTIX_BIND_FD": str(listener.fileno())},
        pass_fds=(listener.fileno(),),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )


def test_inherited_open_address_without_a_token_is_refused() -> None:
    with socket.create_server(("0.0.0.0", 0)) as listener:
        ended = ended_by_itself(listener)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == (
        "agentix-server: refusing to listen on 0.0.0.0 without a token: set AGENTIX_TOKEN_FILE\n"
    )


def test_inherited_socket_that_does_not_listen_is_refused() -> None:
    with socket.socket(socket.AF_UNIX) as idle:
        ended = ended_by_itself(idle)
    assert (ended.returncode, ended.stdout) == (1, "")
    reason = "the socket that was handed to the runtime does not listen"
    assert ended.stderr == f"agentix-server: {reason}\n"
