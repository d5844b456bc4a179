"""Manager: starts workers for the jobs of a directory, and settles what a worker that ended had.

There is one manager for a directory. When it is killed its workers finish the jobs that they have
and leave; the next manager goes on with the queue.
"""

import argparse
import fcntl
import logging
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentix.oanix.errors import JobError
from agentix.oanix.jobs.directory import JobDirectory
from agentix.oanix.jobs.lock import ProcessLock, holder
from agentix.oanix.jobs.process import STUCK, Wakeup, catch_signals, python_command
from agentix.oanix.jobs.store import JobStore
from agentix.oanix.jobs.watch import Watch, wait_for

__all__ = ["LINGER", "MAX_CONCURRENT", "Manager", "main", "start_manager"]

logger = logging.getLogger(__name__)

MAX_CONCURRENT = 4
"""Jobs that run at once unless a manager is told otherwise."""

LINGER = 10.0
"""Seconds that a manager which was started on demand stays when there is nothing to do."""

LOOK = 1.0
"""Seconds after which a manager looks around though nothing told it to."""

PAUSE = 0.02
"""Seconds between two looks at the store at least."""

LEAVING = 10.0
"""Seconds that a worker has to leave before it is killed."""

SOUND = (0, STUCK, -signal.SIGKILL, -signal.SIGTERM)
"""How workers end that could work."""

