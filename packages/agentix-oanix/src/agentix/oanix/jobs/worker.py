"""Worker: a process that takes jobs from a store, one after the other, and runs them.

A thread of its own runs the jobs, and the main thread watches over it. A worker leaves after the
job that it has when its standard input ends, which the manager holds the other end of. At SIGTERM
it gives the job back to the queue first.
"""

import argparse
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from agentix.oanix.jobs.directory import JobDirectory
from agentix.oanix.jobs.execution import Execution
from agentix.oanix.jobs.lock import ProcessLock
from agentix.oanix.jobs.process import STUCK, Wakeup, catch_signals
from agentix.oanix.jobs.store import Claim, End, JobStore
from agentix.oanix.jobs.tool import ToolRegistry
from agentix.oanix.jobs.toolbox import TOOLBOX
from agentix.oanix.jobs.watch import Watch, wait_for
from agentix.oanix.machine import Machine
from agentix.oanix.places import modules_directory

__all__ = ["GRACE", "Worker", "main"]

logger = logging.getLogger(__name__)

GRACE = 3.0
"""Seconds that a job has to end after its job was stopped or its time was over."""

LOOK = 1.0
"""Seconds after which a worker looks for work though nothing told it to."""

STDIN = 0


class Task:
    """The job that a worker has, and when it must have ended."""

    def __init__(self, claim: Claim, execution: Execution) -> None:
        self.claim = claim
        self.execution = execution
        timeout = claim.spec.timeout_secs
        self.overdue = None if timeout is None else time.monotonic() + timeout + GRACE

    def stop(self, interrupted: bool) -> None:
        """Stops the job."""
        self.execution.stop.stop("interrupted" if interrupted else "cancelled")
        end = time.monotonic() + GRACE
        self.overdue = end if self.overdue is None else min(end, self.overdue)

    def end(self) -> End:
        """Gives the end of a job that did not end when it was told to."""
        why = self.execution.stop.why
        if why is None:
            return End("failed", error=f"timeout: the job did not end within {GRACE} s after it")
        return End(why, error=f"the job did not end within {GRACE} s")


class Worker:
    """Takes jobs and runs them, until it is to leave.

    Args:
        directory: Where the jobs are.
        name: The worker's own name, which no other worker of the directory has had.
        limit: Attempts that may be under way at once, in all workers.
        machine: Runs the programs.
        tools: What jobs may call.
    """

    def __init__(
        self,
        directory: JobDirectory,
        name: str,
        limit: int,
        machine: Machine,
        tools: ToolRegistry,
    ) -> None:
        self._directory = directory
        self._name = name
        self._limit = limit
        self._machine = machine
        self._tools = tools
        self._leaving, self._left = Wakeup(), Wakeup()
        self._is_leaving = self._is_interrupted = self._has_failed = False
        self._task: Task | None = None
        self._turn = threading.Lock()

    def run(self, signals: Wakeup) -> bool:
        """Works until standard input ends or a signal comes.

        Args:
            signals: Is readable after a signal.

        Returns:
            Whether the worker could do its work to the end.

        Raises:
            JobError: Another worker has this name.
        """
        lock = ProcessLock(self._directory.worker(self._name))
        runner = threading.Thread(target=self._work, name="jobs", daemon=True)
        runner.start()
        self._watch_over(signals)
        runner.join()
        self._directory.worker(self._name).unlink()
        lock.release()
        return not self._has_failed

    def _work(self) -> None:
        """Takes and runs jobs."""
        try:
            with JobStore(self._directory) as store, Watch([self._directory.work.path]) as watch:
                while not self._is_leaving:
                    watch.clear()
                    claim = store.claim(self._name, self._limit)
                    if claim is None:
                        wait_for([watch, self._leaving], LOOK)
                    else:
                        store.finish(claim, self._perform(store, claim))
        except Exception:
            self._has_failed = True
            logger.exception("the worker can not go on")
        finally:
            self._left.set()

    def _perform(self, store: JobStore, claim: Claim) -> End:
        logs = self._directory.logs(claim.spec.id)
        task = Task(claim, Execution(claim.spec, self._machine, self._tools, logs))
        with self._turn:
            self._task = task
            if self._is_interrupted:
                task.stop(interrupted=True)
        if store.is_cancelled(claim):
            task.stop(interrupted=False)
        try:
            return task.execution.run()
        except Exception as error:
            logger.exception("attempt %s of job %s failed", claim.number, claim.spec.id)
            return End("failed", error=repr(error))
        finally:
            with self._turn:
                self._task = None

    def _watch_over(self, signals: Wakeup) -> None:
        """Stops jobs that are cancelled, and sees when the worker is to leave."""
        sources: list[Wakeup | Watch | int] = [self._left, signals, STDIN]
        with (
            JobStore(self._directory) as store,
            Watch([self._directory.cancels.path]) as cancels,
        ):
            while True:
                ready = wait_for([cancels, *sources], LOOK)
                if self._left.fileno() in ready:
                    return
                if cancels.fileno() in ready:
                    cancels.clear()
                    self._stop_cancelled(store)
                if STDIN in ready:
                    sources.remove(STDIN)
                    self._leave()
                if signals.fileno() in ready:
                    signals.taken()
                    self._interrupt()
                self._end_overdue(store)

    def _leave(self) -> None:
        self._is_leaving = True
        self._leaving.set()

    def _interrupt(self) -> None:
        self._leave()
        with self._turn:
            self._is_interrupted = True
            if self._task is not None:
                self._task.stop(interrupted=True)

    def _stop_cancelled(self, store: JobStore) -> None:
        task = self._task
        if task is not None and store.is_cancelled(task.claim):
            task.stop(interrupted=False)

    def _end_overdue(self, store: JobStore) -> None:
        """Ends the worker, where its job does not: no thread can be made to end."""
        with self._turn:
            task = self._task
            if task is None or task.overdue is None or time.monotonic() < task.overdue:
                return
            logger.warning("job %s did not end, so its worker does", task.claim.spec.id)
            store.finish(task.claim, task.end())
            os._exit(STUCK)


def main(arguments: Sequence[str] | None = None) -> int:
    """Works as the command line says."""
    parser = argparse.ArgumentParser(prog="agentix-oanix worker", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("name")
    parser.add_argument("limit", type=int)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signals = catch_signals([signal.SIGTERM])
    machine = Machine(modules_directory(os.environ))
    directory = JobDirectory(options.directory)
    worker = Worker(directory, options.name, options.limit, machine, ToolRegistry(TOOLBOX))
    return 0 if worker.run(signals) else 1


if __name__ == "__main__":
    sys.exit(main())
