"""The command `agentix-oanix` of the namespace's closure, run from the runtime."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CommandError", "Finished", "call", "lines", "options", "reason", "run"]

LINE = 1 << 20
"""Bytes of the longest line that the command prints."""


class CommandError(Exception):
    """The command refused; the message is its own."""


@dataclass(frozen=True)
class Finished:
    """What a command left."""

    exit_code: int
    stdout: bytes
    stderr: bytes


def program() -> Path:
    """Find the command in `entry/bin`, or in the source tree.

    Raises:
        CommandError: It is in neither.
    """
    here = Path(__file__).resolve()
    for root in (here.parents[3], here.parents[2]):
        found = root / "bin" / "agentix-oanix"
        if found.is_file():
            return found
    raise CommandError(f"the closure at {here.parents[3]} has no bin/agentix-oanix")


def options(values: Mapping[str, object]) -> list[str]:
    """Write options of a command line: a list repeats one, and `None` and `False` leave it out."""
    words = []
    for name, value in values.items():
        match value:
            case None | False:
                pass
            case True:
                words.append(f"--{name}")
            case list():
                words += [f"--{name}={item}" for item in value]
            case _:
                words.append(f"--{name}={value}")
    return words


@asynccontextmanager
async def _started(arguments: Sequence[str]) -> AsyncIterator[Process]:
    """Start the command, and kill it where the call ends before it does."""
    environment = os.environ | {"OANIX_PYTHON": sys.executable}
    process = await asyncio.create_subprocess_exec(
        program(), *arguments, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment, limit=LINE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await asyncio.shield(process.wait())


async def run(arguments: Sequence[str], stdin: bytes = b"") -> Finished:
    """Run the command to its end."""
    async with _started(arguments) as process:
        stdout, stderr = await process.communicate(stdin)
        assert process.returncode is not None
        return Finished(process.returncode, stdout, stderr)


async def call(arguments: Sequence[str], stdin: bytes = b"") -> str:
    """Run the command, and return what it prints.

    Raises:
        CommandError: It did not succeed.
    """
    finished = await run(arguments, stdin)
    if finished.exit_code != 0:
        raise CommandError(reason(finished.stderr))
    return finished.stdout.decode()


async def lines(arguments: Sequence[str]) -> AsyncGenerator[bytes, None]:
    """Run the command, and return what it prints line by line.

    Raises:
        CommandError: It did not succeed.
    """
    async with _started(arguments) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.close()
        while line := await process.stdout.readline():
            yield line
        stderr = await process.stderr.read()
        if await process.wait() != 0:
            raise CommandError(reason(stderr))


def reason(stderr: bytes) -> str:
    """Take the command's message off its standard error."""
    return stderr.decode(errors="replace").strip().removeprefix("agentix-oanix: ")
