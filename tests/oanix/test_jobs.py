"""The queue: order, limits, and what it survives; managers and workers are real processes."""

import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from agentix.oanix.errors import JobError
from agentix.oanix.jobs import Attempt, Cancelled, Completed, Failed, JobStore, Pending, Running
from agentix.oanix.jobs.store import AttemptEnd
from tests.oanix.job_processes import Workplace, wait_until


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Workplace]:
    workplace = Workplace(tmp_path)
    yield workplace
    workplace.queue.close()


def most_at_once(attempts: list[Attempt]) -> int:
    """Return how many attempts were under way at one time."""
    starts = [(attempt.started, 1) for attempt in attempts]
    ends = [(attempt.ended, -1) for attempt in attempts if attempt.ended is not None]
    now, most = 0, 0
    for _, change in sorted([*starts, *ends]):
        now += change
        most = max(most, now)
    return most


def test_a52_priority_comes_before_the_order_of_submission(work: Workplace) -> None:
    for name, priority in (("a", 0), ("b", 5), ("c", -1), ("d", 5), ("e", 0), ("f", 9)):
        work.submit("mark", "/w/order", name, priority=priority)
    work.run("--max-concurrent", "1")
    assert work.lines("order") == ["f", "b", "d", "a", "e", "c"]
    assert {job.status for job in work.queue.jobs()} == {Completed(exit_code=0)}


def test_a52_no_more_jobs_run_at_once_than_may(work: Workplace) -> None:
    jobs = [work.submit("mark", "/w/begun", str(n), "await", "/w/go") for n in range(6)]
    with work.manager("--max-concurrent", "3"):
        wait_until(lambda: len(work.lines("begun")) == 3)
        standing = [work.get(job).status for job in jobs]
        assert standing == [Running()] * 3 + [Pending()] * 3
        work.let_go()
        attempts = [attempt for job in jobs for attempt in work.ended(job).attempts]
    assert len(attempts) == 6
    assert most_at_once(attempts) == 3


def test_a52_waiting_and_running_jobs_are_cancelled(work: Workplace) -> None:
    running = work.submit("mark", "/w/begun", "x", "loop")
    waiting = work.submit("mark", "/w/begun", "never")
    following = work.submit("mark", "/w/begun", "never", after=[waiting])
    last = work.submit("print", "last")
    with work.manager("--max-concurrent", "1"):
        wait_until(lambda: work.lines("begun") == ["x"])
        work.queue.cancel(waiting)
        assert work.get(waiting).status == Cancelled()
        work.queue.cancel(running)
        assert work.ended(running).status == Cancelled()
        assert work.ended(last).status == Completed(exit_code=0)
    assert work.lines("begun") == ["x"]
    assert work.outcomes(running) == ["cancelled"]
    assert work.outcomes(waiting) == []
    error = f"job {waiting}, which it comes after, did not succeed"
    assert work.get(following).status == Failed(error=error)
    for job in (running, waiting, last):
        with pytest.raises(JobError, match=f"job {job} has ended: it is c"):
            work.queue.cancel(job)


def test_a53_the_job_of_a_killed_worker_is_tried_again(work: Workplace) -> None:
    job = work.submit("mark", "/w/runs", "run", "print", "begun", "await", "/w/go", retries=1)
    with work.manager():
        wait_until(lambda: work.queue.output(job) == b"begun\n")
        work.kill_worker_of(job)
        wait_until(lambda: len(work.lines("runs")) == 2)
        assert work.outcomes(job) == ["lost", None]
        work.let_go()
        assert work.ended(job).status == Completed(exit_code=0)
    assert work.outcomes(job) == ["lost", "completed"]
    assert work.get(job).attempts[0].error == "its worker was killed by signal 9 (SIGKILL)"
    assert work.lines("runs") == ["run", "run"]
    assert work.queue.output(job) == b"begun\nbegun\n"


def test_a53_the_job_of_a_killed_worker_fails_without_retries(work: Workplace) -> None:
    job = work.submit("mark", "/w/runs", "run", "loop")
    with work.manager():
        wait_until(lambda: work.lines("runs") == ["run"])
        work.kill_worker_of(job)
        failed = work.ended(job)
    assert failed.status == Failed(error="its worker was killed by signal 9 (SIGKILL)")
    assert work.lines("runs") == ["run"]


def test_a53_however_workers_die_each_run_is_known(work: Workplace) -> None:
    """Workers are killed at random moments; every job completes, and each of its runs counts."""
    chance = random.Random(53)
    jobs = [work.submit("mark", "/w/runs", str(n), retries=20) for n in range(24)]
    with work.manager("--max-concurrent", "2"):
        for killed in range(5):
            wait_until(partial(has_lines, work, 4 * killed + 1))
            wait_until(work.workers)
            victim = chance.choice(work.workers())
            os.kill(victim, signal.SIGKILL)
            wait_until(partial(is_gone, work, victim))
        statuses = [work.ended(job).status for job in jobs]
    assert statuses == [Completed(exit_code=0)] * 24
    for number, job in enumerate(jobs):
        outcomes = work.outcomes(job)
        assert outcomes == ["lost"] * (len(outcomes) - 1) + ["completed"]
        assert 1 <= work.lines("runs").count(str(number)) <= len(outcomes)


