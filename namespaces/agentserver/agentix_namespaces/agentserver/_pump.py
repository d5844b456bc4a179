"""The pump's process, started from the namespace's `entry/bin`, and requests to it."""

import asyncio
import json
import os
import shutil
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

__all__ = ["PUMPS", "OrganismError", "Pumps"]

START = 60.0
"""Seconds that an organism may take to start."""

STOP = 30.0
"""Seconds that it may take to end before it is killed."""

LINE = 64 << 20
"""Bytes of the longest line of an answer."""


class OrganismError(Exception):
    """There is no organism, or it refused; the message is its own."""


@dataclass
class _Pump:
    """A pump that runs."""

    process: Process
    socket: Path
    private: Path
    """The directory of the socket, and of an organism that was given none."""
    token: str = field(repr=False)
    """The token of the principal `agentix`, which is nowhere but here."""


class Pumps:
    """The one organism of a sandbox, and none before `start` and after `stop`."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._pump: _Pump | None = None

    async def start(self, yaml: str, files: Mapping[str, str], directory: Path | None) -> None:
        """Write the files of an organism, and start its pump.

        Raises:
            OrganismError: One runs already, or this one cannot start.
        """
        async with self._turn:
            if self._pump is not None and self._pump.process.returncode is None:
                raise OrganismError("an organism runs already: stop it first")
            await self._end()
            private = Path(tempfile.mkdtemp(prefix="agentserver-"))
            home = directory or private / "organism"
            try:
                _write(home, {**files, "organism.yaml": yaml})
                self._pump = await _started(home / "organism.yaml", private)
            except BaseException:
                shutil.rmtree(private, ignore_errors=True)
                raise

    async def stop(self) -> None:
        """End the organism, and wait for that."""
        async with self._turn:
            await self._end()

    async def _end(self) -> None:
        pump, self._pump = self._pump, None
        if pump is not None:
            await _ended(pump.process)
            shutil.rmtree(pump.private, ignore_errors=True)

    async def one(self, operation: str, token: str | None = None, **fields: Any) -> Any:
        """Send a request that has one item as its answer."""
        items = [item async for item in self.many(operation, token, **fields)]
        return items[0]

    async def many(
        self, operation: str, token: str | None = None, **fields: Any
    ) -> AsyncGenerator[Any, None]:
        """Send a request, and return the items of its answer as they come.

        Args:
            operation: What is asked for.
            token: Whose request it is; `None` for that of `agentix`.
            fields: The other fields of the request.

        Raises:
            OrganismError: No organism runs, it ended, or it refused.
        """
        pump = self._pump
        if pump is None:
            raise OrganismError("no organism runs: start one")
        try:
            reader, writer = await asyncio.open_unix_connection(pump.socket, limit=LINE)
        except OSError as error:
            raise OrganismError("the organism has ended: start it again") from error
        whose = pump.token if token is None else token
        try:
            writer.write(json.dumps({"op": operation, "token": whose, **fields}).encode() + b"\n")
            await writer.drain()
            async for item in _items(reader):
                yield item
        except ConnectionError as error:
            raise OrganismError("the organism has ended: start it again") from error
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


PUMPS = Pumps()


async def _items(reader: asyncio.StreamReader) -> AsyncGenerator[Any, None]:
    while line := await reader.readline():
        match json.loads(line):
            case {"item": item}:
                yield item
            case {"end": True}:
                return
            case {"error": {"type": kind, "message": message}}:
                raise OrganismError(f"{kind}: {message}")
    raise OrganismError("the organism has ended: start it again")


def program() -> Path:
    """Find the pump's program in `entry/bin`, or in the source tree.

    Raises:
        OrganismError: It is in neither.
    """
    here = Path(__file__).resolve()
    for root in (here.parents[3], here.parents[2]):
        found = root / "bin" / "agentserver-pump"
        if found.is_file():
            return found
    raise OrganismError(f"the closure at {here.parents[3]} has no bin/agentserver-pump")


def _write(home: Path, files: Mapping[str, str]) -> None:
    """Write files that only their owner reads, as keys need."""
    home.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        parts = PurePosixPath(name)
        if parts.is_absolute() or ".." in parts.parts:
            raise OrganismError(f"{name!r} leaves the directory of the organism")
        path = home / parts
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(text, encoding="utf-8")


async def _started(organism: Path, private: Path) -> _Pump:
    """Start the program, and wait until it listens."""
    socket = private / "pump.sock"
    environment = os.environ | {"AGENTSERVER_PYTHON": sys.executable}
    process = await asyncio.create_subprocess_exec(
        program(), organism, socket, stdin=PIPE, stdout=PIPE, env=environment, limit=LINE
    )
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), START)
        match json.loads(line or b"{}"):
            case {"ready": True, "token": str(token)}:
                return _Pump(process, socket, private, token)
            case {"error": {"type": kind, "message": message}}:
                raise OrganismError(f"{kind}: {message}")
        raise OrganismError("the pump ended before the organism had started")
    except BaseException:
        await asyncio.shield(_ended(process, seconds=0.0))
        raise


async def _ended(process: Process, seconds: float = STOP) -> None:
    """End a pump by the end of its input, and kill it where that does not help."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), seconds)
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
