"""A directory in which the files and commands of a page are tried."""

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.docs.blocks import Block, Step, read_steps

DEADLINE = 300
"""Seconds that one command may take on a busy machine."""


@dataclass(frozen=True)
class Workbench:
    """Follows a page as a reader does: writes its files, types its commands, compares outputs.

    A block with a title is a file; a `console` block is a session that must print what it shows;
    all other blocks are for reading only.
    """

    directory: Path
    """Where the reader is."""
    programs: Path = Path(sys.executable).parent
    """The directory of the reader's `python`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """What the reader's environment has on top of this one."""

    def follow(self, blocks: Iterable[Block]) -> None:
        """Does what the blocks say, in their order."""
        for block in blocks:
            if block.title is not None:
                self.write(block.title, block.text)
            elif block.language == "console":
                for step in read_steps(block):
                    self.take(step, block)

    def write(self, name: str, text: str) -> None:
        """Writes a file of the page."""
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def take(self, step: Step, block: Block) -> None:
        """Types a command and compares what it prints with what the page shows."""
        finished = self.run(step.command)
        place = f"`{step.command}`, in the block of line {block.line}"
        assert finished.returncode == 0, f"{place}: {finished.stdout}{finished.stderr}"
        assert shown(step.output).fullmatch(finished.stdout), (
            f"{place} printed\n{finished.stdout}instead of\n{step.output}{finished.stderr}"
        )

    def run(self, command: str) -> "subprocess.CompletedProcess[str]":
        """Runs a command by the shell, to its end."""
        return subprocess.run(
            ["sh", "-c", command],
            cwd=self.directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )

    @contextmanager
    def started(self, command: str) -> "Iterator[subprocess.Popen[str]]":
        """Runs a command by the shell for the length of a `with` block."""
        with subprocess.Popen(
            ["sh", "-c", command],
            cwd=self.directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.terminate()

    @property
    def _environment(self) -> dict[str, str]:
        path = f"{self.programs}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, **self.environment, "PATH": path}


def shown(output: str) -> re.Pattern[str]:
    """Gives the pattern of a shown output, in which `...` is any text of a line."""
    return re.compile(".*".join(re.escape(part) for part in output.split("...")))
