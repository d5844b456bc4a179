"""What a queue of jobs keeps on disk: a directory, a SQLite database, and locks of processes.

Every change of the database is one transaction. An attempt is recorded before it starts, so
however a process ends, each start of a job is known; `settle_lost` ends the attempts of workers
that are gone. What a change means for a job is decided by `states`.
"""

import fcntl
import os
import sqlite3
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from agentix.oanix.errors import JobError
from agentix.oanix.jobs.job import Attempt, AttemptOutcome, Job, JobResult, JobSpec
from agentix.oanix.jobs.states import (
    JobEvent,
    JobRecord,
    effect_on_dependants,
    event_of_end,
    has_ended,
)

__all__ = [
    "POLL_SECONDS",
    "AttemptEnd",
    "Claim",
    "JobDirectory",
    "JobStore",
    "ProcessLock",
    "lock_holder",
]

POLL_SECONDS = 0.05
"""Seconds between two looks at a queue by those who wait for a change of it.

It is the longest time until a worker takes a job, a cancelled job is told to stop, a waiting
program hears of an end, or a follower sees what was written to a log.
"""

BUSY_SECONDS = 60.0
"""Seconds that a transaction waits for others."""

SCHEMA_VERSION = 2
"""The `user_version` of the database that this code reads and writes."""

SCHEMA = f"""
CREATE TABLE jobs (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    spec TEXT NOT NULL,
    priority INTEGER NOT NULL,
    retries INTEGER NOT NULL,
    unmet INTEGER NOT NULL,
    status TEXT NOT NULL DEFAULT 'pending',
    exit_code INTEGER,
    error TEXT,
    cancelled INTEGER NOT NULL DEFAULT 0,
    result TEXT
);
CREATE INDEX queue ON jobs (priority DESC, seq) WHERE status = 'pending' AND unmet = 0;
CREATE TABLE dependencies (
    job INTEGER NOT NULL REFERENCES jobs,
    depends_on INTEGER NOT NULL REFERENCES jobs,
    PRIMARY KEY (depends_on, job)
) WITHOUT ROWID;
CREATE TABLE attempts (
    job INTEGER NOT NULL REFERENCES jobs,
    number INTEGER NOT NULL,
    worker TEXT NOT NULL,
    started REAL NOT NULL,
    ended REAL,
    outcome TEXT,
    exit_code INTEGER,
    error TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (job, number)
) WITHOUT ROWID;
CREATE INDEX alive ON attempts (job) WHERE ended IS NULL;
PRAGMA user_version = {SCHEMA_VERSION};
"""

FLOCK = "@hhqqi"
"""`struct flock` of fcntl(2): type, whence, start, length and process."""


class ProcessLock:
    """A lock of this process on a file; the kernel releases it when the process ends.

    It is a record lock of fcntl(2), which no child inherits. The file must not be opened and closed
    by another part of the process, which would release it.

    Args:
        path: The file, made where it is missing.

    Raises:
        JobError: Another process has it.
    """

    def __init__(self, path: Path) -> None:
        self._number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(self._number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._number)
            raise JobError(f"another process holds {path}") from error

    def release(self) -> None:
        """Release the lock."""
        os.close(self._number)


def lock_holder(path: Path) -> int | None:
    """Return the process that holds a lock, or `None`."""
    try:
        number = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = struct.unpack(FLOCK, fcntl.fcntl(number, fcntl.F_GETLK, asked))
    finally:
        os.close(number)
    return None if answer[0] == fcntl.F_UNLCK else int(answer[4])


