"""Files: 256 MiB up and down, beside sendfile over loopback, and the memory that takes."""

import asyncio
import hashlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from agentix import RuntimeClient
from bench.cores import on_client_core, on_server_core
from bench.peer import ABSENT, is_installed, peer
from bench.process_facts import forget_peak, peak_bytes, resident_bytes
from bench.rounds import take_turns, timed
from bench.rows import Row, Skipped, at_least, at_most, compared, measured
from bench.servers import TOKEN, Server, runtime

__all__ = ["measure"]

ROUNDS = 9
SIZE = 256 * 1024 * 1024
MEGABYTE = 1e6

SINK = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
buffer = bytearray(1024 * 1024)
while True:
    connection, _ = listener.accept()
    while connection.recv_into(buffer):
        pass
    connection.sendall(b".")
    connection.close()
"""
"""Takes what comes and drops it; says so when all has come."""


async def measure() -> list[Row | Skipped]:
    """Measures whole files: in memory on the server, in the page cache on the client."""
    with (
        on_client_core(),
        tempfile.TemporaryDirectory(prefix="bench-") as directory,
        sink() as port,
        runtime() as server,
    ):
        source, copy = Path(directory, "source"), Path(directory, "copy")
        _fill(source)
        async with RuntimeClient(server.url, token=TOKEN) as client:
            rows = await _beside_floor(client, server, source, copy, port)
            return [*rows, *await _beside_peer(client, source, Path(directory, "theirs"))]


async def _beside_floor(
    client: RuntimeClient, server: Server, source: Path, copy: Path, port: int
) -> list[Row]:
    async def upload() -> tuple[float, float]:
        await client.run("rm -f file")
        return await _watched(server.pid, lambda: client.upload(source, "file"))

    async def download() -> tuple[float, float]:
        _remove(copy)
        return await _watched(server.pid, lambda: client.download("file", copy))

    async def sendfile() -> float:
        return await asyncio.to_thread(_sendfile_rate, source, port)

    floors, uploads, downloads = await take_turns(ROUNDS, sendfile, upload, download)
    assert _digest(copy) == _digest(source)
    return [
        compared("upload", "MB/s", [rate for rate, _ in uploads], floors, at_least(0.25, "ratio")),
        compared(
            "download", "MB/s", [rate for rate, _ in downloads], floors, at_least(0.55, "ratio")
        ),
        measured("upload, growth of the server", "MB", [more for _, more in uploads], at_most(8)),
        measured(
            "download, growth of the server", "MB", [more for _, more in downloads], at_most(8)
        ),
    ]


async def _beside_peer(client: RuntimeClient, source: Path, target: Path) -> list[Row | Skipped]:
    name = "upload; floor: SWE-ReX"
    if not is_installed():
        return [Skipped(name, ABSENT)]
    with peer() as other:
        await other.ready()

        async def theirs() -> tuple[float, float]:
            _remove(target)
            return await _watched(other.pid, lambda: other.upload(source, target))

        async def ours() -> float:
            await client.run("rm -f file")
            return SIZE / MEGABYTE / await timed(client.upload(source, "file"))

        peers, mine = await take_turns(2, theirs, ours)
    return [
        compared(name, "MB/s", mine, [rate for rate, _ in peers], at_least(1, "ratio")),
        measured("upload, growth of SWE-ReX's server", "MB", [more for _, more in peers]),
    ]


async def _watched(pid: int, move: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    """Moves a file; gives megabytes a second, and by how many the server grew meanwhile."""
    forget_peak(pid)
    before = resident_bytes(pid)
    seconds = await timed(move())
    return SIZE / MEGABYTE / seconds, (peak_bytes(pid) - before) / MEGABYTE


def _fill(file: Path) -> None:
    file.write_bytes(os.urandom(1024 * 1024) * (SIZE // 1024 // 1024))


def _remove(file: Path) -> None:
    """Removes a copy: ext4 writes to the disk at once what replaces an older file."""
    file.unlink(missing_ok=True)


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


@contextmanager
def sink() -> Iterator[int]:
    """Runs what takes the floor's bytes, and gives its port."""
    with on_server_core():
        process = subprocess.Popen([sys.executable, "-c", SINK], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def _sendfile_rate(source: Path, port: int) -> float:
    """Gives megabytes a second from a file to a process that drops them."""
    started = time.perf_counter()
    with source.open("rb") as file, socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendfile(file)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
    return SIZE / MEGABYTE / (time.perf_counter() - started)
