"""The states of a job, enumerated: every event in every state, and every end of an attempt."""

from itertools import product
from typing import get_args

import pytest

from agentix.oanix.errors import JobError
from agentix.oanix.jobs.job import AttemptOutcome, StatusName
from agentix.oanix.jobs.states import (
    MOVES,
    JobEvent,
    JobRecord,
    effect_on_dependants,
    event_of_end,
    has_ended,
)

STATUSES: tuple[StatusName, ...] = get_args(StatusName)
OUTCOMES: tuple[AttemptOutcome, ...] = get_args(AttemptOutcome)

NEXT = {
    ("pending", JobEvent.DEPENDENCY_SUCCEEDED): "pending",
    ("pending", JobEvent.DEPENDENCY_FAILED): "failed",
    ("pending", JobEvent.CLAIMED): "running",
    ("pending", JobEvent.CANCEL_REQUESTED): "cancelled",
    ("running", JobEvent.CANCEL_REQUESTED): "running",
    ("running", JobEvent.SUCCEEDED): "completed",
    ("running", JobEvent.EXITED): "completed",
    ("running", JobEvent.FAILED): "failed",
    ("running", JobEvent.STOPPED): "cancelled",
    ("running", JobEvent.RETRIED): "pending",
    ("running", JobEvent.GIVEN_BACK): "pending",
}
"""All moves that there are."""


@pytest.mark.parametrize(("status", "event"), list(product(STATUSES, JobEvent)))
def test_every_event_in_every_state_moves_the_job_or_is_refused(
    status: StatusName, event: JobEvent
) -> None:
    record = JobRecord(status, retries=2)
    if (status, event) not in NEXT:
        with pytest.raises(JobError, match=f"^a job that is {status} cannot be {event}$"):
            record.after(event)
        return
    after = record.after(event)
    assert after.status == NEXT[status, event]
    assert after.unmet == record.unmet - (event is JobEvent.DEPENDENCY_SUCCEEDED)
    assert after.retries == 2 - (event is JobEvent.RETRIED)
    assert after.cancelled == (event is JobEvent.CANCEL_REQUESTED)


def test_a_job_with_unmet_dependencies_is_not_claimed() -> None:
    waiting = JobRecord(unmet=2)
    with pytest.raises(JobError, match=r"^a job that is pending cannot be claimed$"):
        waiting.after(JobEvent.CLAIMED)
    freed = waiting.after(JobEvent.DEPENDENCY_SUCCEEDED).after(JobEvent.DEPENDENCY_SUCCEEDED)
    assert freed.after(JobEvent.CLAIMED).status == "running"


def test_three_states_are_final() -> None:
    assert set(MOVES) == set(STATUSES)
    assert {status for status in STATUSES if has_ended(status)} == {
        *("completed", "failed", "cancelled")
    }


def expected_status(
    outcome: AttemptOutcome, exit_code: int | None, cancelled: bool, retries: int
) -> StatusName:
    """Say what the documentation says, one sentence after the other."""
    if outcome == "completed":
        is_retried = exit_code != 0 and retries > 0 and not cancelled
        return "pending" if is_retried else "completed"
    if cancelled or outcome == "cancelled":
        return "cancelled"
    if outcome == "interrupted" or retries > 0:
        return "pending"
    return "failed"


@pytest.mark.parametrize(
    ("outcome", "exit_code", "cancelled", "retries"),
    [
        (outcome, exit_code, cancelled, retries)
        for outcome, cancelled, retries in product(OUTCOMES, (False, True), (0, 1))
        for exit_code in ((0, 1) if outcome == "completed" else (None,))
    ],
)
def test_every_end_of_an_attempt_leads_to_one_state(
    outcome: AttemptOutcome, exit_code: int | None, cancelled: bool, retries: int
) -> None:
    record = JobRecord("running", retries=retries, cancelled=cancelled)
    event = event_of_end(record, outcome, exit_code)
    after = record.after(event)
    assert after.status == expected_status(outcome, exit_code, cancelled, retries)
    is_retried = after.status == "pending" and outcome != "interrupted"
    assert after.retries == retries - is_retried
    expected = None if after.status == "pending" else JobEvent.DEPENDENCY_FAILED
    if (outcome, exit_code) == ("completed", 0):
        expected = JobEvent.DEPENDENCY_SUCCEEDED
    assert effect_on_dependants(event, after.status) == expected


@pytest.mark.parametrize(("status", "event"), NEXT)
def test_only_an_end_concerns_the_jobs_that_come_after(status: StatusName, event: JobEvent) -> None:
    after = JobRecord(status).after(event).status
    effects = {
        JobEvent.SUCCEEDED: JobEvent.DEPENDENCY_SUCCEEDED,
        JobEvent.EXITED: JobEvent.DEPENDENCY_FAILED,
        JobEvent.FAILED: JobEvent.DEPENDENCY_FAILED,
        JobEvent.STOPPED: JobEvent.DEPENDENCY_FAILED,
        JobEvent.DEPENDENCY_FAILED: JobEvent.DEPENDENCY_FAILED,
    }
    expected = effects.get(event)
    if (status, event) == ("pending", JobEvent.CANCEL_REQUESTED):
        expected = JobEvent.DEPENDENCY_FAILED
    assert effect_on_dependants(event, after) == expected
