"""A client in a process of its own: it makes one call, and says what came of it.

python -m tests.attacks.client_program URL CALL [OPTION=VALUE ...]
"""

import asyncio
import json
import resource
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import process_time
from typing import Any

from agentix.client import RuntimeClient, Stream
from agentix.errors import AgentixError
from tests.attacks import client_stubs as stubs

MEMORY = 3 * 1024 * 1024 * 1024
"""Bytes of address space that the process may have: what is not bounded ends early."""


async def last(stream: Stream[Any]) -> int:
    """Read a stream to its end, and count its items."""
    return sum([1 async for _ in stream])


async def idle(client: RuntimeClient) -> None:
    """Leave a connection idle until a line comes on standard input."""
    await client.health()
    print("idle", flush=True)
    await asyncio.to_thread(sys.stdin.readline)


Call = Callable[[RuntimeClient], Awaitable[object]]

CALLS: dict[str, Call] = {
    "remote": lambda client: client.remote(stubs.anything),
    "numbers": lambda client: client.remote(stubs.numbers),
    "points": lambda client: client.remote(stubs.points),
    "stream": lambda client: last(client.remote(stubs.items)),
    "run": lambda client: client.run("true"),
    "run_stream": lambda client: last(client.run_stream("true")),
    "upload": lambda client: client.upload(b"x", "x"),
    "run_little": lambda client: client.run("true", max_output=100),
    "read_file": lambda client: client.read_file("x"),
    "part": lambda client: client.read_file("x", length=3),
    "download": lambda client: client.download("x", Path(tempfile.mkdtemp()) / "x"),
    "namespaces": lambda client: client.namespaces(),
    "schemas": lambda client: client.namespaces(schemas=True),
    "health": lambda client: client.health(),
    "idle": idle,
}


def peak() -> int:
    """Return the most bytes of memory that this program has held (man 5 proc)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [value] = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(value) * 1024


async def main(url: str, call: str, *options: str) -> None:
    given = {name: float(value) for name, _, value in (one.partition("=") for one in options)}
    numbers = {name: int(value) if value.is_integer() else value for name, value in given.items()}
    error: BaseException | None = None
    async with RuntimeClient(url, **numbers) as client:  # type: ignore[arg-type]
        begun = process_time()
        try:
            await CALLS[call](client)
        except (AgentixError, MemoryError, RecursionError) as caught:
            error = caught
    report = {
        "error": type(error).__name__,
        "message": str(error),
        "limit": getattr(error, "limit", None),
        "size": getattr(error, "size", None),
        "seconds": process_time() - begun,
        "peak": peak(),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    asyncio.run(main(*sys.argv[1:]))