class JobDirectory:
    """The files of a queue; the directory is made where it is missing, for its user alone.

    ```python
    from agentix.oanix.jobs import JobDirectory

    directory = JobDirectory("queue")
    assert directory.database.parent == directory.path
    ```

    Args:
        path: The directory.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        """The directory."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in ("logs", "programs", "workers"):
            (self.path / name).mkdir(exist_ok=True)
        self.database = self.path / "jobs.sqlite"
        """The database of the jobs."""
        self.setup = self.path / "setup.lock"
        """Locked while the database is made."""
        self.start = self.path / "start.lock"
        """Locked while a manager is started on demand."""
        self.programs = self.path / "programs"
        """Programs that were submitted with their content, named by their SHA-256."""
        self.manager = self.path / "manager.lock"
        """Held by the process that manages the queue."""
        self.manager_log = self.path / "manager.log"
        """The log of managers and workers."""

    def worker(self, name: str) -> Path:
        """Return the file that a worker holds while it lives."""
        return self.path / "workers" / name

    def logs(self, job: UUID) -> Path:
        """Return the directory of a job's logs."""
        return self.path / "logs" / str(job)


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that a worker may start: its attempt is recorded."""

    seq: int
    """The job's number in the database."""
    number: int
    """The attempt's number."""
    spec: JobSpec
    """What the job is asked for."""


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """How an attempt ended."""

    outcome: AttemptOutcome
    """How."""
    exit_code: int | None = None
    """The exit code, where it completed."""
    error: str = ""
    """What went wrong."""
    result: JobResult | None = None
    """What it came to."""


