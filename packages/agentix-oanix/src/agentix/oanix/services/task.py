"""TaskFs: what a program is asked to do, how it stands, and the result that it writes."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from agentix.oanix.errors import NoSuchFileError, PermissionDeniedError
from agentix.oanix.fs.fixed import FixedDirectory, MapFs, number_tree
from agentix.oanix.fs.function import Function
from agentix.oanix.node import FsNode, NodeEntry
from agentix.oanix.service import FileService

__all__ = ["RESULT", "TaskFs", "TaskMeta", "TaskSpec"]

RESULT = "result.json"
"""The file that a program writes its result to."""

Status = Literal["pending", "running", "completed", "failed"]


class TaskSpec(BaseModel):
    """What is to be done.

    ```python
    import json

    from agentix.oanix import TaskFs, TaskSpec

    task = TaskFs(TaskSpec(id="sum", description="Add the numbers.", input=[1, 2]))
    assert json.loads(task.read("/spec.json"))["input"] == [1, 2]
    ```
    """

    model_config = ConfigDict(frozen=True)

    id: str
    """The task's name."""
    task_type: str = "task"
    """The kind of task."""
    description: str = ""
    """What is to be done, for the program to read."""
    input: Any = None
    """What the task is about."""


class TaskMeta(BaseModel):
    """What is known about a task beside what is to be done.

    ```python
    import json

    from agentix.oanix import TaskFs, TaskMeta, TaskSpec

    task = TaskFs(TaskSpec(id="sum"), TaskMeta(tags=("arithmetic",), timeout_secs=60))
    assert json.loads(task.read("/meta.json"))["tags"] == ["arithmetic"]
    ```
    """

    model_config = ConfigDict(frozen=True)

    created_at: str = Field(default_factory=lambda: datetime.now(UTC).isoformat())
    """When the task was made, in ISO 8601."""
    tags: Sequence[str] = ()
    """Marks to find the task by."""
    timeout_secs: float | None = None
    """Seconds that the task may take."""
    version: Literal[1] = 1
    """The version of this form."""


class TaskFs(FileService):
    """The files `spec.json`, `meta.json`, `status` and `result.json`.

    The first three can only be read; `status` shows the state of the moment when it is opened.
    `result.json` is there once a program has written a JSON document to it.

    ```python
    from agentix.oanix import Namespace, TaskFs, TaskSpec

    task = TaskFs(TaskSpec(id="sum", description="Add the numbers.", input=[1, 2]))
    namespace = Namespace.builder().mount("/task", task).build()
    namespace.write("/task/result.json", b"3")
    assert task.result == 3
    ```

    Args:
        spec: What is to be done.
        meta: What else is known.
    """

    kind: ClassVar[str] = "task"

    def __init__(self, spec: TaskSpec, meta: TaskMeta | None = None) -> None:
        self.task = spec
        """What is to be done."""
        self.meta = meta or TaskMeta()
        """What else is known."""
        self.status: Status = "pending"
        """How the task stands."""
        self.error: str | None = None
        """Why the task failed."""
        self.result: Any = None
        """What the program wrote as its result, as JSON; `None` before."""
        self._root = TaskDirectory(self)

    def attach(self) -> FsNode:
        """Return the root directory."""
        return self._root

    def spec(self) -> dict[str, Any]:
        """Describe the service by the task."""
        return {"spec": self.task.model_dump(), "meta": self.meta.model_dump()}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> "TaskFs":
        """Make the service that `spec` described."""
        return cls(TaskSpec.model_validate(spec["spec"]), TaskMeta.model_validate(spec["meta"]))

    def _status(self) -> bytes:
        status: dict[str, object] = {"status": self.status}
        if self.error is not None:
            status["error"] = self.error
        return json.dumps(status).encode()

    def _finish(self, request: bytes) -> None:
        self.result = json.loads(request)


class TaskDirectory(FixedDirectory):
    """The root of a `TaskFs`, where `result.json` appears with its first writing."""

    __slots__ = ("_result", "_task")

    def __init__(self, task: TaskFs) -> None:
        texts = {
            "spec.json": task.task.model_dump_json().encode(),
            "meta.json": task.meta.model_dump_json().encode(),
        }
        files = MapFs(texts).attach()
        assert isinstance(files, FixedDirectory)
        self._task = task
        self._result = Function(lambda: json.dumps(task.result).encode(), task._finish)
        super().__init__({**files.children, "status": Function(task._status)})
        self.children[RESULT] = self._result
        number_tree(self, task)

    def lookup(self, name: str) -> FsNode:
        """Return the file of a name."""
        if name == RESULT and self._task.result is None:
            raise NoSuchFileError(name)
        return super().lookup(name)

    def entries(self) -> list[NodeEntry]:
        """List the names."""
        hidden = RESULT if self._task.result is None else ""
        return [entry for entry in super().entries() if entry.name != hidden]

    def create(self, name: str) -> FsNode:
        """Make `result.json`, and nothing else."""
        if name != RESULT:
            raise PermissionDeniedError(name)
        return self._result
