"""The impls of the stand-in dataset."""

from pathlib import Path

from . import Score, Task

WORDS = {"greet": "hello", "count": "one two three", "thank": "thanks"}


def tasks() -> list[Task]:
    """Lists one task for each text."""
    return [_task(task_id) for task_id in WORDS]


def setup(task_id: str, workdir: Path) -> Task:
    """Writes the instruction beside where the answer is expected."""
    task = _task(task_id)
    workdir.mkdir(parents=True, exist_ok=True)
    (workdir / "INSTRUCTION").write_text(task.instruction + "\n")
    return task


def score(task_id: str, workdir: Path) -> Score:
    """Compares the answer with the text that was asked for."""
    expected = _expected(task_id)
    answer = workdir / "ANSWER"
    if not answer.is_file():
        return Score(reward=0.0, reason=f"{answer} is missing")
    if answer.read_text().strip() != expected:
        return Score(reward=0.0, reason=f"{answer} does not say {expected!r}")
    return Score(reward=1.0, reason="the answer is right")


def _task(task_id: str) -> Task:
    return Task(id=task_id, instruction=f"Write {_expected(task_id)!r} into the file ANSWER.")


def _expected(task_id: str) -> str:
    if task_id not in WORDS:
        raise ValueError(f"no task {task_id!r}: there are {', '.join(WORDS)}")
    return WORDS[task_id]
