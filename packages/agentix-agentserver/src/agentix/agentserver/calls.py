"""Calls: what a caller gives an organism, and what it gets for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from agentix.agentserver.core import ENVELOPE_NAMESPACE
from agentix.agentserver.errors import AgentServerError
from agentix.agentserver.principal import LOCAL

__all__ = ["CallTimeoutError", "OrganismClosedError", "Receipt", "ThreadInfo", "wrap"]


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


class OrganismClosedError(AgentServerError):
    """The organism ended before the answer; its journal has the message, for the next start."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """The acknowledgement of a message: from here on it is delivered, or its failure told."""

    thread: str
    """The thread that it went to, which is a new one where it named none of its sender's."""
    seq: int
    """The number of the last event before what follows from the message."""


@dataclass(frozen=True, slots=True)
class ThreadInfo:
    """A thread that is alive."""

    id: str
    """Its UUID."""
    path: tuple[str, ...]
    """The principal that owns the conversation, then the listeners down to this one."""


def wrap(payload: str | bytes, sender: str = LOCAL.name, thread: str | None = None) -> bytes:
    """Puts a payload into an envelope.

    Args:
        payload: One element.
        sender: The principal that will post it.
        thread: The thread to go on with; `None` begins a new one.
    """
    body = payload.encode() if isinstance(payload, str) else payload
    meta = f"<e:from>{escape(sender)}</e:from>"
    if thread:
        meta += f"<e:thread>{escape(thread)}</e:thread>"
    head = f'<e:message xmlns:e="{ENVELOPE_NAMESPACE}"><e:meta>{meta}</e:meta>'
    return head.encode() + body + b"</e:message>"
