"""A real `agentix-server` in a process of its own, spoken to over the bare wire."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import anyio
import pytest

from agentix.wire import READY_PREFIX

DEADLINE = 30.0
"""Seconds after which something that should have happened has not."""

PROBE = Path(__file__).parent.parent / "namespaces" / "probe"
PROBE_PACKAGE = "agentix_namespaces.probe"


@dataclass
class Server:
    """A runtime under test."""

    root: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    namespaces: tuple[str, ...] = ()
    url: str = ""
    process: "subprocess.Popen[bytes]" = field(init=False)

    @property
    def mounts(self) -> Path:
        return self.root / "mnt"

    @property
    def workspace(self) -> Path:
        return self.root / "workspace"

    @property
    def socket_path(self) -> str:
        return self.url.removeprefix("unix:")

    @property
    def log(self) -> str:
        return (self.root / "log").read_text()

    def connect(self) -> socket.socket:
        """Opens a bare connection."""
        if self.url.startswith("unix:"):
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(DEADLINE)
            connection.connect(self.socket_path)
            return connection
        parts = urlsplit(self.url)
        return socket.create_connection((parts.hostname, parts.port), timeout=DEADLINE)

    def exchange(self, request: bytes) -> bytes:
        """Sends bytes and gives all that comes back until the server closes."""
        with self.connect() as connection:
            connection.sendall(request)
            return received(connection)

    def session(self, **headers: str) -> aiohttp.ClientSession:
        """Return a client session for relative URLs, whose bodies are JSON."""
        unix = self.url.startswith("unix:")
        return aiohttp.ClientSession(
            "http://localhost" if unix else self.url,
            connector=aiohttp.UnixConnector(self.socket_path) if unix else aiohttp.TCPConnector(),
            timeout=aiohttp.ClientTimeout(total=DEADLINE),
            headers={"Content-Type": "application/json"} | headers,
        )

    def resident_bytes(self) -> int:
        """Gives the memory that the runtime holds now."""
        return int(self._status("VmRSS").split()[0]) * 1024

    def reset_peak(self) -> None:
        """Start to measure `peak_bytes` from now on."""
        with inspecting():
            Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def peak_bytes(self) -> int:
        """Gives the most memory that the runtime has held."""
        return int(self._status("VmHWM").split()[0]) * 1024

    def descriptors(self) -> int:
        """Return how many files the runtime has open."""
        with inspecting():
            return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def opens(self, path: Path) -> bool:
        """Return whether the runtime has a file open."""
        with inspecting():
            for entry in Path(f"/proc/{self.process.pid}/fd").iterdir():
                try:
                    target = os.readlink(entry)
                except FileNotFoundError:
                    continue
                if target == str(path):
                    return True
        return False

    def children(self) -> list[str]:
        """Gives the states of the processes whose parent is the runtime."""
        return [
            fields[0]
            for fields in map(process_fields, processes())
            if fields is not None and fields[1] == str(self.process.pid)
        ]

    def _status(self, name: str) -> str:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        pairs = (line.split(":", 1) for line in lines)
        return next(value.strip() for key, value in pairs if key == name)


@contextmanager
def inspecting() -> Iterator[None]:
    """Look into a runtime, which lets nobody without CAP_SYS_PTRACE do so."""
    try:
        yield
    except PermissionError as error:
        pytest.skip(f"only a privileged user looks into a runtime: {error}")


def processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def process_fields(pid: int) -> list[str] | None:
    """Gives the state, the parent and so on of a process that still exists (proc(5))."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def is_alive(pid: int) -> bool:
    """Tells whether a process runs; a zombie does not."""
    fields = process_fields(pid)
    return fields is not None and fields[0] not in "ZX"


@contextmanager
def serving(
    root: Path,
    environ: Mapping[str, str] = MappingProxyType({}),
    *,
    unix: bool = False,
    token: str | None = None,
    prepare: Callable[[Path], None] | None = None,
    drop: tuple[str, ...] = (),
    through: tuple[str, ...] = (),
    arguments: tuple[str, ...] = (),
) -> Iterator[Server]:
    """Run a server with the probe mounted, and end it.

    Args:
        root: Where its mounts, its workspace and its log are.
        environ: Variables that it gets on top of the inherited ones.
        unix: Whether it listens on a Unix socket.
        token: The token that calls must carry.
        prepare: Mounts something other than the probe into the mount root.
        drop: Variables that it does not inherit.
        through: A command that executes the one it is given, in the process that it runs in.
        arguments: Those of the server.
    """
    mounts = root / "mnt"
    mounts.mkdir(parents=True)
    (prepare or mount_probe)(mounts)
    environ = {**settings_for(root, unix=unix, token=token), **environ}
    inherited = {name: value for name, value in os.environ.items() if name not in drop}
    server = Server(root, environ)
    with (root / "log").open("wb") as log:
        server.process = subprocess.Popen(
            [*through, sys.executable, "-m", "agentix.runtime", *arguments],
            env={**inherited, **environ},
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=root,
        )
    try:
        assert server.process.stdout is not None
        line = server.process.stdout.readline().decode()
        assert line.startswith(READY_PREFIX), server.log
        server.url = line.removeprefix(READY_PREFIX).strip()
        yield server
    finally:
        server.process.kill()
        server.process.communicate()


