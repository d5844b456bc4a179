"""The logs of a job: written as it runs, and read from any offset while it does."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self
from uuid import UUID

from agentix.oanix.jobs.store import JobStore
from agentix.oanix.jobs.watch import Watch
from agentix.oanix.node import Kind, Node, OpenFlags
from agentix.oanix.service import File
from agentix.oanix.services.logs import LogsFs

__all__ = ["STREAMS", "LogChunk", "LogWriter", "Stream", "follow_logs", "read_log", "save_logs"]

Stream = Literal["stdout", "stderr"]
"""One of a job's outputs."""

STREAMS: tuple[Stream, ...] = ("stdout", "stderr")
"""A job's outputs."""

CHUNK = 1 << 16
"""Bytes of a chunk at most."""


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A piece of a job's output."""

    stream: Stream
    """Which output it is of."""
    offset: int
    """Bytes before it, over all attempts of the job."""
    data: bytes
    """The piece."""


class LogWriter:
    """Adds to the outputs of a job; a file is made with its first piece.

    Args:
        directory: The job's logs.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[Stream, int] = {}

    def write(self, stream: Stream, data: bytes) -> None:
        """Adds a piece to the end of an output, where readers see it at once."""
        number = self._files.get(stream)
        if number is None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            number = self._files[stream] = os.open(self._directory / f"{stream}.log", flags, 0o600)
        view = memoryview(data)
        while len(view):
            view = view[os.write(number, view) :]

    def close(self) -> None:
        """Closes the files."""
        for number in self._files.values():
            os.close(number)
        self._files.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_log(store: JobStore, job: UUID, stream: Stream, offset: int = 0) -> bytes:
    """Reads a chunk of an output.

    Args:
        store: Where the job is.
        job: The job's number.
        stream: The output.
        offset: Bytes of it to leave out.

    Returns:
        Up to 64 KiB; nothing where the output has no more for now.
    """
    try:
        number = os.open(store.directory.logs(job) / f"{stream}.log", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(number, CHUNK, offset)
    finally:
        os.close(number)


def follow_logs(
    store: JobStore,
    job: UUID,
    *,
    offsets: tuple[int, int] = (0, 0),
    follow: bool = True,
) -> Iterator[LogChunk]:
    """Gives what a job writes to its outputs, piece by piece, until the job has ended.

    Args:
        store: Where the job is.
        job: The job's number.
        offsets: Bytes of standard output and of standard error to leave out.
        follow: Waits for more; otherwise gives what is there.

    Raises:
        JobError: The job is unknown.
    """
    ended = store.get(job).ended
    reached = dict(zip(STREAMS, offsets, strict=True))
    with Watch([store.directory.logs(job), store.directory.ends.path]) as watch:
        while True:
            # The state is asked for first: what is read after the end is all that there will be.
            ended = ended or not follow or store.get(job).ended
            for stream in STREAMS:
                while data := read_log(store, job, stream, reached[stream]):
                    yield LogChunk(stream, reached[stream], data)
                    reached[stream] += len(data)
            if ended:
                return
            watch.wait()


def save_logs(logs: LogsFs, directory: Path) -> None:
    """Writes the trajectories, events and metrics of an attempt where the job's logs are."""
    if logs.events.data:
        (directory / "events.jsonl").write_bytes(bytes(logs.events.data))
    (directory / "metrics.json").write_bytes(logs.metrics())
    _save_tree(logs.trajectories.attach(), directory / "atif")


def _save_tree(node: Node, target: Path) -> None:
    """Writes the files below a directory of a service; links are left out."""
    below = [(entry.name, node.lookup(entry.name)) for entry in node.entries()]
    files = [(name, found) for name, found in below if found.kind is Kind.REGULAR]
    if files:
        target.mkdir(parents=True, exist_ok=True)
    for name, file in files:
        (target / name).write_bytes(File(file.open(OpenFlags())).read())
    for name, directory in below:
        if directory.kind is Kind.DIRECTORY:
            _save_tree(directory, target / name)
