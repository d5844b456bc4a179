"""HandlerMetadata: all that a handler learns about the message that it handles."""

from dataclasses import dataclass

__all__ = ["HandlerMetadata"]


@dataclass(frozen=True)
class HandlerMetadata:
    """What the pump tells a handler beside the payload; nothing in it names a sender or a path."""

    thread_id: str
    """The opaque id of the thread, a UUID; a safe key for state of that thread."""
    own_name: str | None = None
    """The registered name of the listener; only where it is declared with `agent: true`."""
