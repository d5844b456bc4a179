"""LogsFs: the logs of an environment, which programs can add to and not take from."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from agentix.oanix.errors import Code, FsError, PermissionDeniedError
from agentix.oanix.fs.fixed import BytesHandle, FixedNode, plant
from agentix.oanix.fs.function import Function
from agentix.oanix.fs.memory import MemFs
from agentix.oanix.mount import Mount, MountPoint
from agentix.oanix.node import FsNode, Handle, Kind, OpenFlags, Stat
from agentix.oanix.run import RunResult
from agentix.oanix.service import FileService

__all__ = ["LogEvent", "LogsFs"]


class LogEvent(BaseModel):
    r"""A line of `events.jsonl`.

    ```python
    from agentix.oanix import LogEvent, LogsFs, OpenFlags

    logs = LogsFs()
    with logs.open("/events.jsonl", OpenFlags(write=True)) as events:
        events.write(LogEvent(message="started").model_dump_json().encode() + b"\n")
    assert LogEvent.model_validate_json(logs.read("/events.jsonl")).level == "info"
    ```
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    timestamp: str = ""
    """When it was, in ISO 8601; set when it is written where it is empty."""
    level: str = "info"
    """How much it matters."""
    message: str
    """What happened."""
    data: Any = None
    """What else is to be known."""


class Log(FixedNode):
    """A file that only grows.

    Args:
        check: Is given each piece before it is added, and raises `FsError` to refuse it.
    """

    __slots__ = ("_check", "data")

    kind = Kind.REGULAR

    def __init__(self, check: Callable[[bytes], bytes] = lambda piece: piece) -> None:
        super().__init__()
        self._check = check
        self.data = bytearray()

    def stat(self) -> Stat:
        """Return what is known about the file."""
        return Stat(self.kind, self.ino, len(self.data))

    def add(self, piece: bytes) -> None:
        """Add to the end."""
        self.data += self._check(piece)

    def open(self, flags: OpenFlags) -> Handle:
        """Open the file; what was written cannot be taken back."""
        if flags.truncate:
            raise PermissionDeniedError("a log only grows")
        return LogHandle(self, bytes(self.data))


class LogHandle(BytesHandle):
    """An open `Log`: every write goes to its end, line by line."""

    __slots__ = ("_log",)

    def __init__(self, log: Log, data: bytes) -> None:
        super().__init__(data)
        self._log = log

    def write(self, data: memoryview, offset: int) -> int:
        """Add to the end."""
        self._log.add(bytes(data))
        return len(data)

    def append(self, data: memoryview) -> int:
        """Add to the end."""
        self._log.add(bytes(data))
        return len(self._log.data)

    def resize(self, size: int) -> None:
        """Refuse."""
        raise PermissionDeniedError("a log only grows")


class LogsFs(FileService):
    """The files `stdout.log`, `stderr.log`, `events.jsonl` and `metrics.json`, and `atif/`.

    The logs only grow. A line of `events.jsonl` that is no `LogEvent` is refused as EINVAL.
    Trajectories are free files below `atif/`.

    ```python
    import json

    from agentix.oanix import LogsFs, Machine, Namespace

    logs = LogsFs()
    logs.record(Machine().run(b'(module (func (export "_start")))', Namespace()))
    assert json.loads(logs.read("/metrics.json"))["runs"] == 1
    ```
    """

    kind: ClassVar[str] = "logs"

    def __init__(self) -> None:
        self._metrics: dict[str, object] = {}
        self.stdout, self.stderr = Log(), Log()
        self.events = Log(_checked_events)
        self.trajectories = MemFs()
        """The files below `atif/`."""

    @cached_property
    def _root(self) -> FsNode:
        """The root directory, made when it is asked for: logs that nobody mounts need none."""
        files: dict[str, FixedNode] = {
            "stdout.log": self.stdout,
            "stderr.log": self.stderr,
            "events.jsonl": self.events,
            "metrics.json": Function(self.metrics),
        }
        own = plant(files, self)
        return MountPoint.tree([Mount("/", _Tree(own)), Mount("/atif", self.trajectories)]).node()

    def attach(self) -> FsNode:
        """Return the root directory."""
        return self._root

    def metrics(self) -> bytes:
        """Return the content of `metrics.json`."""
        return json.dumps(self._metrics).encode()

    def spec(self) -> dict[str, Any]:
        """Describe the service; its content is not part of it."""
        return {}

    @classmethod
    def from_spec(cls, spec: object) -> "LogsFs":
        """Make empty logs."""
        return cls()

    def record(self, result: RunResult) -> None:
        """Set `metrics.json` to what a run used, adding up runs."""
        used = {
            "runs": 1,
            "fuel": result.fuel,
            "wall_seconds": result.wall_time,
            "host_calls": result.host_calls,
            "bytes_read": result.bytes_read,
            "bytes_written": result.bytes_written,
        }
        before = {name: self._metrics.get(name, 0) for name in used}
        self._metrics = {name: value + before[name] for name, value in used.items()}  # type: ignore[operator]


class _Tree(FileService):
    """A root node as a service."""

    def __init__(self, root: FsNode) -> None:
        self._root = root

    def attach(self) -> FsNode:
        """Return the root directory."""
        return self._root


def _checked_events(piece: bytes) -> bytes:
    """Return events with their times, one a line."""
    lines = []
    for line in piece.splitlines():
        try:
            event = LogEvent.model_validate_json(line)
        except ValidationError as error:
            raise FsError("not an event", Code.INVAL) from error
        stamped = event.timestamp or datetime.now(UTC).isoformat()
        lines.append(event.model_copy(update={"timestamp": stamped}).model_dump_json())
    return "".join(line + "\n" for line in lines).encode()