def has_lines(work: Workplace, count: int) -> bool:
    return len(work.lines("runs")) >= count


def is_gone(work: Workplace, worker: int) -> bool:
    return worker not in work.workers()


def submit_one_running_and_three(work: Workplace) -> tuple[UUID, list[UUID]]:
    running = work.submit("mark", "/w/runs", "first", "await", "/w/go")
    return running, [work.submit("mark", "/w/runs", str(n)) for n in range(3)]


def test_a54_a_stopped_manager_leaves_its_queue_to_the_next(work: Workplace) -> None:
    running, waiting = submit_one_running_and_three(work)
    with work.manager("--max-concurrent", "1") as manager:
        wait_until(lambda: work.lines("runs") == ["first"])
        manager.send_signal(signal.SIGTERM)
        assert manager.wait(30) == 0
    assert work.workers() == []
    assert [work.get(job).status for job in (running, *waiting)] == [Pending()] * 4
    assert work.outcomes(running) == ["interrupted"]
    work.let_go()
    work.run("--max-concurrent", "1")
    assert work.lines("runs") == ["first", "first", "0", "1", "2"]
    assert work.outcomes(running) == ["interrupted", "completed"]


def test_a54_a_killed_manager_leaves_its_queue_to_the_next(work: Workplace) -> None:
    running, waiting = submit_one_running_and_three(work)
    with work.manager("--max-concurrent", "1") as manager:
        wait_until(lambda: work.lines("runs") == ["first"])
        manager.kill()
        manager.wait()
        assert work.get(running).status == Running()
        assert [work.get(job).status for job in waiting] == [Pending()] * 3
        with work.manager("--max-concurrent", "1"):
            wait_until(lambda: len(work.workers()) == 2)
            work.let_go()
            assert [work.ended(job).status for job in (running, *waiting)] == [
                Completed(exit_code=0)
            ] * 4
    assert work.lines("runs") == ["first", "0", "1", "2"]
    assert work.outcomes(running) == ["completed"]
    # The worker of the killed manager counts among those that may run at once.
    assert most_at_once([job.attempts[0] for job in work.queue.jobs()]) == 1


def test_a54_what_died_with_the_manager_is_settled_by_the_next(work: Workplace) -> None:
    running = work.submit("mark", "/w/runs", "first", "await", "/w/go", retries=1)
    with work.manager() as manager:
        wait_until(lambda: work.lines("runs") == ["first"])
        worker = work.worker_of(running)
        manager.kill()
        os.kill(worker, signal.SIGKILL)
        manager.wait()
        wait_until(lambda: work.workers() == [])
        assert work.get(running).status == Running()
    work.let_go()
    work.run()
    assert work.get(running).status == Completed(exit_code=0)
    assert work.outcomes(running) == ["lost", "completed"]
    assert work.lines("runs") == ["first", "first"]


def test_a_killed_managers_worker_leaves_after_its_job(work: Workplace) -> None:
    running = work.submit("mark", "/w/runs", "first", "await", "/w/go")
    waiting = work.submit("mark", "/w/runs", "never")
    with work.manager("--max-concurrent", "1") as manager:
        wait_until(lambda: work.lines("runs") == ["first"])
        manager.kill()
        manager.wait()
        work.let_go()
        assert work.ended(running).status == Completed(exit_code=0)
        wait_until(lambda: work.workers() == [])
    assert work.get(waiting).status == Pending()
    assert work.lines("runs") == ["first"]


def test_one_manager_has_a_queue(work: Workplace) -> None:
    job = work.submit("await", "/w/go")
    with work.manager():
        wait_until(lambda: work.get(job).status == Running())
        with pytest.raises(subprocess.CalledProcessError) as refused:
            work.run()
        assert refused.value.returncode == 125
        work.let_go()
        assert work.ended(job).status == Completed(exit_code=0)


def test_a_failed_job_is_tried_again_as_often_as_it_may(work: Workplace) -> None:
    hopeless = work.submit("mark", "/w/runs", "h", "exit", "3", retries=2)
    work.submit("print", "x")
    # The first run makes the file that it needs, so the second one has it.
    second = work.submit("need", "/w/made", "print", "fine", retries=3)
    maker = work.submit("mark", "/w/made", "x")
    work.run("--max-concurrent", "1")
    assert work.get(hopeless).status == Completed(exit_code=3)
    assert work.lines("runs") == ["h", "h", "h"]
    assert work.outcomes(hopeless) == ["completed"] * 3
    assert work.get(second).status == Completed(exit_code=1)
    assert work.get(maker).status == Completed(exit_code=0)


