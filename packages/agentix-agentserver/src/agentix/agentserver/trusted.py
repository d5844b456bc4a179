"""Trusted listeners: those that run in the pump, such as the model peer and gateways."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from agentix.agentserver.payload.kinds import RecordType

__all__ = ["Request", "TrustedListener"]


@dataclass(frozen=True, slots=True)
class Request:
    """What a trusted listener is called with; the pump established all of it."""

    payload: dict[str, Any]
    """The fields of the payload as plain values; empty where it has no class of its own."""
    xml: bytes
    """The payload element, canonical."""
    thread_id: str
    """The UUID of its own thread."""
    caller: str
    """The name of the listener or principal that called."""
    caller_thread: str
    """The UUID of the caller's thread."""
    book: Callable[[int], None]
    """Books so many tokens to the caller's thread, and tells it as a `token_usage` event."""


@dataclass(frozen=True, slots=True)
class TrustedListener:
    """A listener that runs in the pump, and that listeners may name as a peer."""

    name: str
    """Its name."""
    description: str
    """What it is for."""
    handle: Callable[[Request], Awaitable[bytes]]
    """Gives payloads as a handler does; what it raises is "Handler failed" to the caller."""
    payload: RecordType | None = None
    """The description of its payload; `None` takes every root tag that starts with its name and a
    dot, unvalidated."""
    handler_seconds: float | None = None
    """Seconds that it may take for one message; the organism's limit where it is absent."""
