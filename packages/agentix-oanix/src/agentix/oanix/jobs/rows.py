"""The tables of a queue, and what their rows say."""

import sqlite3
from datetime import UTC, datetime
from typing import Any

from agentix.oanix.jobs.job import Attempt

__all__ = ["SCHEMA", "attempt_of", "has_ended", "has_succeeded", "status_of"]

SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    place INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    spec TEXT NOT NULL,
    priority INTEGER NOT NULL,
    retries INTEGER NOT NULL,
    waiting INTEGER NOT NULL,
    status TEXT NOT NULL DEFAULT 'pending',
    exit_code INTEGER,
    error TEXT,
    cancelled INTEGER NOT NULL DEFAULT 0,
    result TEXT
);
CREATE INDEX IF NOT EXISTS queue ON jobs (priority DESC, place)
    WHERE status = 'pending' AND waiting = 0;
CREATE TABLE IF NOT EXISTS needs (
    job INTEGER NOT NULL REFERENCES jobs,
    needed INTEGER NOT NULL REFERENCES jobs,
    PRIMARY KEY (needed, job)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS attempts (
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
CREATE INDEX IF NOT EXISTS alive ON attempts (job) WHERE ended IS NULL;
"""


def has_ended(row: sqlite3.Row) -> bool:
    """Tells whether a job's status does not change any more."""
    return row["status"] not in ("pending", "running")


def has_succeeded(row: sqlite3.Row) -> bool:
    """Tells whether a job did what it was asked for."""
    return (row["status"], row["exit_code"]) == ("completed", 0)


def status_of(row: sqlite3.Row) -> Any:
    """Gives the fields of the `JobStatus` in a row of `jobs`."""
    match row["status"]:
        case "completed":
            return {"status": "completed", "exit_code": row["exit_code"]}
        case "failed":
            return {"status": "failed", "error": row["error"]}
        case status:
            return {"status": status}


def attempt_of(row: sqlite3.Row) -> Attempt:
    """Gives the attempt that a row of `attempts` is."""
    return Attempt(
        number=row["number"],
        worker=row["worker"],
        started=datetime.fromtimestamp(row["started"], UTC),
        ended=None if row["ended"] is None else datetime.fromtimestamp(row["ended"], UTC),
        outcome=row["outcome"],
        exit_code=row["exit_code"],
        error=row["error"],
    )
