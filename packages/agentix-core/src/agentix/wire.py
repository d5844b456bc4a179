"""What crosses the wire between client and runtime (protocol: Wire, Runtime built-ins)."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from agentix.manifest import NamespaceManifest
from agentix.version import VERSION

__all__ = [
    "DEFAULT_PORT",
    "NDJSON",
    "READY_PREFIX",
    "SSE",
    "ErrorBody",
    "ExecExit",
    "ExecOutput",
    "ExecRequest",
    "ExecResult",
    "Health",
    "MountedNamespace",
    "RemoteError",
    "RemoteRequest",
    "UploadResult",
    "WireModel",
]

DEFAULT_PORT = 8000
"""The TCP port that the runtime listens on where nothing else is said."""

NDJSON = "application/x-ndjson"
"""The media type of a streaming answer: one JSON event a line."""

SSE = "text/event-stream"
"""The media type that asks `/exec` for events as they happen."""

READY_PREFIX = "agentix-server ready "
"""How the one line starts that the runtime prints once it accepts calls; its URL follows."""


class WireModel(BaseModel):
    """The base of what crosses the wire; its validator is built on first use, not on import."""

    model_config = ConfigDict(defer_build=True)


class RemoteRequest(WireModel):
    """The body of `POST /_remote`."""

    model_config = ConfigDict(extra="ignore", strict=True)

    package: str
    """The routing key: the `package` of a manifest."""
    method: str
    """The name of the stub."""
    args: list[Any] = Field(default_factory=list)
    """The positional arguments, each as JSON of its annotation."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """The keyword arguments, each as JSON of its annotation."""


class RemoteError(WireModel):
    """Why a remote call failed."""

    type: str
    """The name of the exception's class."""
    message: str
    """The text of the exception."""
    traceback: str = ""
    """The formatted traceback."""


class ErrorBody(WireModel):
    """The JSON body of every answer with a status of 400 or above."""

    error: str
    """The reason, for a person."""


class ExecRequest(WireModel):
    """The body of `POST /exec`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    command: Annotated[str, Field(min_length=1)]
    """A shell command, run by the sandbox's `sh -c`."""
    cwd: str | None = None
    """The working directory; the one that the runtime was started in where it is not given."""
    env: dict[str, str] = Field(default_factory=dict)
    """Variables on top of the sandbox's own."""
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Seconds until the whole process group is stopped; no limit where it is not given."""
    paths_from: list[str] = Field(default_factory=list)
    """Packages whose `entry/bin` goes first on PATH; `["*"]` means every namespace."""
    max_output: Annotated[int, Field(ge=0)] | None = None
    """Bytes kept of each of stdout and stderr; the runtime's own cap where it is not given."""


class ExecExit(WireModel):
    """How a command ended: its failure is data, not an error. The data of an `exit` event."""

    exit_code: int
    """The exit code; the negated signal number where a signal ended it."""
    timed_out: bool = False
    """Whether the time limit ended the command."""
    oom_killed: bool = False
    """Whether it failed, and the kernel killed a process of the sandbox meanwhile for want of
    memory."""
    stdout_truncated: bool = False
    """Whether standard output was longer than what was kept."""
    stderr_truncated: bool = False
    """Whether standard error was longer than what was kept."""
    stdout_bytes: int = 0
    """How many bytes the command wrote to standard output."""
    stderr_bytes: int = 0
    """How many bytes the command wrote to standard error."""


class ExecResult(ExecExit):
    """How a command ended and what it printed; bytes that are not UTF-8 become U+FFFD."""

    stdout: str = ""
    """What was kept of standard output."""
    stderr: str = ""
    """What was kept of standard error."""


class ExecOutput(WireModel):
    """A piece of output: the event's name says the stream, the event's data is `{"text": ...}`."""

    stream: Literal["stdout", "stderr"]
    """Which of the two it came from."""
    text: str
    """The decoded text; never a part of a character."""


class UploadResult(WireModel):
    """The answer to an upload."""

    path: str
    """The file's absolute path in the sandbox."""
    size: int
    """Its size in bytes."""


class MountedNamespace(WireModel):
    """One entry of `GET /namespaces`."""

    manifest: NamespaceManifest
    """The manifest as it was mounted, additional fields included."""
    loaded: bool
    """Whether a call has imported it yet."""
    error: str | None = None
    """Why its import failed, where it did."""


class Health(WireModel):
    """The answer of `GET /health`."""

    status: Literal["ok"] = "ok"
    """Always `ok`: a runtime that can not serve does not answer."""
    version: str = VERSION
    """The version of the runtime."""
    calls: int = 0
    """How many calls of plain functions run, abandoned ones included."""
    abandoned: int = 0
    """How many of them run on though their callers have left."""
