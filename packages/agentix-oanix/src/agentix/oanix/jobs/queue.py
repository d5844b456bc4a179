"""JobQueue: jobs as a user has them, submitted, watched, cancelled and read."""

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import UUID

from agentix.oanix.jobs.directory import JobDirectory
from agentix.oanix.jobs.job import Job, JobSpec
from agentix.oanix.jobs.logs import LogChunk, Stream, follow_logs, read_log
from agentix.oanix.jobs.manager import start_manager
from agentix.oanix.jobs.store import JobStore
from agentix.oanix.jobs.watch import Watch
from agentix.oanix.places import jobs_directory, keep_program

__all__ = ["JobQueue"]

SUBMITTING = 3600.0
"""Seconds that submitting a job takes at most, after its program is kept."""


class JobQueue:
    """The jobs of a directory; a context manager, for one thread.

    Args:
        directory: Where the jobs are; by default the user's own queue, which the command
            `agentix-oanix job` uses too.
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        self.directory = JobDirectory(directory or jobs_directory(os.environ))
        """Where the jobs are."""
        self._store = JobStore(self.directory)

    def close(self) -> None:
        """Closes the database; the jobs go on."""
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
        """Adds a job, and gives its number.

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
        """Gives a job.

        Raises:
            JobError: It is unknown.
        """
        return self._store.get(job)

    def jobs(self) -> Sequence[Job]:
        """Gives all jobs in the order of their submission."""
        return self._store.jobs()

    def cancel(self, job: UUID) -> None:
        """Cancels a job: at once where it waits, and soon where it runs.

        Raises:
            JobError: It is unknown, or has ended.
        """
        self._store.cancel(job)

    def wait(self, job: UUID, timeout: float | None = None) -> Job:
        """Waits until a job has ended.

        Args:
            job: The job's number.
            timeout: Seconds; `None` for no limit.

        Raises:
            JobError: It is unknown.
            TimeoutError: It did not end in time.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with Watch([self.directory.ends.path]) as watch:
            while not (found := self._store.get(job)).ended:
                remaining = None if deadline is None else deadline - time.monotonic()
                if remaining is not None and remaining <= 0:
                    raise TimeoutError(f"job {job} is {found.status.status} after {timeout} s")
                watch.wait(remaining)
        return found

    def logs(
        self, job: UUID, *, offsets: tuple[int, int] = (0, 0), follow: bool = True
    ) -> Iterator[LogChunk]:
        """Gives what a job writes to its outputs, piece by piece, until it has ended.

        Args:
            job: The job's number.
            offsets: Bytes of standard output and of standard error to leave out.
            follow: Waits for more; otherwise gives what is there.

        Raises:
            JobError: It is unknown.
        """
        return follow_logs(self._store, job, offsets=offsets, follow=follow)

    def output(self, job: UUID, stream: Stream = "stdout") -> bytes:
        """Gives all that a job has written to an output so far.

        Raises:
            JobError: It is unknown.
        """
        self._store.get(job)
        parts: list[bytes] = []
        while part := read_log(self._store, job, stream, sum(map(len, parts))):
            parts.append(part)
        return b"".join(parts)

    def prune(self, older: float = 0.0) -> int:
        """Forgets jobs that have ended, with their logs and the programs kept for them alone.

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
        """Removes programs that no job has, unless one may be about to be submitted."""
        specs = [job.spec.model_dump_json() for job in self.jobs()]
        for path in self.directory.programs.iterdir():
            is_new = path.stat().st_mtime > time.time() - SUBMITTING
            if not is_new and not any(path.name in spec for spec in specs):
                path.unlink()

    def file(self, job: UUID, name: str) -> Path:
        """Gives the path of a file among a job's logs, such as `atif/trajectory.json`."""
        return self.directory.logs(job) / name

    def keep_program(self, wasm: bytes) -> Path:
        """Keeps the content of a program, so that jobs need no file of the submitter's.

        Returns:
            The file that has it, named by its SHA-256.
        """
        return keep_program(self.directory.programs, wasm)