def test_a_job_waits_for_those_it_comes_after(work: Workplace) -> None:
    one = work.submit("mark", "/w/order", "one")
    two = work.submit("mark", "/w/order", "two", after=[one])
    bad = work.submit("exit", "1", after=[two], priority=9)
    both = work.submit("mark", "/w/order", "both", after=[one, two, one], priority=9)
    never = work.submit("mark", "/w/order", "never", after=[both, bad])
    neither = work.submit("mark", "/w/order", "neither", after=[never])
    work.run("--max-concurrent", "2")
    assert work.lines("order") == ["one", "two", "both"]
    assert work.get(both).status == Completed(exit_code=0)
    error = f"job {bad}, which it comes after, did not succeed"
    assert work.get(never).status == Failed(error=error)
    assert work.outcomes(never) == []
    error = f"job {never}, which it comes after, did not succeed"
    assert work.get(neither).status == Failed(error=error)
    late = work.submit("print", "x", after=[neither])
    assert isinstance(work.get(late).status, Failed)
    ready = work.submit("print", "x", after=[one])
    assert work.get(ready).status == Pending()
    work.run()
    assert work.get(ready).status == Completed(exit_code=0)


def test_a_job_that_takes_too_long_fails(work: Workplace) -> None:
    looping = work.submit("print", "begun", "loop", timeout_secs=0.3)
    waiting = work.submit("await", "/w/never", timeout_secs=0.3)
    work.run()
    for job in (looping, waiting):
        assert work.get(job).status == Failed(error="timeout: the time is over")
    assert work.queue.output(looping) == b"begun\n"


def test_a_store_refuses_what_makes_no_sense(work: Workplace) -> None:
    job = work.submit("print", "x")
    spec = work.get(job).spec
    with pytest.raises(JobError, match=f"there is a job {job} already"):
        work.queue.submit(spec, start=False)
    unknown = uuid4()
    with pytest.raises(JobError, match=f"there is no job {unknown}"):
        work.submit("print", "x", after=[unknown])
    for ask in (work.queue.get, work.queue.cancel, work.queue.wait, work.queue.output):
        with pytest.raises(JobError, match=f"there is no job {unknown}"):
            ask(unknown)
    with pytest.raises(TimeoutError, match=f"job {job} is pending after 0.01 s"):
        work.queue.wait(job, 0.01)
    assert [found.spec.id for found in work.queue.jobs()] == [job]


def test_a_claim_is_recorded_before_anything_starts(work: Workplace) -> None:
    """The store alone: what a worker claims is running, and nobody else can have it."""
    job, more = work.submit("print", "x"), work.submit("print", "more")
    with JobStore(work.queue.directory) as store, JobStore(work.queue.directory) as other:
        claim = store.claim("worker-1", limit=1)
        assert claim is not None
        assert claim.spec.id == job
        assert other.claim("worker-2", limit=1) is None
        second = other.claim("worker-2", limit=2)
        assert second is not None
        assert second.spec.id == more
        assert store.claim("worker-3", limit=3) is None
        other.finish(second, AttemptEnd("completed", exit_code=0))
        assert store.get(more).status == Completed(exit_code=0)
        (attempt,) = other.get(job).attempts
        assert (attempt.number, attempt.worker, attempt.ended) == (1, "worker-1", None)
        # No process holds the lock of that worker.
        assert other.settle_lost(spare=["worker-1"]) == 0
        assert other.settle_lost() == 1
        assert other.get(job).status == Failed(error="its worker worker-1 ended")


def test_a_queue_of_another_version_is_refused(work: Workplace) -> None:
    directory = work.queue.directory
    with closing(sqlite3.connect(directory.database)) as database:
        database.execute("PRAGMA user_version = 1")
    message = f"{directory.database} cannot be used: it has version 1, not 2: take a new queue"
    with pytest.raises(JobError, match=f"^{re.escape(message)}$"):
        JobStore(directory)


def test_a_long_queue_is_not_counted_to_its_end(work: Workplace) -> None:
    for _ in range(3):
        work.submit("print", "x")
    with JobStore(work.queue.directory) as store:
        assert [store.ready(most) for most in (1, 2, 4)] == [1, 2, 3]


def test_a_manager_gives_up_where_no_worker_can_work(work: Workplace, tmp_path: Path) -> None:
    job = work.submit("print", "x")
    modules = tmp_path / "cache/agentix-oanix/modules"
    modules.mkdir(parents=True, mode=0o755)
    environment = work.environment({"XDG_CACHE_HOME": str(tmp_path / "cache")})
    command = [sys.executable, "-m", "agentix.oanix", "job", "--queue"]
    command += [str(work.queue.directory.path), "run"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (125, "")
    assert f"{modules} holds trusted code: chown it to you and chmod 700 it" in ran.stderr
    message = "agentix-oanix: 3 workers in a row could not work; what they say is above\n"
    assert ran.stderr.endswith(message)
    assert work.get(job).status == Pending()
