"""The errors of organisms, in one tree under `AgentixError`.

AgentServerError
├── SpecError               an `organism.yaml` is refused (a `UsageError`, too)
├── RegistrationError       a listener, a class or a name that an organism cannot take
├── PayloadError            a value that has no XML form, or XML that has no value
├── Malformed               bytes that are no message and no emission; `kind` says why, for the log
├── TransitionError         something happens that cannot happen in a state: a bug in the pump
├── CallTimeoutError        what follows from a message takes too long, and goes on
├── NoReplyError            nothing came back to who asked
├── OrganismClosedError     the organism does not run, or ended before the answer
├── JournalError            the journal cannot be opened or written
├── HandlerFailed           a call of a handler gave no bytes; `kind` says how it failed
├── WorkersError            no worker can be had
├── KernelError             the kernel refuses a system call
├── FrameError              the other end of a worker's socket broke the protocol
│   └── OversizedError      it announced more than it may send
├── LLMError                a model gave no usable answer
│   ├── LLMUnavailableError it did not answer in time
│   └── LLMAnswerError      its answer is not a whole completion
├── ModelFailedError        an agent has no answer, for want of its model's
├── FunctionFailedError     a function of a namespace, or its runtime, failed
├── IdentityError           a key cannot be used
├── UsersError              a file of users is missing or malformed
├── GatewayError            a gateway cannot be opened, or another organism not be reached
├── LinkError               another organism is not who it should be, or breaks the link's rules
├── PrivilegedError         a signed command is refused
├── LocalRequestError       a request at the local gateway is malformed, or asks for what is absent
└── TokenError              a token is not good, or cannot be had
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import TYPE_CHECKING

from agentix.errors import AgentixError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "AgentServerError",
    "CallTimeoutError",
    "FailureKind",
    "FrameError",
    "FunctionFailedError",
    "GatewayError",
    "HandlerFailed",
    "IdentityError",
    "JournalError",
    "KernelError",
    "LLMAnswerError",
    "LLMError",
    "LLMUnavailableError",
    "LinkError",
    "LocalRequestError",
    "Malformed",
    "MalformedKind",
    "ModelFailedError",
    "NoReplyError",
    "OrganismClosedError",
    "OversizedError",
    "PayloadError",
    "PrivilegedError",
    "RegistrationError",
    "SpecError",
    "TokenError",
    "TransitionError",
    "UsersError",
    "WorkersError",
]


class AgentServerError(AgentixError):
    """The root of the errors of organisms."""


class SpecError(AgentServerError, UsageError):
    """An `organism.yaml` is refused: nothing was started."""


class RegistrationError(AgentServerError):
    """A listener cannot be registered; the message names it and what to change."""


class PayloadError(AgentServerError, ValueError):
    """A value cannot be written as XML of its type, or valid XML has no value in Python."""


class MalformedKind(Enum):
    """Why bytes are refused; for logs only, since every answer carries one canned text."""

    TOO_LARGE = "too large"
    ENCODING = "not UTF-8"
    PROLOG = "a prolog that is not allowed"
    DOCTYPE = "a document type declaration"
    SYNTAX = "not well-formed"
    LIMIT = "too deep, or too many elements, attributes or namespaces"
    CANONICAL = "no canonical form"
    ENVELOPE = "not an envelope"


class Malformed(AgentServerError):  # noqa: N818 - the state of a message, by its name in the logs
    """Bytes are no message.

    Args:
        kind: Why.
        detail: More for the log; it may quote the bytes and never travels.
    """

    def __init__(self, kind: MalformedKind, detail: str = "") -> None:
        super().__init__(f"{kind.value}: {detail}" if detail else kind.value)
        self.kind = kind
        self.detail = detail


class CallTimeoutError(AgentServerError, TimeoutError):
    """A call took too long; what follows from its message goes on.

    Args:
        thread: The thread of the message, to listen to.
        replies: The envelopes that had come back.
    """

    def __init__(self, thread: str, replies: Sequence[bytes]) -> None:
        super().__init__(
            f"thread {thread} was still busy at the timeout, with {len(replies)} replies so far: "
            "listen to it, or give a longer timeout"
        )
        self.thread = thread
        self.replies = tuple(replies)


class TransitionError(AgentServerError):
    """Something happens to a thread, a delivery or a call that cannot happen to it now."""


class NoReplyError(AgentServerError):
    """Nothing came back to who asked, not even that it failed; the log says why."""


class OrganismClosedError(AgentServerError):
    """The organism ended before the answer; its journal has the message, for the next start."""


class JournalError(AgentServerError):
    """A journal cannot be used: another organism holds it, or its directory cannot be written."""


class FailureKind(StrEnum):
    """How a call of a handler failed."""

    WRONG_TYPE = "wrong type"
    """The handler returned something other than `bytes`."""
    RAISED = "raised"
    """The handler, or the construction of its payload, raised an exception."""
    TIMED_OUT = "timed out"
    """The handler did not answer before its deadline; its worker is killed."""
    DIED = "died"
    """The worker ended, or broke the protocol and was killed."""
    OVERSIZED = "oversized"
    """The handler returned more bytes than it may."""


class HandlerFailed(AgentServerError):  # noqa: N818 - an outcome of a call, by its name in the logs
    """A call of a handler gave no bytes.

    Args:
        kind: How it failed.
        detail: What is known of it, for the log only: it may hold the handler's own words.
    """

    def __init__(self, kind: FailureKind, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}" if detail else str(kind))
        self.kind = kind
        self.detail = detail

    def __reduce__(self) -> tuple[type[HandlerFailed], tuple[FailureKind, str]]:
        """Let the error cross process boundaries."""
        return HandlerFailed, (self.kind, self.detail)


class WorkersError(AgentServerError):
    """No worker can be had: the process that forks them does not start, or is gone."""


class KernelError(AgentServerError):
    """The kernel refuses a call; the text names the call and the error."""


class FrameError(AgentServerError):
    """The other end of a worker's socket broke the protocol."""


class OversizedError(FrameError):
    """The other end of a worker's socket announced more than it may send."""


class LLMError(AgentServerError):
    """A model gave no usable answer."""


class LLMUnavailableError(LLMError):
    """The endpoint did not answer within the deadline."""


class LLMAnswerError(LLMError):
    """The endpoint answered with what is not a whole completion."""


class ModelFailedError(AgentServerError, RuntimeError):
    """The model gave no answer, so this listener has none for its caller."""


class FunctionFailedError(AgentServerError):
    """A function failed, or the runtime did; the message is for the log."""


class IdentityError(AgentServerError):
    """A key cannot be used: its file is missing, open to others, or holds no Ed25519 key."""


class UsersError(AgentServerError):
    """A file of users is missing or malformed."""


class GatewayError(AgentServerError):
    """A gateway cannot be opened, or another organism cannot be reached."""


class LinkError(AgentServerError):
    """The other organism is not who it should be, or breaks the rules of the link."""


class PrivilegedError(AgentServerError):
    """A signed command is refused; the reason is for the one who sent it."""


class LocalRequestError(AgentServerError, ValueError):
    """A request at the local gateway is malformed, or asks for what is not there."""


class TokenError(AgentServerError):
    """A token is not good, or cannot be had; no message shows one."""
