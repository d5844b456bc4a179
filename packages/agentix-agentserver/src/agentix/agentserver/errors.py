"""Errors of handlers, payloads and messages, in one tree under `AgentixError`.

AgentServerError
├── RegistrationError   a listener, a class or a name that an organism can not take
├── PayloadError        a value that has no XML form, or XML that has no value
└── Malformed           bytes that are no message and no emission; `kind` says why, for the log
"""

from enum import Enum

from agentix.errors import AgentixError

__all__ = ["AgentServerError", "Malformed", "MalformedKind", "PayloadError", "RegistrationError"]


class AgentServerError(AgentixError):
    """The root of the errors of registration and of messages."""


class RegistrationError(AgentServerError):
    """A listener can not be registered; the message names it and what to change."""


class PayloadError(AgentServerError, ValueError):
    """A value can not be written as XML of its type, or valid XML has no value in Python."""


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
