"""JobStore: jobs and their attempts in a SQLite database (WAL), and the order in which they run.

Every change is one transaction. An attempt is recorded before it starts, so however a process ends,
each start of a job is known; what a worker had when it ended is settled by `settle_lost`.
"""

import fcntl
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Literal, Self
from uuid import UUID

from agentix.oanix.errors import JobError
from agentix.oanix.jobs.directory import JobDirectory
from agentix.oanix.jobs.job import AttemptOutcome, Job, JobResult, JobSpec
from agentix.oanix.jobs.lock import holder
from agentix.oanix.jobs.rows import SCHEMA, attempt_of, has_ended, has_succeeded, status_of

__all__ = ["Claim", "End", "JobStore"]

NEXT = """
SELECT place, spec FROM jobs WHERE status = 'pending' AND waiting = 0
ORDER BY priority DESC, place LIMIT 1
"""

BUSY = 60.0
"""Seconds that a transaction waits for others."""

StatusName = Literal["pending", "running", "completed", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that a worker may start: its attempt is recorded."""

    place: int
    """The job's number in the database."""
    number: int
    """The attempt's number."""
    spec: JobSpec
    """What the job is asked for."""


@dataclass(frozen=True, slots=True)
class End:
    """How an attempt ended."""

    outcome: AttemptOutcome
    """How."""
    exit_code: int | None = None
    """The exit code, where it completed."""
    error: str = ""
    """What went wrong."""
    result: JobResult | None = None
    """What it came to."""

    @property
    def succeeded(self) -> bool:
        """The job did what it was asked for."""
        return self.outcome == "completed" and self.exit_code == 0


class JobStore:
    """The jobs of a directory; a context manager, for one thread.

    Args:
        directory: Where the jobs are kept.

    Raises:
        JobError: The database is damaged, or can not be written.
    """

    def __init__(self, directory: JobDirectory) -> None:
        self.directory = directory
        """Where the jobs are kept."""
        self._database = sqlite3.connect(directory.database, timeout=BUSY, isolation_level=None)
        try:
            self._set_up()
        except sqlite3.DatabaseError as error:
            self._database.close()
            raise JobError(f"{directory.database} can not be used: {error}") from error

    def _set_up(self) -> None:
        """Opens the database, and makes its tables where it is new.

        One process at a time does so, because turning WAL on waits for nobody.
        """
        with self.directory.setup.open("wb") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = NORMAL")
            query = "SELECT 1 FROM sqlite_schema WHERE name = 'alive'"
            if self._database.execute(query).fetchone() is None:
                self._database.executescript(f"BEGIN IMMEDIATE; {SCHEMA} COMMIT;")

    def close(self) -> None:
        """Closes the database."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @contextmanager
    def _change(self) -> Iterator[None]:
        """Makes a transaction of what is done, or nothing of it at an error."""
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise

    def submit(self, spec: JobSpec) -> None:
        """Adds a job to the queue.

        Raises:
            JobError: There is a job of this number already, or one that it comes after is unknown.
        """
        self.directory.logs(spec.id).mkdir(exist_ok=True)
        with self._change():
            needed = [self._row(wanted) for wanted in dict.fromkeys(spec.after)]
            place = self._insert(spec, needed)
            for row in needed:
                if has_ended(row) and not has_succeeded(row):
                    self._fail_after(place, row["id"])
                    break
        self.directory.work.ring()

    def _insert(self, spec: JobSpec, needed: Sequence[sqlite3.Row]) -> int:
        waiting = sum(not has_succeeded(row) for row in needed)
        values = (str(spec.id), spec.model_dump_json(), spec.priority, spec.retries, waiting)
        columns = "id, spec, priority, retries, waiting"
        try:
            inserted = self._database.execute(
                f"INSERT INTO jobs ({columns}) VALUES (?, ?, ?, ?, ?)",  # noqa: S608 - constant
                values,
            )
        except sqlite3.IntegrityError as error:
            raise JobError(f"there is a job {spec.id} already") from error
        place = inserted.lastrowid
        assert place is not None
        pairs = [(place, row["place"]) for row in needed]
        self._database.executemany("INSERT INTO needs (job, needed) VALUES (?, ?)", pairs)
        return place

    def claim(self, worker: str, limit: int) -> Claim | None:
        """Takes the next job for a worker, and records the attempt.

        Args:
            worker: The worker's name; it holds the lock of that name.
            limit: Attempts that may be under way at once, in all workers.

        Returns:
            The job; `None` where there is none to start, or as many as may be are under way.
        """
        with self._change():
            found = self._database.execute(NEXT).fetchone()
            if found is None or self.running() >= limit:
                return None
            place, spec = found
            (before,) = self._database.execute(
                "SELECT count(*) FROM attempts WHERE job = ?", (place,)
            ).fetchone()
            self._database.execute(
                "INSERT INTO attempts (job, number, worker, started) VALUES (?, ?, ?, ?)",
                (place, before + 1, worker, _now()),
            )
            self._database.execute("UPDATE jobs SET status = 'running' WHERE place = ?", (place,))
        return Claim(place, before + 1, JobSpec.model_validate_json(spec))

    def finish(self, claim: Claim, end: End) -> None:
        """Records the end of an attempt, and what it means for the job and those after it."""
        with self._change():
            self._settle(claim.place, claim.number, end)
        self._announce()

    def settle_lost(self, ends: Mapping[str, str] | None = None) -> int:
        """Settles the attempts whose workers have ended, and gives their number.

        Args:
            ends: What is known about the ends of workers, by their names.
        """
        lost = [row for row in self._alive() if holder(self.directory.worker(row[2])) is None]
        if not lost:
            return 0
        with self._change():
            for place, number, worker in lost:
                why = (ends or {}).get(worker, f"worker {worker} ended")
                self._settle(place, number, End("lost", error=f"its {why}"))
                self.directory.worker(worker).unlink(missing_ok=True)
        self._announce()
        return len(lost)

    def _alive(self) -> list[tuple[int, int, str]]:
        query = "SELECT job, number, worker FROM attempts WHERE ended IS NULL"
        return self._database.execute(query).fetchall()

    def _settle(self, place: int, number: int, end: End) -> None:
        """Ends an attempt, unless it is ended already, and gives its job a status."""
        ended = self._database.execute(
            "UPDATE attempts SET ended = ?, outcome = ?, exit_code = ?, error = ?"
            " WHERE job = ? AND number = ? AND ended IS NULL",
            (_now(), end.outcome, end.exit_code, end.error, place, number),
        )
        if ended.rowcount == 0:
            return
        cancelled, retries = self._database.execute(
            "SELECT cancelled, retries FROM jobs WHERE place = ?", (place,)
        ).fetchone()
        result = None if end.result is None else end.result.model_dump_json()
        self._database.execute("UPDATE jobs SET result = ? WHERE place = ?", (result, place))
        if end.succeeded:
            self._set_status(place, "completed", exit_code=0)
            self._release(place)
        elif end.outcome == "cancelled" or (cancelled and end.outcome != "completed"):
            self._end_badly(place, "cancelled")
        elif end.outcome == "interrupted":
            self._set_status(place, "pending")
        elif retries > 0 and not cancelled:
            self._database.execute(
                "UPDATE jobs SET retries = retries - 1 WHERE place = ?", (place,)
            )
            self._set_status(place, "pending")
        elif end.outcome == "completed":
            self._end_badly(place, "completed", exit_code=end.exit_code)
        else:
            self._end_badly(place, "failed", error=end.error)

    def _set_status(
        self,
        place: int,
        status: StatusName,
        exit_code: int | None = None,
        error: str | None = None,
    ) -> None:
        self._database.execute(
            "UPDATE jobs SET status = ?, exit_code = ?, error = ? WHERE place = ?",
            (status, exit_code, error, place),
        )

    def _release(self, place: int) -> None:
        """Lets the jobs after a job wait for one less."""
        self._database.execute(
            "UPDATE jobs SET waiting = waiting - 1"
            " WHERE place IN (SELECT job FROM needs WHERE needed = ?)",
            (place,),
        )

    def _end_badly(
        self,
        place: int,
        status: StatusName,
        exit_code: int | None = None,
        error: str | None = None,
    ) -> None:
        """Ends a job, and fails those that come after it."""
        self._set_status(place, status, exit_code, error)
        query = (
            "SELECT place FROM jobs WHERE status = 'pending'"
            " AND place IN (SELECT job FROM needs WHERE needed = ?)"
        )
        (name,) = self._database.execute("SELECT id FROM jobs WHERE place = ?", (place,)).fetchone()
        for (following,) in self._database.execute(query, (place,)).fetchall():
            self._fail_after(following, name)

    def _fail_after(self, place: int, needed: str) -> None:
        self._end_badly(
            place, "failed", error=f"job {needed}, which it comes after, did not succeed"
        )

    def cancel(self, job: UUID) -> None:
        """Cancels a job: at once where it waits, and soon where it runs.

        Raises:
            JobError: The job is unknown, or has ended.
        """
        with self._change():
            row = self._row(job)
            if has_ended(row):
                raise JobError(f"job {job} has ended: it is {row['status']}")
            self._database.execute("UPDATE jobs SET cancelled = 1 WHERE id = ?", (str(job),))
            if row["status"] == "pending":
                self._end_badly(row["place"], "cancelled")
        self.directory.cancels.ring()
        self._announce()

    def prune(self, before: float) -> Sequence[UUID]:
        """Forgets the jobs that ended before a time, and gives their numbers.

        Args:
            before: Seconds since 1970.
        """
        query = (
            "SELECT place, id FROM jobs WHERE status NOT IN ('pending', 'running')"
            " AND NOT EXISTS (SELECT 1 FROM attempts WHERE job = place AND ended >= ?)"
        )
        with self._change():
            found = self._database.execute(query, (before,)).fetchall()
            for place, _ in found:
                self._database.execute("DELETE FROM needs WHERE ? IN (job, needed)", (place,))
                self._database.execute("DELETE FROM attempts WHERE job = ?", (place,))
                self._database.execute("DELETE FROM jobs WHERE place = ?", (place,))
        return [UUID(name) for _, name in found]

    def is_cancelled(self, claim: Claim) -> bool:
        """Tells whether a job that runs is to be cancelled."""
        query = "SELECT cancelled FROM jobs WHERE place = ?"
        return bool(self._database.execute(query, (claim.place,)).fetchone()[0])

    def running(self) -> int:
        """Counts the attempts that are under way."""
        query = "SELECT count(*) FROM attempts WHERE ended IS NULL"
        return int(self._database.execute(query).fetchone()[0])

    def ready(self, most: int) -> int:
        """Counts the jobs that could start now, up to a number: a queue may be long."""
        jobs = "SELECT 1 FROM jobs WHERE status = 'pending' AND waiting = 0 LIMIT ?"
        query = f"SELECT count(*) FROM ({jobs})"  # noqa: S608 - constant
        return int(self._database.execute(query, (most,)).fetchone()[0])

    def get(self, job: UUID) -> Job:
        """Gives a job.

        Raises:
            JobError: It is unknown.
        """
        return self._job(self._row(job))

    def jobs(self) -> Sequence[Job]:
        """Gives all jobs in the order of their submission."""
        return [self._job(row) for row in self._rows("SELECT * FROM jobs ORDER BY place")]

    def _row(self, job: UUID) -> sqlite3.Row:
        for row in self._rows("SELECT * FROM jobs WHERE id = ?", str(job)):
            return row
        raise JobError(f"there is no job {job}")

    def _rows(self, query: str, *values: object) -> Sequence[sqlite3.Row]:
        cursor = self._database.cursor()
        cursor.row_factory = sqlite3.Row
        return cursor.execute(query, values).fetchall()

    def _job(self, row: sqlite3.Row) -> Job:
        query = "SELECT * FROM attempts WHERE job = ? ORDER BY number"
        return Job(
            spec=JobSpec.model_validate_json(row["spec"]),
            status=status_of(row),
            attempts=tuple(attempt_of(found) for found in self._rows(query, row["place"])),
            result=None if row["result"] is None else JobResult.model_validate_json(row["result"]),
        )

    def _announce(self) -> None:
        """Wakes workers, for which there may be room or work, and those who wait for jobs."""
        self.directory.ends.ring()
        self.directory.work.ring()


def _now() -> float:
    return datetime.now(UTC).timestamp()
