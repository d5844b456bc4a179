"""A stand-in for a dataset: three tasks about one text file each."""

from dataclasses import dataclass
from pathlib import Path

__all__ = ["Score", "Task", "score", "setup", "tasks"]

__image__ = "agentix/mock-dataset:0.1.0"


@dataclass
class Task:
    """One task of the dataset."""

    id: str
    """Its name, unique in the dataset."""
    instruction: str
    """What the agent is told."""


@dataclass
class Score:
    """The judgement of one attempt."""

    reward: float
    """From 0.0, nothing right, to 1.0, all right."""
    reason: str
    """Why, for a person."""


def tasks() -> list[Task]:
    """Lists the tasks."""
    raise NotImplementedError("call via RuntimeClient.remote(mock_dataset.tasks)")


def setup(task_id: str, workdir: Path) -> Task:
    """Writes the files of a task into a directory, which is made where it is missing."""
    raise NotImplementedError("call via RuntimeClient.remote(mock_dataset.setup, ...)")


def score(task_id: str, workdir: Path) -> Score:
    """Judges what stands in the directory of a task."""
    raise NotImplementedError("call via RuntimeClient.remote(mock_dataset.score, ...)")
