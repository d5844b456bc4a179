"""The states of a job: every move that its status can make, without SQL, processes or clocks.

    pending ── claimed ──► running ── succeeded, exited ──► completed
     │ │ ▲                  │ │ │
     │ │ └─ retried, ───────┘ │ └──── failed ─────────────► failed
     │ │    given back        └────── stopped ────────────► cancelled
     │ └─ cancel requested ───────────────────────────────► cancelled
     └─ dependency failed ────────────────────────────────► failed

A job waits as pending while `unmet` of its dependencies have not succeeded. Everything that
changes a status is in this file; the store records what it says.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from agentix.oanix.errors import JobError
from agentix.oanix.jobs.job import AttemptOutcome, StatusName

__all__ = ["MOVES", "JobEvent", "JobRecord", "effect_on_dependants", "event_of_end", "has_ended"]


class JobEvent(StrEnum):
    """What happens to a job."""

    DEPENDENCY_SUCCEEDED = "freed of a dependency"
    """A job that it comes after has succeeded."""
    DEPENDENCY_FAILED = "failed by a dependency"
    """A job that it comes after has ended without success."""
    CLAIMED = "claimed"
    """A worker starts an attempt."""
    CANCEL_REQUESTED = "cancelled"
    """A user cancels it; an attempt that is under way is told to stop."""
    SUCCEEDED = "completed"
    """An attempt ended with exit code 0."""
    EXITED = "ended"
    """The last attempt ended with another exit code."""
    FAILED = "failed"
    """The last attempt failed, or ended with its worker."""
    STOPPED = "stopped"
    """An attempt ended without coming to its own end, after the job was cancelled."""
    RETRIED = "tried again"
    """An attempt did not succeed, and the job may be tried again."""
    GIVEN_BACK = "given back"
    """An attempt was interrupted by an orderly stop of its worker."""


MOVES: Final[Mapping[StatusName, Mapping[JobEvent, StatusName]]] = {
    "pending": {
        JobEvent.DEPENDENCY_SUCCEEDED: "pending",
        JobEvent.DEPENDENCY_FAILED: "failed",
        JobEvent.CLAIMED: "running",
        JobEvent.CANCEL_REQUESTED: "cancelled",
    },
    "running": {
        JobEvent.CANCEL_REQUESTED: "running",
        JobEvent.SUCCEEDED: "completed",
        JobEvent.EXITED: "completed",
        JobEvent.FAILED: "failed",
        JobEvent.STOPPED: "cancelled",
        JobEvent.RETRIED: "pending",
        JobEvent.GIVEN_BACK: "pending",
    },
    "completed": {},
    "failed": {},
    "cancelled": {},
}
"""The status after each event; what is not here cannot happen."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What the moves of a job depend on."""

    status: StatusName = "pending"
    """How the job stands."""
    unmet: int = 0
    """Dependencies that have not succeeded."""
    retries: int = 0
    """Further attempts that it may have."""
    cancelled: bool = False
    """A user has cancelled it."""

    def after(self, event: JobEvent) -> "JobRecord":
        """Return the record after an event.

        Raises:
            JobError: The event cannot happen to a job of this status.
        """
        status = MOVES[self.status].get(event)
        if status is None or (event is JobEvent.CLAIMED and self.unmet):
            raise JobError(f"a job that is {self.status} cannot be {event}")
        return JobRecord(
            status=status,
            unmet=self.unmet - (event is JobEvent.DEPENDENCY_SUCCEEDED),
            retries=self.retries - (event is JobEvent.RETRIED),
            cancelled=self.cancelled or event is JobEvent.CANCEL_REQUESTED,
        )


def has_ended(status: StatusName) -> bool:
    """Return whether a status is final."""
    return not MOVES[status]


def event_of_end(record: JobRecord, outcome: AttemptOutcome, exit_code: int | None) -> JobEvent:
    """Return what the end of an attempt is to its job."""
    if outcome == "completed" and exit_code == 0:
        return JobEvent.SUCCEEDED
    if outcome == "cancelled" or (record.cancelled and outcome != "completed"):
        return JobEvent.STOPPED
    if outcome == "interrupted":
        return JobEvent.GIVEN_BACK
    if record.retries > 0 and not record.cancelled:
        return JobEvent.RETRIED
    return JobEvent.EXITED if outcome == "completed" else JobEvent.FAILED


def effect_on_dependants(event: JobEvent, status: StatusName) -> JobEvent | None:
    """Return what an event that led to a status is to the jobs that come after."""
    if event is JobEvent.SUCCEEDED:
        return JobEvent.DEPENDENCY_SUCCEEDED
    return JobEvent.DEPENDENCY_FAILED if has_ended(status) else None