class JobStore:
    """The jobs of a directory; a context manager, for one thread.

    ```python
    from agentix.oanix.jobs import JobDirectory, JobSpec, JobStore, Wasi

    job = JobSpec(kind=Wasi(program="/bin/tool.wasm"))
    with JobStore(JobDirectory("queue")) as store:
        store.submit(job)
        assert store.claim("worker-1", limit=1).spec == job
        assert store.claim("worker-2", limit=2) is None
    ```

    Args:
        directory: Where the jobs are kept.

    Raises:
        JobError: The database is damaged, of another version, or cannot be written.
    """

    def __init__(self, directory: JobDirectory) -> None:
        self.directory = directory
        """Where the jobs are kept."""
        self._database = sqlite3.connect(
            directory.database, timeout=BUSY_SECONDS, isolation_level=None
        )
        self._database.row_factory = sqlite3.Row
        try:
            self._set_up()
        except (sqlite3.DatabaseError, JobError) as error:
            self._database.close()
            raise JobError(f"{directory.database} cannot be used: {error}") from error

    def _set_up(self) -> None:
        """Open the database, and make its tables where it is new.

        One process at a time does so, because turning WAL on waits for nobody.
        """
        with self.directory.setup.open("wb") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = NORMAL")
            version = self._number("PRAGMA user_version")
            if self._number("SELECT count(*) FROM sqlite_schema") == 0:
                self._database.executescript(f"BEGIN IMMEDIATE; {SCHEMA} COMMIT;")
            elif version != SCHEMA_VERSION:
                raise JobError(f"it has version {version}, not {SCHEMA_VERSION}: take a new queue")

    def close(self) -> None:
        """Close the database."""
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
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise

    def submit(self, spec: JobSpec) -> None:
        """Add a job to the queue.

        Raises:
            JobError: There is a job of this number already, or one that it comes after is unknown.
        """
        self.directory.logs(spec.id).mkdir(exist_ok=True)
        with self._transaction():
            needed = [self._row(wanted) for wanted in dict.fromkeys(spec.after)]
            unmet = [row for row in needed if not _has_succeeded(row)]
            seq = self._insert(spec, len(unmet))
            pairs = [(seq, row["seq"]) for row in needed]
            self._database.executemany("INSERT INTO dependencies VALUES (?, ?)", pairs)
            for row in unmet:
                if has_ended(row["status"]):
                    self._apply(seq, JobEvent.DEPENDENCY_FAILED, error=_failed_dependency(row))
                    break

    def _insert(self, spec: JobSpec, unmet: int) -> int:
        try:
            inserted = self._database.execute(
                "INSERT INTO jobs (id, spec, priority, retries, unmet) VALUES (?, ?, ?, ?, ?)",
                (str(spec.id), spec.model_dump_json(), spec.priority, spec.retries, unmet),
            )
        except sqlite3.IntegrityError as error:
            raise JobError(f"there is a job {spec.id} already") from error
        assert inserted.lastrowid is not None
        return inserted.lastrowid

    def claim(self, worker: str, limit: int) -> Claim | None:
        """Take the next job for a worker, and record the attempt.

        Args:
            worker: The worker's name; it holds the lock of that name.
            limit: Attempts that may be under way at once, in all workers.

        Returns:
            The job; `None` where there is none to start, or as many as may be are under way.
        """
        # Workers ask again and again: only one that sees a job takes the lock of the database.
        if self._next(limit) is None:
            return None
        with self._transaction():
            row = self._next(limit)
            if row is None:
                return None
            seq = row["seq"]
            number = 1 + self._number("SELECT count(*) FROM attempts WHERE job = ?", seq)
            self._database.execute(
                "INSERT INTO attempts (job, number, worker, started) VALUES (?, ?, ?, ?)",
                (seq, number, worker, _now()),
            )
            self._apply(seq, JobEvent.CLAIMED)
        return Claim(seq, number, JobSpec.model_validate_json(row["spec"]))

    def _next(self, limit: int) -> sqlite3.Row | None:
        query = (
            "SELECT seq, spec FROM jobs WHERE status = 'pending' AND unmet = 0"
            " ORDER BY priority DESC, seq LIMIT 1"
        )
        found: sqlite3.Row | None = self._database.execute(query).fetchone()
        return found if found is not None and self.running() < limit else None

    def finish(self, claim: Claim, end: AttemptEnd) -> None:
        """Record the end of an attempt, and what it means for the job and those after it."""
        with self._transaction():
            self._finish(claim.seq, claim.number, end)

    def settle_lost(
        self, ends: Mapping[str, str] | None = None, spare: Collection[str] = ()
    ) -> int:
        """End the attempts whose workers are gone, and return how many they are.

        Args:
            ends: What is known about the ends of workers, by their names.
            spare: Workers whose attempts are left alone, because the caller waits for their ends.
        """
        query = "SELECT job, number, worker FROM attempts WHERE ended IS NULL"
        alive = self._database.execute(query).fetchall()
        lost = [
            row
            for row in alive
            if row["worker"] not in spare
            and lock_holder(self.directory.worker(row["worker"])) is None
        ]
        if not lost:
            return 0
        with self._transaction():
            for seq, number, worker in lost:
                why = (ends or {}).get(worker, f"worker {worker} ended")
                self._finish(seq, number, AttemptEnd("lost", error=f"its {why}"))
                self.directory.worker(worker).unlink(missing_ok=True)
        return len(lost)

    def _finish(self, seq: int, number: int, end: AttemptEnd) -> None:
        """End an attempt, unless it has ended already."""
        ended = self._database.execute(
            "UPDATE attempts SET ended = ?, outcome = ?, exit_code = ?, error = ?"
            " WHERE job = ? AND number = ? AND ended IS NULL",
            (_now(), end.outcome, end.exit_code, end.error, seq, number),
        )
        if ended.rowcount == 0:
            return
        result = None if end.result is None else end.result.model_dump_json()
        self._database.execute("UPDATE jobs SET result = ? WHERE seq = ?", (result, seq))
        event = event_of_end(self._record(seq), end.outcome, end.exit_code)
        self._apply(seq, event, exit_code=end.exit_code, error=end.error)

    def _apply(
        self, seq: int, event: JobEvent, *, exit_code: int | None = None, error: str = ""
    ) -> None:
        """Record an event of a job, and its effects on all that depend on it."""
        effects = [(seq, self._move(seq, event, exit_code, error))]
        while effects:
            seq, effect = effects.pop()
            if effect is None:
                continue
            (row,) = self._rows("SELECT id FROM jobs WHERE seq = ?", seq)
            dependants = self._rows(
                "SELECT job FROM dependencies JOIN jobs ON seq = job"
                " WHERE depends_on = ? AND status = 'pending'",
                seq,
            )
            for (job,) in dependants:
                effects.append((job, self._move(job, effect, error=_failed_dependency(row))))

    def _move(
        self, seq: int, event: JobEvent, exit_code: int | None = None, error: str = ""
    ) -> JobEvent | None:
        """Record an event of one job, and return what it is to those that depend on it."""
        after = self._record(seq).after(event)
        self._database.execute(
            "UPDATE jobs SET status = ?, unmet = ?, retries = ?, cancelled = ?,"
            " exit_code = ?, error = ? WHERE seq = ?",
            (
                *(after.status, after.unmet, after.retries, after.cancelled),
                exit_code if after.status == "completed" else None,
                error if after.status == "failed" else None,
                seq,
            ),
        )
        return effect_on_dependants(event, after.status)

    def _record(self, seq: int) -> JobRecord:
        query = "SELECT status, unmet, retries, cancelled FROM jobs WHERE seq = ?"
        status, unmet, retries, cancelled = self._database.execute(query, (seq,)).fetchone()
        return JobRecord(status, unmet, retries, bool(cancelled))

    def cancel(self, job: UUID) -> None:
        """Cancel a job: at once where it waits, and soon where it runs.

        Raises:
            JobError: The job is unknown, or has ended.
        """
        with self._transaction():
            row = self._row(job)
            if has_ended(row["status"]):
                raise JobError(f"job {job} has ended: it is {row['status']}")
            self._apply(row["seq"], JobEvent.CANCEL_REQUESTED)

    def prune(self, before: float) -> Sequence[UUID]:
        """Forget the jobs that ended before a time, and return their numbers.

        Args:
            before: Seconds since 1970.
        """
        query = (
            "SELECT seq, id FROM jobs WHERE status NOT IN ('pending', 'running')"
            " AND NOT EXISTS (SELECT 1 FROM attempts WHERE job = seq AND ended >= ?)"
        )
        with self._transaction():
            found = self._rows(query, before)
            for seq, _ in found:
                self._database.execute(
                    "DELETE FROM dependencies WHERE ? IN (job, depends_on)", (seq,)
                )
                self._database.execute("DELETE FROM attempts WHERE job = ?", (seq,))
                self._database.execute("DELETE FROM jobs WHERE seq = ?", (seq,))
        return [UUID(row["id"]) for row in found]

    def is_cancelled(self, claim: Claim) -> bool:
        """Return whether a job that runs is to be cancelled."""
        return bool(self._number("SELECT cancelled FROM jobs WHERE seq = ?", claim.seq))

    def running(self) -> int:
        """Return how many attempts are under way."""
        return self._number("SELECT count(*) FROM attempts WHERE ended IS NULL")

    def ready(self, most: int) -> int:
        """Return how many jobs could start now, up to a number: a queue may be long."""
        jobs = "SELECT 1 FROM jobs WHERE status = 'pending' AND unmet = 0 LIMIT ?"
        return self._number(f"SELECT count(*) FROM ({jobs})", most)  # noqa: S608 - constant

    def get(self, job: UUID) -> Job:
        """Return a job.

        Raises:
            JobError: It is unknown.
        """
        return self._job(self._row(job))

    def jobs(self) -> Sequence[Job]:
        """Return all jobs in the order of their submission."""
        return [self._job(row) for row in self._rows("SELECT * FROM jobs ORDER BY seq")]

    def _row(self, job: UUID) -> sqlite3.Row:
        for row in self._rows("SELECT * FROM jobs WHERE id = ?", str(job)):
            return row
        raise JobError(f"there is no job {job}")

    def _rows(self, query: str, *values: object) -> list[sqlite3.Row]:
        return self._database.execute(query, values).fetchall()

    def _number(self, query: str, *values: object) -> int:
        return int(self._database.execute(query, values).fetchone()[0])

    def _job(self, row: sqlite3.Row) -> Job:
        query = "SELECT * FROM attempts WHERE job = ? ORDER BY number"
        return Job(
            spec=JobSpec.model_validate_json(row["spec"]),
            status=_status(row),
            attempts=tuple(_attempt(found) for found in self._rows(query, row["seq"])),
            result=None if row["result"] is None else JobResult.model_validate_json(row["result"]),
        )


def _has_succeeded(row: sqlite3.Row) -> bool:
    return (row["status"], row["exit_code"]) == ("completed", 0)


def _failed_dependency(row: sqlite3.Row) -> str:
    return f"job {row['id']}, which it comes after, did not succeed"


def _status(row: sqlite3.Row) -> Any:
    """Return the fields of the `JobStatus` in a row of `jobs`."""
    fields = {"completed": ("exit_code",), "failed": ("error",)}.get(row["status"], ())
    return {name: row[name] for name in ("status", *fields)}


def _attempt(row: sqlite3.Row) -> Attempt:
    return Attempt(
        number=row["number"],
        worker=row["worker"],
        started=datetime.fromtimestamp(row["started"], UTC),
        ended=None if row["ended"] is None else datetime.fromtimestamp(row["ended"], UTC),
        outcome=row["outcome"],
        exit_code=row["exit_code"],
        error=row["error"],
    )


def _now() -> float:
    return datetime.now(UTC).timestamp()
