"""Managers of queues as processes of their own, and jobs of guests/steps.c for them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from agentix.oanix import MemFs, Namespace, WorkspaceFs
from agentix.oanix.jobs import Job, JobKind, JobQueue, JobSpec, Wasi
from agentix.oanix.jobs.store import lock_holder
from agentix.oanix.namespace import NamespaceSpec
from tests.oanix.programs import CACHE, compile_guest

DEADLINE = 60.0
"""Seconds after which something that should have happened has not."""

GUESTS = Path(__file__).parent / "guests"

Manager = subprocess.Popen[bytes]


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for a condition, and fail where it does not come."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "what should have happened has not"
        time.sleep(0.005)


def make_cache_home() -> Path:
    """Link the cache of programs that the other tests have to where commands look."""
    (CACHE / "modules").mkdir(mode=0o700, parents=True, exist_ok=True)
    link = CACHE / "home" / "agentix-oanix" / "modules"
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(CACHE / "modules")
    return CACHE / "home"


class Workplace:
    """A queue, and a directory that its jobs see at `/w`.

    Args:
        path: An empty directory.
    """

    def __init__(self, path: Path) -> None:
        self.shared = path / "shared"
        self.shared.mkdir()
        self.programs = path / "bin"
        self.programs.mkdir()
        for name in ("steps", "files"):
            (self.programs / f"{name}.wasm").write_bytes(compile_guest(GUESTS / f"{name}.c"))
        self.queue = JobQueue(path / "queue")

    def namespace(self) -> Namespace:
        """Return what jobs see unless they are told otherwise."""
        builder = Namespace.builder().mount("/w", WorkspaceFs(self.shared)).mount("/tmp", MemFs())
        return builder.mount("/bin", WorkspaceFs(self.programs), readonly=True).build()

    def submit(self, *steps: str, **more: Any) -> UUID:
        """Submit a job of guests/steps.c, and start no manager."""
        return self.submit_kind(Wasi(program="/bin/steps.wasm", arguments=steps), **more)

    def submit_kind(self, kind: JobKind, namespace: Namespace | None = None, **more: Any) -> UUID:
        """Submit a job, and start no manager."""
        spec = NamespaceSpec.model_validate((namespace or self.namespace()).spec())
        job = JobSpec(kind=kind, namespace=spec, **more)
        return self.queue.submit(job, start=False)

    def lines(self, name: str) -> list[str]:
        """Return the lines that jobs have added to a file of the shared directory."""
        path = self.shared / name
        return path.read_text().splitlines() if path.exists() else []

    def let_go(self, name: str = "go") -> None:
        """Make the file that jobs wait for."""
        (self.shared / name).touch()

    def get(self, job: UUID) -> Job:
        """Return a job as it stands."""
        return self.queue.get(job)

    def ended(self, job: UUID) -> Job:
        """Wait until a job has ended."""
        return self.queue.wait(job, DEADLINE)

    def settle(self) -> None:
        """Wait until all jobs have ended."""
        for job in self.queue.jobs():
            self.ended(job.spec.id)

    def outcomes(self, job: UUID) -> Sequence[str | None]:
        """Return the outcomes of a job's attempts."""
        return [attempt.outcome for attempt in self.get(job).attempts]

    def worker_of(self, job: UUID) -> int:
        """Return the process that has a running job."""
        pid = lock_holder(self.queue.directory.worker(self.get(job).attempts[-1].worker))
        assert pid is not None
        return pid

    def kill_worker_of(self, job: UUID) -> None:
        """Kill the process that has a running job, as nothing else could."""
        os.kill(self.worker_of(job), signal.SIGKILL)

    @contextmanager
    def manager(
        self, *options: str, environment: dict[str, str] | None = None
    ) -> Iterator[Manager]:
        """Run a manager in a process of its own, and end it and its workers."""
        command = [sys.executable, "-m", "agentix.oanix", "job", "--queue"]
        command += [str(self.queue.directory.path), "run", "--keep", *options]
        with subprocess.Popen(command, env=self.environment(environment)) as process:
            try:
                yield process
            finally:
                process.terminate()
                process.wait(DEADLINE)
                self.end_workers()

    def run(self, *options: str, environment: dict[str, str] | None = None) -> None:
        """Run the queue until it has no more jobs."""
        command = [sys.executable, "-m", "agentix.oanix", "job", "--queue"]
        command += [str(self.queue.directory.path), "run", *options]
        subprocess.run(command, env=self.environment(environment), check=True, timeout=DEADLINE)

    @staticmethod
    def environment(more: dict[str, str] | None = None) -> dict[str, str]:
        """Return the environment of managers, with one cache of programs for all tests."""
        return {**os.environ, "XDG_CACHE_HOME": str(make_cache_home()), **(more or {})}

    def workers(self) -> list[int]:
        """Return the processes that work on the queue."""
        found = [lock_holder(path) for path in (self.queue.directory.path / "workers").iterdir()]
        return [pid for pid in found if pid is not None]

    def end_workers(self) -> None:
        """Kill what a killed manager has left."""
        for pid in self.workers():
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not self.workers())
