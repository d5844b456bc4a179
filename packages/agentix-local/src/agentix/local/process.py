"""LaunchedProcess: the launcher of one sandbox, as its owner holds it."""

import asyncio
import logging
import marshal
import os
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Self

from agentix.local import launcher
from agentix.local.plan import Plan

__all__ = ["LaunchedProcess"]

logger = logging.getLogger(__name__)

CHUNK = 64 * 1024
OUTPUT_KEPT = 16 * 1024
"""Bytes of the last output that an error message carries."""

KILL_AFTER = 10.0
"""Seconds until a launcher that does not end with its lease is killed."""


class LaunchedProcess:
    """A running launcher, its output, and its lease.

    Its standard input is the lease: closing it, or the end of this process, ends the sandbox.
    """

    def __init__(self, name: str, process: Process) -> None:
        self._name = name
        self._process = process
        self._output = bytearray()
        self._errors = asyncio.create_task(self._follow_errors())
        self._rest: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, plan: Plan) -> Self:
        """Start a launcher and hand it its plan and the listening socket of the sandbox.

        Raises:
            OSError: No process can be started.
        """
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-I", "-S", str(Path(launcher.__file__)), str(os.getpid())),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=(plan["listener"],),
            start_new_session=True,
            cwd="/",
            env={"LANG": "C.UTF-8"},
        )
        launched = cls(plan["hostname"], process)
        assert process.stdin is not None
        process.stdin.write(marshal.dumps(dict(plan)))
        return launched

    @property
    def exit_code(self) -> int | None:
        """The exit code of the runtime, 128 and the number for a signal; `None` while it lives."""
        return self._process.returncode

    @property
    def output(self) -> str:
        """The last output of the sandbox, standard error and output as they came."""
        return self._output.decode(errors="replace").strip()

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield the lines of standard output until it ends; one longer than 64 KiB is split."""
        assert self._process.stdout is not None
        pending = b""
        while chunk := await self._process.stdout.read(CHUNK):
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                self._keep(line + b"\n")
                yield line
            if len(pending) > CHUNK:
                yield pending
                pending = b""
        if pending:
            self._keep(pending)
            yield pending

    def follow(self) -> None:
        """Read standard output from now on, so that the sandbox never waits for its reader."""
        self._rest = asyncio.create_task(self._follow_output())

    async def _follow_output(self) -> None:
        async for line in self.lines():
            logger.debug("%s: %s", self._name, line.decode(errors="replace"))

    async def _follow_errors(self) -> None:
        assert self._process.stderr is not None
        while chunk := await self._process.stderr.read(CHUNK):
            self._keep(chunk)
            logger.debug("%s: %s", self._name, chunk.decode(errors="replace").rstrip())

    def _keep(self, text: bytes) -> None:
        self._output += text
        del self._output[:-OUTPUT_KEPT]

    async def wait(self) -> int:
        """Wait for the end of the sandbox and of its output, and return the exit code."""
        code = await self._process.wait()
        await self._errors
        if self._rest is not None:
            await self._rest
        return code

    async def exited(self, timeout: float) -> None:
        """Wait for the exit code, at most so many seconds."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), timeout)

    async def end(self) -> None:
        """End the lease and wait until nothing of the sandbox lives."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self._rest is None:
            self.follow()
        try:
            await asyncio.wait_for(self.wait(), KILL_AFTER)
        except TimeoutError:
            logger.error("%s: its launcher outlived its lease, and is killed", self._name)
            self._process.kill()
            await self._process.wait()
            self._drop_pipes()

    def _drop_pipes(self) -> None:
        for task in (self._errors, self._rest):
            if task is not None:
                task.cancel()