FUTILE = 3
"""Workers in a row that could not work, after which the manager gives up."""


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """A worker that the manager started."""

    name: str
    """The worker's own name."""
    process: "subprocess.Popen[bytes]"
    pidfd: int
    """Can be read when the process has ended."""

    @classmethod
    def start(cls, directory: JobDirectory, limit: int) -> "WorkerProcess":
        """Starts a worker."""
        name = uuid.uuid4().hex
        arguments = [str(directory.path), name, str(limit)]
        process = subprocess.Popen(
            [*python_command("agentix.oanix.jobs.worker"), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        return cls(name, process, os.pidfd_open(process.pid))

    def fileno(self) -> int:
        """Gives the descriptor that can be read when the process has ended."""
        return self.pidfd

    def leave(self) -> None:
        """Has the worker leave after the job that it has."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def reap(self, timeout: float | None = 0.0) -> int | None:
        """Gives the exit code of a worker that ended; `None` where it has not."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        self.leave()
        os.close(self.pidfd)
        return code


class Manager:
    """Runs the jobs of a directory.

    Args:
        directory: Where the jobs are.
        max_concurrent: Jobs that run at once.
        linger: Seconds to stay when there is nothing to do; `None` stays for good.

    Raises:
        JobError: No job could ever run.
    """

    def __init__(
        self,
        directory: JobDirectory,
        *,
        max_concurrent: int = MAX_CONCURRENT,
        linger: float | None = 0.0,
    ) -> None:
        if max_concurrent < 1:
            raise JobError(f"a manager runs at least one job at once, and not {max_concurrent}")
        self._directory = directory
        self._limit = max_concurrent
        self._linger = linger
        self._workers: list[WorkerProcess] = []
        self._futile = 0

    def run(self, signals: Wakeup, ready: Callable[[], None] = lambda: None) -> None:
        """Runs jobs until there are none, or until a signal comes.

        Args:
            signals: Is readable after a signal.
            ready: Is called when the manager has the directory.

        Raises:
            JobError: Another manager has the directory, or no worker can work.
        """
        while True:
            lock = ProcessLock(self._directory.manager)
            ready()
            try:
                with JobStore(self._directory) as store:
                    stopped = self._manage(store, signals)
            finally:
                lock.release()
            # Who submits a job looks for a manager after it, so one of both sees the other.
            if stopped or not self._has_more():
                return

    def _has_more(self) -> bool:
        with JobStore(self._directory) as store:
            return store.ready(1) > 0 and holder(self._directory.manager) is None

    def _manage(self, store: JobStore, signals: Wakeup) -> bool:
        """Manages until there is nothing to do; tells whether a signal ended it."""
        paths = [self._directory.work.path, self._directory.ends.path]
        busy = time.monotonic()
        with Watch(paths) as watch:
            try:
                while True:
                    watch.clear()
                    self._settle(store)
                    self._start_workers(store)
                    now = time.monotonic()
                    if store.ready(1) or store.running():
                        busy = now
                    elif self._linger is not None and now >= busy + self._linger:
                        return False
                    if self._wait(signals, watch, busy):
                        self._interrupt()
                        return True
            finally:
                self._end_workers(store)

    def _wait(self, signals: Wakeup, watch: Watch, busy: float) -> bool:
        """Waits for something to do; tells whether a signal came."""
        until = LOOK
        if self._linger is not None:
            until = min(LOOK, max(0.0, busy + self._linger - time.monotonic()) or LOOK)
        ready = wait_for([signals, *self._workers], PAUSE)
        if not ready:
            ready = wait_for([signals, watch, *self._workers], until)
        return signals.fileno() in ready

    def _start_workers(self, store: JobStore) -> None:
        """Starts workers up to the limit, as many as there are jobs."""
        wanted = min(self._limit, store.ready(self._limit) + store.running())
        while len(self._workers) < wanted:
            self._workers.append(WorkerProcess.start(self._directory, self._limit))

    def _settle(self, store: JobStore) -> None:
        """Settles what the workers had that have ended; others than our own, too."""
        for worker in list(self._workers):
            code = worker.reap()
            if code is None:
                continue
            self._workers.remove(worker)
            logger.info("worker %s ended with %s", worker.process.pid, code)
            lost = store.settle_lost({worker.name: f"worker {_described(code)}"})
            self._note(code, lost)
        store.settle_lost()

    def _note(self, code: int, lost: int) -> None:
        """Counts workers that end by themselves and had no job.

        Raises:
            JobError: There were too many in a row.
        """
        futile = code not in SOUND and lost == 0
        self._futile = self._futile + 1 if futile else 0
        if self._futile >= FUTILE:
            raise JobError(f"{FUTILE} workers in a row could not work; what they say is above")

    def _interrupt(self) -> None:
        """Has the workers give their jobs back to the queue."""
        for worker in self._workers:
            worker.process.send_signal(signal.SIGTERM)

    def _end_workers(self, store: JobStore) -> None:
        """Has the workers leave, and kills those that do not."""
        for worker in self._workers:
            worker.leave()
        until = time.monotonic() + LEAVING
        for worker in self._workers:
            if worker.reap(max(0.0, until - time.monotonic())) is None:
                worker.process.kill()
                worker.reap(None)
        self._workers.clear()
        store.settle_lost()


def _described(code: int) -> str:
    if code >= 0:
        return f"exited with {code}"
    return f"was killed by signal {-code} ({signal.Signals(-code).name})"


def start_manager(directory: JobDirectory) -> None:
    """Starts a manager in the background, unless there is one; it leaves when it has nothing to do.

    Raises:
        JobError: It does not start; the message says where it wrote why.
    """
    with directory.start.open("wb") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if holder(directory.manager) is None and _start_detached(directory) != 0:
            raise JobError(f"the manager did not start: see {directory.manager_log}")


def _start_detached(directory: JobDirectory) -> int:
    """Starts a manager, and gives the exit code of what waited until it had the directory."""
    command = [*python_command("agentix.oanix.jobs.manager"), str(directory.path), "--detach"]
    with directory.manager_log.open("ab") as log:
        return subprocess.run(
            [*command, "--linger", str(LINGER)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            check=False,
        ).returncode


def main(arguments: Sequence[str] | None = None) -> int:
    """Manages as the command line says."""
    parser = argparse.ArgumentParser(prog="agentix-oanix manager", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--max-concurrent", type=int, default=MAX_CONCURRENT, metavar="N")
    parser.add_argument("--linger", type=float, metavar="S")
    parser.add_argument("--detach", action="store_true")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    manager = Manager(
        JobDirectory(options.directory),
        max_concurrent=options.max_concurrent,
        linger=options.linger,
    )
    if options.detach:
        return _detach(manager)
    manager.run(catch_signals([signal.SIGTERM, signal.SIGINT]))
    return 0


def _detach(manager: Manager) -> int:
    """Goes on in a process of its own session; this one ends when that has the directory."""
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        return 0 if os.read(reader, 1) else 1
    os.close(reader)
    os.setsid()
    os.chdir("/")

    def ready() -> None:
        os.write(writer, b"r")

    try:
        manager.run(catch_signals([signal.SIGTERM, signal.SIGINT]), ready)
    except JobError as error:
        logger.info("%s", error)
        if holder(manager._directory.manager) is not None:
            ready()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
