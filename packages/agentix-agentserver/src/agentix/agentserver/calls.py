"""Calls: what a caller gives an organism, and what it gets for it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agentix.agentserver.core import ENVELOPE_NAMESPACE
from agentix.agentserver.errors import AgentServerError
from agentix.agentserver.names import new_thread_id
from agentix.agentserver.principal import LOCAL
from agentix.agentserver.xml.envelope import END, TAG, escape, opening

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


UNQUALIFIED = re.compile(rf"<{TAG}(?=>)".encode())
"""The start of an element without a prefix and without attributes."""


def wrap(payload: str | bytes, sender: str = LOCAL.name, thread: str | None = None) -> bytes:
    """Put a payload into an envelope.

    The envelope of a payload that is in canonical form is in canonical form too, which is read in a
    fraction of the time that any other takes.

    Args:
        payload: One element.
        sender: The principal that will post it.
        thread: The thread to go on with; `None` begins a new one.

    Example:
        ```python
        import uuid

        from agentix.agentserver import wrap

        first = wrap("<add.addpayload><a>7</a></add.addpayload>")
        second = wrap("<add.addpayload><a>8</a></add.addpayload>", thread=str(uuid.uuid4()))
        ```
    """
    body = payload.encode() if isinstance(payload, str) else payload
    named = escape(thread or new_thread_id())
    start = UNQUALIFIED.match(body)
    if start is not None:
        head = f'{opening(sender, None)[0]}{named}</thread></meta>{start[0].decode()} xmlns=""'
        return head.encode() + body[start.end() :] + END.encode()
    # Only the payload says what its prefixes and attributes are, so it is left as it came: a prefix
    # for the envelope keeps the default namespace, which the payload may inherit, absent.
    meta = f"<e:from>{escape(sender)}</e:from><e:thread>{named}</e:thread>"
    head = f'<e:message xmlns:e="{ENVELOPE_NAMESPACE}"><e:meta>{meta}</e:meta>'
    return head.encode() + body + b"</e:message>"