def settings_for(root: Path, *, unix: bool, token: str | None) -> dict[str, str]:
    environ = {"AGENTIX_MOUNT_ROOT": f"{root}/mnt", "AGENTIX_UPLOAD_ROOT": f"{root}/workspace"}
    environ |= {"AGENTIX_BIND_UNIX": f"{root}/socket"} if unix else {"AGENTIX_BIND_PORT": "0"}
    if token is not None:
        (root / "token").write_text(f"{token}\n")
        environ["AGENTIX_TOKEN_FILE"] = f"{root}/token"
    return environ


def mount_probe(mounts: Path) -> None:
    """Lays the probe out as a deployment would."""
    entry = mounts / "c1" / "entry"
    shutil.copytree(PROBE, entry, ignore=shutil.ignore_patterns("__pycache__"))
    (entry / "python").mkdir()
    (entry / "agentix_namespaces").rename(entry / "python" / "agentix_namespaces")


def mount(mounts: Path, directory: str, manifest: Mapping[str, Any], **modules: str) -> Path:
    """Mounts a namespace of given modules, such as `__init__` and `_register`."""
    entry = mounts / directory / "entry"
    package = entry / "python" / Path(*str(manifest["package"]).split("."))
    package.mkdir(parents=True)
    for name, text in modules.items():
        (package / f"{name}.py").write_text(text)
    (entry / "manifest.json").write_text(json.dumps(manifest))
    return entry


def manifest_of(name: str, **more: Any) -> dict[str, Any]:
    return {
        "abi": 1,
        "name": name,
        "version": "1.0.0",
        "package": f"agentix_namespaces.{name}",
    } | more


def call_body(method: str, *args: Any, package: str = PROBE_PACKAGE, **kwargs: Any) -> bytes:
    body = {"package": package, "method": method, "args": args, "kwargs": kwargs}
    return json.dumps(body).encode()


def post(path: str, body: bytes, *fields: str) -> bytes:
    """Return a request of a JSON body that asks the server to close after its answer."""
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Connection: close"]
    if not any(field.lower().startswith("content-type:") for field in fields):
        lines.append("Content-Type: application/json")
    lines += [f"Content-Length: {len(body)}", *fields, "", ""]
    return "\r\n".join(lines).encode() + body


def get(path: str, *fields: str) -> bytes:
    lines = [f"GET {path} HTTP/1.1", "Host: localhost", "Connection: close", *fields, "", ""]
    return "\r\n".join(lines).encode()


def received(connection: socket.socket) -> bytes:
    """Gives all that comes until the other side closes."""
    pieces = []
    while piece := connection.recv(65536):
        pieces.append(piece)
    return b"".join(pieces)


def receive_until(connection: socket.socket, mark: bytes) -> bytes:
    """Gives what comes, up to the first piece with which the mark is there."""
    content = bytearray()
    while mark not in content[-len(mark) - 65536 :]:
        piece = connection.recv(65536)
        assert piece, f"closed before {mark!r}: {content!r}"
        content += piece
    return bytes(content)


async def remote(
    session: aiohttp.ClientSession, method: str, *args: Any, package: str = PROBE_PACKAGE
) -> Any:
    """Calls a function and gives the answer's body, parsed."""
    body = call_body(method, *args, package=package)
    async with session.post("/_remote", data=body) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def count_tasks(session: aiohttp.ClientSession) -> int:
    """Gives how many tasks the runtime has."""
    return int((await remote(session, "tasks"))["value"])


async def until(condition: Callable[[], bool]) -> None:
    """Waits for a condition, with a deadline."""

    async def answer() -> bool:
        return condition()

    await eventually(answer)


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Waits for a condition that has to be asked of the runtime, with a deadline."""
    with anyio.fail_after(DEADLINE):
        while not await condition():  # noqa: ASYNC110 - nothing in this process sets an event
            await anyio.sleep(0.005)


def wait_until(condition: Callable[[], bool], deadline: float = DEADLINE) -> None:
    """Waits for a condition, with a deadline, where no loop runs."""
    end = monotonic() + deadline
    while not condition():
        assert monotonic() < end, "the deadline has passed"
        sleep(0.005)
