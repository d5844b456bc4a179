"""An organism in the sandbox: listeners that call XML messages through a pump.

There is one organism at a time. Its pump is a process of its own, whose handlers run in workers;
the functions here are the pump's clients, and to the organism they are the principal `agentix`.

`grant` makes a token for another principal. With it a function acts as that principal: its messages
are from it, and it sees nothing but its own. Programs in the sandbox use it at the pump's socket.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

__all__ = [
    "Capability",
    "Event",
    "Message",
    "OrganismInfo",
    "OrganismSpec",
    "Receipt",
    "ThreadInfo",
    "call",
    "catalog",
    "describe",
    "grant",
    "history",
    "listen",
    "post",
    "privileged",
    "revoke",
    "start",
    "stop",
    "threads",
]

__image__ = "agentix/agentserver:0.1.0"


@dataclass
class OrganismSpec:
    """What an organism is made of."""

    yaml: str
    """The text of `organism.yaml`."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files beside it, such as the modules of handlers, by their relative paths."""
    directory: Path | None = None
    """Where both are written, and the journal is kept; a new directory where it is absent."""


@dataclass
class OrganismInfo:
    """An organism that runs."""

    name: str
    """Its name."""
    listeners: list[str]
    """The names of its listeners."""
    addresses: list[str]
    """Where its gateways are reached."""
    isolation: list[str]
    """What holds its handlers, and what could not be applied, a line each."""
    socket: str
    """The Unix socket at which programs in the sandbox reach it, each with its token."""


@dataclass
class Receipt:
    """The acknowledgement of a message, which is in the journal."""

    thread: str
    """The thread that it went to."""
    seq: int
    """What follows from it has greater numbers."""


@dataclass
class Message:
    """One message."""

    thread: str
    """Its thread."""
    sender: str
    """Who it is from, as the pump knows."""
    to: str | None
    """Who it is for."""
    xml: str
    """All of it, as canonical XML."""


@dataclass
class Event:
    """One thing that happened."""

    seq: int
    """Its number; greater than those before."""
    kind: Literal[
        "message",
        "huh",
        "repair",
        "thread_opened",
        "thread_pruned",
        "listener_state",
        "token_usage",
        "security",
        "gap",
    ]
    """What kind of thing."""
    thread: str
    """The thread that it happened in; empty for none."""
    sender: str
    """Who caused it."""
    to: str
    """Who a message is for."""
    xml: str
    """A message as canonical XML; empty for other kinds."""
    detail: str
    """What else is to be said."""
    t: float
    """When, in seconds since 1970."""


@dataclass
class Capability:
    """A listener, as its callers know it."""

    name: str
    """Its name."""
    description: str
    """What it is for."""
    root_tag: str
    """The root tag of its payload."""
    xsd: str
    """The schema of its payload; this and what follows is empty where `meta` does not allow it."""
    example: str
    """An example of its payload."""
    prompt: str
    """What a model is told about it."""


@dataclass
class ThreadInfo:
    """A thread that is alive."""

    id: str
    """Its UUID."""
    path: list[str]
    """Who owns the conversation, then the listeners down to this one."""


def start(config: OrganismSpec) -> OrganismInfo:
    """Start the organism; it ends with `stop`, or with the sandbox."""
    raise NotImplementedError("call via RuntimeClient.remote(agentserver.start, ...)")


def grant(principal: str, roots: list[str] | None = None) -> str:
    """Make a token, with which functions act as another principal than `agentix`.

    It is good until `revoke`, another `grant` to the same principal, or the end of the organism.

    Args:
        principal: Its name, which is no listener's and no user's.
        roots: The root tags of the payloads that it may send; all where there are none given.
    """
    raise NotImplementedError("call via RuntimeClient.remote(agentserver.grant, ...)")


def revoke(principal: str) -> None:
    """End the token of a principal, and what is being streamed for it; its threads stay."""
    raise NotImplementedError("call via RuntimeClient.remote(agentserver.revoke, ...)")


def post(message: str, thread: str | None = None, token: str | None = None) -> Receipt:
    """Post a payload, and does not wait for what follows from it."""
    raise NotImplementedError("call via RuntimeClient.remote(agentserver.post, ...)")


def call(
    message: str, timeout_s: float = 60.0, thread: str | None = None, token: str | None = None
) -> list[Message]:
    """Post a payload, and return what comes back until nothing is under way."""
    raise NotImplementedError("call via RuntimeClient.remote(agentserver.call, ...)")


def listen(
    thread: str | None = None, after_seq: int = 0, token: str | None = None
) -> AsyncIterator[Event]:
    """Stream what happens after a number, of one thread or of all.

    A principal with a token gets what it sent, and what is for it.
    """
    raise NotImplementedError("call via RuntimeClient.remote(agentserver.listen, ...)")


def describe(capability: str, token: str | None = None) -> Capability:
    """Return what callers of a listener need to know."""
    raise NotImplementedError("call via RuntimeClient.remote(agentserver.describe, ...)")


def catalog(token: str | None = None) -> list[Capability]:
    """Describe the listeners that may be called, in the order of their registration."""
    raise NotImplementedError("call via RuntimeClient.remote(agentserver.catalog, ...)")


def threads(token: str | None = None) -> list[ThreadInfo]:
    """List the threads that are alive; to a principal with a token its own conversations."""
    raise NotImplementedError("call via RuntimeClient.remote(agentserver.threads)")


def history(thread: str, token: str | None = None) -> AsyncIterator[Message]:
    """Stream the messages of a thread, oldest first."""
    raise NotImplementedError("call via RuntimeClient.remote(agentserver.history, ...)")


def privileged(signed_xml: str) -> str:
    """Carry out a signed privileged message, where the organism has an out-of-band channel."""
    raise NotImplementedError("call via RuntimeClient.remote(agentserver.privileged, ...)")


def stop() -> None:
    """End the organism after what is under way; nothing is done where none runs."""
    raise NotImplementedError("call via RuntimeClient.remote(agentserver.stop)")
