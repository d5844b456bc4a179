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
from agentix.oanix.jobs.store import (
    POLL_SECONDS,
    JobDirectory,
    JobStore,
    ProcessLock,
    lock_holder,
)
from agentix.oanix.jobs.worker import EXIT_STUCK

__all__ = ["IDLE_SECONDS", "MAX_CONCURRENT", "Manager", "main", "start_manager"]

logger = logging.getLogger(__name__)

MAX_CONCURRENT = 4
"""Jobs that run at once unless a manager is told otherwise."""

IDLE_SECONDS = 10.0
"""Seconds that a manager which was started on demand stays when there is nothing to do."""

LEAVE_SECONDS = 10.0
"""Seconds that a worker has to leave before it is killed."""

EXPECTED_EXIT_CODES = (0, EXIT_STUCK, -signal.SIGKILL, -signal.SIGTERM)
"""How workers end that could work."""

MAX_FAILED_STARTS = 3
"""Workers in a row that could not work, after which the manager gives up."""


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """A worker that the manager started."""

    name: str
    """The worker's own name."""
    process: "subprocess.Popen[bytes]"

    @classmethod
    def start(cls, directory: JobDirectory, limit: int) -> "WorkerProcess":
        """Start a worker."""
        name = uuid.uuid4().hex
        process = subprocess.Popen(
            [
                *_python_command("agentix.oanix.jobs.worker"),
                *(str(directory.path), name, str(limit)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        return cls(name, process)

    def leave(self) -> None:
        """Tell the worker to leave after the job that it has."""
        assert self.process.stdin is not None
        self.process.stdin.close()


class Manager:
    """A manager of the jobs of a directory: it starts workers, and settles what they leave.

    ```python
    from agentix.oanix import MapFs, Namespace, NamespaceSpec
    from agentix.oanix.jobs import AgentTool, JobQueue, JobSpec, Manager

    notes = Namespace.builder().mount("/notes", MapFs({"todo": b"buy milk"})).build()
    job = JobSpec(
        kind=AgentTool(name="read", args=("/notes/todo",)),
        namespace=NamespaceSpec.model_validate(notes.spec()),
    )
    with JobQueue("queue") as queue:
        queue.submit(job, start=False)
        Manager(queue.directory, max_concurrent=1).run()
        assert queue.get(job.id).status.exit_code == 0
    ```

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
        self.directory = directory
        """Where the jobs are."""
        self._limit = max_concurrent
        self._linger = linger
        self._workers: list[WorkerProcess] = []
        self._failed_starts = 0
        self._stopping = False

    def stop(self) -> None:
        """Make `run` give the jobs that run back to the queue, and return.

        It may be called by a signal handler.
        """
        self._stopping = True

    def stop_at_signals(self) -> None:
        """Call `stop` at SIGTERM and SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.stop())

    def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Run jobs until there are none, or until it is stopped.

        Args:
            ready: Is called when the manager has the directory.

        Raises:
            JobError: Another manager has the directory, or no worker can work.
        """
        while True:
            lock = ProcessLock(self.directory.manager)
            ready()
            try:
                with JobStore(self.directory) as store:
                    self._manage(store)
            finally:
                lock.release()
            # Who submits a job looks for a manager after it, so one of both sees the other.
            if self._stopping or not self._has_more():
                return

    def _has_more(self) -> bool:
        with JobStore(self.directory) as store:
            return store.ready(1) > 0 and lock_holder(self.directory.manager) is None

    def _manage(self, store: JobStore) -> None:
        """Keep workers running until there is nothing to do for them, or until it is stopped."""
        busy = time.monotonic()
        try:
            while not self._stopping:
                self._settle(store)
                self._start_workers(store)
                now = time.monotonic()
                if store.ready(1) or store.running():
                    busy = now
                elif self._linger is not None and now >= busy + self._linger:
                    return
                time.sleep(POLL_SECONDS)
            for worker in self._workers:
                worker.process.send_signal(signal.SIGTERM)
        finally:
            self._end_workers(store)

    def _start_workers(self, store: JobStore) -> None:
        """Start workers up to the limit, as many as there are jobs."""
        wanted = min(self._limit, store.ready(self._limit) + store.running())
        while len(self._workers) < wanted:
            self._workers.append(WorkerProcess.start(self.directory, self._limit))

    def _settle(self, store: JobStore) -> None:
        """End the attempts of workers that are gone; of others than our own, too.

        Raises:
            JobError: Too many workers in a row ended by themselves without a job.
        """
        for worker in list(self._workers):
            code = worker.process.poll()
            if code is None:
                continue
            self._workers.remove(worker)
            worker.leave()
            logger.info("worker %s ended with %s", worker.process.pid, code)
            lost = store.settle_lost({worker.name: f"worker {_described(code)}"}, self._names())
            has_failed = code not in EXPECTED_EXIT_CODES and lost == 0
            self._failed_starts = self._failed_starts + 1 if has_failed else 0
        if self._failed_starts >= MAX_FAILED_STARTS:
            raise JobError(
                f"{MAX_FAILED_STARTS} workers in a row could not work; what they say is above"
            )
        # A worker loses its lock before it can be waited for (do_exit closes files first), so
        # those of our own are left until their exit code is known.
        store.settle_lost(spare=self._names())

    def _names(self) -> list[str]:
        return [worker.name for worker in self._workers]

    def _end_workers(self, store: JobStore) -> None:
        """Let the workers leave, and kill those that do not."""
        for worker in self._workers:
            worker.leave()
        until = time.monotonic() + LEAVE_SECONDS
        for worker in self._workers:
            try:
                worker.process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
        self._workers.clear()
        store.settle_lost()


def _described(code: int) -> str:
    if code >= 0:
        return f"exited with {code}"
    return f"was killed by signal {-code} ({signal.Signals(-code).name})"


def _python_command(module: str) -> list[str]:
    """Return the command that calls `main` of a module, with this Python and its paths."""
    path = [entry for entry in sys.path if entry]
    start = f"import sys; sys.path[:] = {path!r}; from {module} import main; sys.exit(main())"
    return [sys.executable, "-I", "-S", "-X", "utf8", "-c", start]


def start_manager(directory: JobDirectory) -> None:
    """Start a manager in the background, unless there is one; it leaves when it has nothing to do.

    Raises:
        JobError: It does not start; the message says where it wrote why.
    """
    with directory.start.open("wb") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if lock_holder(directory.manager) is None and _start_detached(directory) != 0:
            raise JobError(f"the manager did not start: see {directory.manager_log}")


def _start_detached(directory: JobDirectory) -> int:
    """Start a manager, and return the exit code of what waited until it had the directory."""
    command = [*_python_command("agentix.oanix.jobs.manager"), str(directory.path), "--detach"]
    with directory.manager_log.open("ab") as log:
        return subprocess.run(
            [*command, "--linger", str(IDLE_SECONDS)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            check=False,
        ).returncode


def main(arguments: Sequence[str] | None = None) -> int:
    """Manage a queue as the command line says."""
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
    manager.stop_at_signals()
    manager.run()
    return 0


def _detach(manager: Manager) -> int:
    """Go on in a process of its own session; this one ends when that has the directory."""
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        return 0 if os.read(reader, 1) else 1
    os.close(reader)
    os.setsid()
    os.chdir("/")

    def ready() -> None:
        os.write(writer, b"r")

    manager.stop_at_signals()
    try:
        manager.run(ready)
    except JobError as error:
        logger.info("%s", error)
        if lock_holder(manager.directory.manager) is not None:
            ready()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
