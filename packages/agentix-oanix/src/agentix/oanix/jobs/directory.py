"""JobDirectory: where a queue of jobs keeps its files."""

import os
from pathlib import Path
from uuid import UUID

from agentix.oanix.jobs.watch import Bell

__all__ = ["JobDirectory"]


class JobDirectory:
    """The files of a queue; the directory is made where it is missing, for its user alone.

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
        """Is locked while the database is made."""
        self.start = self.path / "start.lock"
        """Is locked while a manager is started on demand."""
        self.programs = self.path / "programs"
        """Has the programs that were submitted with their content, by their SHA-256."""
        self.manager = self.path / "manager.lock"
        """Is held by the process that manages the queue."""
        self.manager_log = self.path / "manager.log"
        """What managers and workers have to say."""
        self.work = Bell(self.path / "work.bell")
        """Is rung when a worker may find something to do."""
        self.cancels = Bell(self.path / "cancels.bell")
        """Is rung when a running job is to be cancelled."""
        self.ends = Bell(self.path / "ends.bell")
        """Is rung when a job has ended."""

    def worker(self, name: str) -> Path:
        """Gives the file that a worker holds while it lives."""
        return self.path / "workers" / name

    def logs(self, job: UUID) -> Path:
        """Gives the directory of a job's logs."""
        return self.path / "logs" / str(job)
