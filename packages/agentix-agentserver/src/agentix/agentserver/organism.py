"""Organisms: a pump, its listeners and its journal, from one `organism.yaml`."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from agentix.agentserver.events import Event
from agentix.agentserver.principal import LOCAL, Principal
from agentix.agentserver.spec import GatewaySpec, ListenerSpec, OrganismSpec

__all__ = ["Capability", "OrganismLike", "Receipt", "Request", "ThreadInfo", "TrustedListener"]


@dataclass(frozen=True, slots=True)
class Receipt:
    """The acknowledgement of a message: from here on it is delivered, or its failure told."""

    thread: str
    """The thread that it went to, which is a new one where it named none of its sender's."""
    seq: int
    """The number of its event; what follows from it has greater ones."""


@dataclass(frozen=True, slots=True)
class Capability:
    """A listener, as its callers know it."""

    name: str
    """Its name."""
    description: str
    """What it is for."""
    root_tag: str
    """The root tag of its payload."""
    xsd: bytes
    """The schema of its payload."""
    example: str
    """An example of its payload."""
    prompt: str
    """What a model is told about it."""


@dataclass(frozen=True, slots=True)
class ThreadInfo:
    """A thread that is alive."""

    id: str
    """Its UUID."""
    path: tuple[str, ...]
    """The principal that owns the conversation, then the listeners down to this one."""


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
    """A listener that runs in the pump: the model peer, a namespace's function, a gateway."""

    name: str
    """Its name."""
    description: str
    """What it is for."""
    handle: Callable[[Request], Awaitable[bytes]]
    """Gives payloads as a handler does; what it raises becomes "Handler failed" for the caller."""
    payload: Any = None
    """The `RecordType` of its payload, or `None` to take every root tag that starts with its name
    and a dot, unvalidated."""
    handler_seconds: float | None = None
    """Seconds that it may take for one message."""


class OrganismLike(Protocol):
    """What gateways, the command and the namespace use of an organism."""

    spec: OrganismSpec
    directory: Path

    async def __aenter__(self) -> Self:
        """Starts workers, registers every listener, delivers what the journal holds."""

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ends handlers and workers, and closes the journal."""

    async def post(self, message: bytes, principal: Principal | str = LOCAL) -> Receipt:
        """Takes an envelope; it is in the journal when this returns. A `<huh>` is an event."""

    async def call(
        self, message: bytes, principal: Principal | str = LOCAL, *, timeout: float = 60.0
    ) -> list[bytes]:
        """Posts an envelope and gives the envelopes that came back when nothing is under way."""

    def listen(
        self,
        thread: str | None = None,
        after_seq: int | None = 0,
        principal: Principal | str | None = None,
    ) -> AsyncIterator[Event]:
        """Gives events after a number (`None`: from now on), of one thread or for one principal."""

    def describe(self, name: str) -> Capability:
        """Gives what callers of a listener need to know; `KeyError` where there is none."""

    def catalog(self, principal: Principal | str) -> Sequence[Capability]:
        """Gives the listeners that a principal may call."""

    def peers(self, name: str) -> Sequence[Capability]:
        """Gives the listeners that a listener may call, for the prompt of a model."""

    def threads(self) -> Sequence[ThreadInfo]:
        """Gives the threads that are alive."""

    def history(
        self, thread: str, principal: Principal | str | None = None
    ) -> AsyncIterator[Event]:
        """Gives the messages of a thread, oldest first."""

    def graph(self, format: str = "mermaid", team: str | None = None) -> str:  # noqa: A002 - the protocol's word
        """Draws the organism: `mermaid`, `graphviz` or `json`."""

    def status(self) -> dict[str, Any]:
        """Gives facts for `get-status`: name, listeners, threads, running handlers, hardening."""

    def security(self, principal: str, detail: str) -> None:
        """Records a security event that a gateway saw."""

    async def register(self, listener: ListenerSpec) -> Capability:
        """Adds a listener while messages flow; `RegistrationError`, and nothing is changed."""

    async def unregister(self, name: str) -> None:
        """Removes a listener; `KeyError` where there is none."""

    def add_trusted(self, listener: TrustedListener) -> None:
        """Adds a listener that runs in the pump, before or after the start."""

    def remove_trusted(self, name: str) -> None:
        """Removes a listener that runs in the pump."""

    def add_gateway(self, gateway: GatewaySpec, listener: TrustedListener) -> None:
        """Adds another organism: shown in the graph, called through `listener`."""

    def close_thread(self, thread: str, principal: Principal | str = LOCAL) -> bool:
        """Ends a conversation and frees its threads; false where it is not the principal's."""
