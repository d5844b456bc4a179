"""Every error that Agentix raises, in one tree.

AgentixError
├── UsageError              you called it wrongly: nothing was run
│   ├── StubError           a function that cannot be a stub, or an impl that does not match it
│   ├── ManifestError       a manifest that the protocol refuses
│   ├── ArgumentsError      arguments that do not fit the stub
│   ├── NamespaceNotFoundError   the sandbox has no such namespace
│   ├── RequestError        the runtime refused a request (status and reason)
│   └── SandboxNotFoundError     the deployment has no such sandbox
├── RemoteCallError         the call failed in the sandbox: its class, message and traceback
├── SerializationError      a value that does not survive its declared type
├── SandboxGoneError        the sandbox is gone or silent, or the client was closed
├── AnswerTooLargeError     an answer larger than its caller takes: the call may have run
└── DeploymentError         the deployment could not do what was asked
    └── SandboxStartError   the sandbox ended, or stayed silent, before it was ready
"""

__all__ = [
    "AgentixError",
    "AnswerTooLargeError",
    "ArgumentsError",
    "DeploymentError",
    "ManifestError",
    "NamespaceNotFoundError",
    "RemoteCallError",
    "RequestError",
    "SandboxGoneError",
    "SandboxNotFoundError",
    "SandboxStartError",
    "SerializationError",
    "StubError",
    "UsageError",
]


class AgentixError(Exception):
    """The root of all errors raised by Agentix."""


class UsageError(AgentixError):
    """A call that is wrong in itself: repeating it unchanged cannot succeed."""


class StubError(UsageError):
    """A function cannot serve as a stub, or an impl does not match its stub."""


class ManifestError(UsageError):
    """A manifest is missing, malformed, or of another closure ABI."""


class ArgumentsError(UsageError, TypeError):
    """The arguments of a call do not fit the stub's signature or its types."""


class NamespaceNotFoundError(UsageError):
    """No namespace of that package is mounted in the sandbox."""


class SandboxNotFoundError(UsageError):
    """The deployment knows no sandbox of that id."""


class RequestError(UsageError):
    """The runtime refused a request.

    Args:
        status: The HTTP status code, 400 to 499.
        message: The reason that the runtime gave.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"the runtime refused the request with status {status}: {message}")
        self.status = status
        self.message = message

    def __reduce__(self) -> tuple[type["RequestError"], tuple[int, str]]:
        """Let the error cross process boundaries."""
        return RequestError, (self.status, self.message)


class RemoteCallError(AgentixError):
    """A call reached the sandbox and failed there.

    Args:
        type: The name of the exception's class in the sandbox, such as `ValueError`, or one of
            the runtime's own: `MethodNotFound`, `ValidationError`, `SerializationError`.
        message: The text of the exception.
        traceback: The formatted traceback from the sandbox; empty where there is none.
    """

    def __init__(self, type: str, message: str, traceback: str = "") -> None:  # noqa: A002 - the name on the wire
        super().__init__(f"{type}: {message}")
        self.type = type
        self.message = message
        self.traceback = traceback

    def __reduce__(self) -> tuple[type["RemoteCallError"], tuple[str, str, str]]:
        """Let the error cross process boundaries, as process pools and Ray actors need."""
        return RemoteCallError, (self.type, self.message, self.traceback)


class SerializationError(AgentixError):
    """A value cannot be turned into JSON by its declared type, or read back by it."""


class SandboxGoneError(AgentixError):
    """The sandbox cannot be reached or does not answer, or its answer is not complete.

    Leaving the client while one of its calls is under way ends that call with this error too.
    """


class AnswerTooLargeError(AgentixError):
    """A sandbox answers with more than its caller takes; the connection has been closed.

    The sandbox lives, and the call may have run. Whoever expects that much raises the limit that
    the message names.

    Args:
        message: What is too large, and how to raise its limit.
        limit: The limit in bytes.
        size: The size in bytes; `None` where reading stopped before it was known.
    """

    def __init__(self, message: str, limit: int, size: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.limit = limit
        self.size = size

    def __reduce__(self) -> tuple[type["AnswerTooLargeError"], tuple[str, int, int | None]]:
        """Let the error cross process boundaries."""
        return AnswerTooLargeError, (self.message, self.limit, self.size)


class DeploymentError(AgentixError):
    """A deployment cannot do what was asked of it."""


class SandboxStartError(DeploymentError):
    """A sandbox was made and did not become ready; it has been removed again.

    Args:
        message: What happened.
        exit_code: The exit code of the sandbox; `None` where it was still running.
        output: The last lines that it printed.
    """

    def __init__(self, message: str, exit_code: int | None = None, output: str = "") -> None:
        super().__init__(message if not output else f"{message}; its last output:\n{output}")
        self.message = message
        self.exit_code = exit_code
        self.output = output

    def __reduce__(self) -> tuple[type["SandboxStartError"], tuple[str, int | None, str]]:
        """Let the error cross process boundaries."""
        return SandboxStartError, (self.message, self.exit_code, self.output)
