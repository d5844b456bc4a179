"""JobQueue: jobs as a user has them, submitted, watched, cancelled and read."""

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self
from uuid import UUID

from agentix.oanix.jobs.job import Job, JobSpec
from agentix.oanix.jobs.manager import start_manager
from agentix.oanix.jobs.store import POLL_SECONDS, JobDirectory, JobStore
from agentix.oanix.places import jobs_directory, keep_program

__all__ = ["JobQueue", "LogChunk", "Stream"]

SUBMITTING_SECONDS = 3600.0
"""Seconds that submitting a job takes at most, after its program is kept."""

CHUNK = 1 << 16
"""Bytes of a chunk at most."""

Stream = Literal["stdout", "stderr"]
"""One of a job's outputs."""

STREAMS: tuple[Stream, ...] = ("stdout", "stderr")


@dataclass(frozen=True, slots=True)
class LogChunk:
    r"""A piece of a job's output.

    ```python
    from agentix.oanix.jobs import JobQueue, JobSpec, LogChunk, Wasi

    with JobQueue("queue") as queue:
        job = queue.submit(JobSpec(kind=Wasi(program="/bin/tool.wasm")), start=False)
        queue.file(job, "stdout.log").write_bytes(b"hello\n")
        (chunk,) = queue.logs(job, offsets=(3, 0), follow=False)
        assert chunk == LogChunk("stdout", 3, b"lo\n")
    ```
    """

    stream: Stream
    """Which output it is of."""
    offset: int
    """Bytes before it, over all attempts of the job."""
    data: bytes
    """The piece."""


class JobQueue:
    """The jobs of a directory; a context manager, for one thread.

    ```python
    from agentix.oanix import MapFs, Namespace, NamespaceSpec
    from agentix.oanix.jobs import AgentTool, JobQueue, JobSpec

    notes = Namespace.builder().mount("/notes", MapFs({"todo": b"buy milk"})).build()
    job = JobSpec(
        kind=AgentTool(name="read", args=("/notes/todo",)),
        namespace=NamespaceSpec.model_validate(notes.spec()),
    )
    with JobQueue("queue") as queue:
        queue.submit(job)
        assert queue.wait(job.id, timeout=60).result.value == "buy milk"
    ```

    Args:
        directory: Where the jobs are; by default the user's own queue, which the command
            `agentix-oanix job` uses too.
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        self.directory = JobDirectory(directory or jobs_directory(os.environ))
        """Where the jobs are."""
        self._store = JobStore(self.directory)

    def close(self) -> None:
        """Close the database; the jobs go on."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def submit(self, spec: JobSpec, *, start: bool = True) -> UUID:
        """Add a job, and return its number.

        Args:
            spec: What the job is asked for.
            start: Starts a manager in the background where there is none.

        Raises:
            JobError: There is such a job already, or one that it comes after is unknown.
        """
        self._store.submit(spec)
        if start:
            start_manager(self.directory)
        return spec.id

    def get(self, job: UUID) -> Job:
        """Return a job.

        Raises:
            JobError: It is unknown.
        """
        return self._store.get(job)

    def jobs(self) -> Sequence[Job]:
        """Return all jobs in the order of their submission."""
        return self._store.jobs()

    def cancel(self, job: UUID) -> None:
        """Cancel a job: at once where it waits, and soon where it runs.

        Raises:
            JobError: It is unknown, or has ended.
        """
        self._store.cancel(job)

    def wait(self, job: UUID, timeout: float | None = None) -> Job:
        """Wait until a job has ended.

        Args:
            job: The job's number.
            timeout: Seconds; `None` for no limit.

        Raises:
            JobError: It is unknown.
            TimeoutError: It did not end in time.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not (found := self._store.get(job)).ended:
            pause = POLL_SECONDS
            if deadline is not None:
                pause = min(pause, deadline - time.monotonic())
                if pause <= 0:
                    raise TimeoutError(f"job {job} is {found.status.status} after {timeout} s")
            time.sleep(pause)
        return found

    def logs(
        self, job: UUID, *, offsets: tuple[int, int] = (0, 0), follow: bool = True
    ) -> Iterator[LogChunk]:
        """Yield what a job writes to its outputs, piece by piece, until it has ended.

        Args:
            job: The job's number.
            offsets: Bytes of standard output and of standard error to leave out.
            follow: Waits for more; otherwise yields what is there.

        Raises:
            JobError: It is unknown.
        """
        ended = self._store.get(job).ended
        reached = dict(zip(STREAMS, offsets, strict=True))
        while True:
            # The state is asked for first: what is read after the end is all that there will be.
            ended = ended or not follow or self._store.get(job).ended
            for stream in STREAMS:
                while data := self._read_log(job, stream, reached[stream]):
                    yield LogChunk(stream, reached[stream], data)
                    reached[stream] += len(data)
            if ended:
                return
            time.sleep(POLL_SECONDS)

    def output(self, job: UUID, stream: Stream = "stdout") -> bytes:
        """Return all that a job has written to an output so far.

        Raises:
            JobError: It is unknown.
        """
        chunks = self.logs(job, follow=False)
        return b"".join(chunk.data for chunk in chunks if chunk.stream == stream)

    def _read_log(self, job: UUID, stream: Stream, offset: int) -> bytes:
        try:
            with self.file(job, f"{stream}.log").open("rb", buffering=0) as log:
                return os.pread(log.fileno(), CHUNK, offset)
        except FileNotFoundError:
            return b""

    def file(self, job: UUID, name: str) -> Path:
        """Return the path of a file among a job's logs, such as `atif/trajectory.json`."""
        return self.directory.logs(job) / name

    def keep_program(self, wasm: bytes) -> Path:
        """Keep the content of a program, so that jobs need no file of the submitter's.

        Returns:
            The file that has it, named by its SHA-256.
        """
        return keep_program(self.directory.programs, wasm)

    def prune(self, older: float = 0.0) -> int:
        """Forget jobs that have ended, with their logs and the programs kept for them alone.

        Args:
            older: Seconds since the end of a job that is forgotten.

        Returns:
            How many jobs were forgotten.
        """
        pruned = self._store.prune(time.time() - older)
        for job in pruned:
            shutil.rmtree(self.directory.logs(job), ignore_errors=True)
        self._prune_programs()
        return len(pruned)

    def _prune_programs(self) -> None:
        """Remove programs that no job has, unless one may be about to be submitted."""
        specs = [job.spec.model_dump_json() for job in self.jobs()]
        for path in self.directory.programs.iterdir():
            is_new = path.stat().st_mtime > time.time() - SUBMITTING_SECONDS
            if not is_new and not any(path.name in spec for spec in specs):
                path.unlink()
