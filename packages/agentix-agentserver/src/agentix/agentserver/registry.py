"""The registry: listeners by their names and root tags, their steps, and whom each may call."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from agentix.agentserver.commits import CommitGroup, PendingCall
from agentix.agentserver.errors import RegistrationError
from agentix.agentserver.names import Principal, listener_namespace
from agentix.agentserver.payload import PayloadCodec
from agentix.agentserver.payload.types import RecordType
from agentix.agentserver.state import (
    DELIVERY,
    DeliveryEvent,
    DeliveryState,
    Thread,
)
from agentix.agentserver.worker.handlers import HandlerSource
from agentix.agentserver.xml.envelope import CannedText

if TYPE_CHECKING:
    from lxml.etree import _Element

__all__ = [
    "Delivery",
    "Failure",
    "InProcessListener",
    "Listener",
    "ListenerRegistry",
    "MessageState",
    "Pipeline",
    "Request",
    "Step",
    "Target",
    "by_prefix",
    "from_outside",
]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a message goes no further."""

    text: CannedText | None
    """The canned text that its sender is told; `None` where it is told nothing."""
    detail: str
    """The reason for the log, which never travels."""
    security: bool = False
    """Whether it is recorded as a security event."""


@dataclass(slots=True)
class Target:
    """A listener's thread that a message goes to."""

    listener: "Listener"
    """The listener."""
    thread: Thread
    """Its thread."""
    payload_class: int = 0
    """Which class it is given the payload as: 0 for its own, then its reply classes."""
    payload: dict[str, Any] | None = None
    """The fields of the payload, once its pipeline has read them."""


class MessageState:
    """One message on its way; each step reads it and fills in what it finds.

    Args:
        raw_bytes: The envelope, as it came or as the pump built it.
        call: What is under way for the external message that this one follows from.
        from_id: Who sent it, as the pump knows.
    """

    composed: bool = False
    """Whether the pump composed it, so that its envelope and its way are known already."""
    principal: "Principal | None" = None
    """The external sender; `None` for what a listener or the pump sends."""
    emitter: "Thread | None" = None
    """The thread whose handler emitted it; `None` for what comes from outside or from core."""
    attempt: "_Element | bytes | None" = None
    """What a `<huh>` about it quotes, where that is not all of `raw_bytes`."""
    is_huh: bool = False
    """Whether it is a `<huh>` of the pump; about such a one no other is sent."""
    envelope_tree: "_Element | None" = None
    """The envelope, parsed; `None` for what the pump built, of which only the payload is a tree."""
    payload_tree: "_Element | None" = None
    """The payload element."""
    to: str | None = None
    """The `<to>` of the envelope."""
    canonical: bytes = b""
    """The canonical bytes of the envelope, which the audit log keeps."""
    repairs: tuple[str, ...] = ()
    """What was repaired on the way in."""
    payload: dict[str, Any] | None = None
    """The fields of the payload as plain values, for the target whose pipeline it is in."""
    claimed: str = ""
    """The `<from>` of the envelope, by which nothing is proved."""
    thread_id: str = ""
    """The UUID of the thread in the envelope."""
    thread: "Thread | None" = None
    """That thread."""
    target_listeners: "tuple[Target, ...]" = ()
    """Where it goes; empty for what leaves the organism."""
    target: "Target | None" = None
    """The one of them whose pipeline it is in."""
    codec: "PayloadCodec | None" = None
    """What reads the payload for that one; `None` where it takes any element."""
    system: bool = False
    """Whether it is for the system pipeline, not for a listener."""
    error: Failure | None = None
    """Why it goes no further."""

    def __init__(self, raw_bytes: bytes, call: "PendingCall", from_id: str) -> None:
        self.raw_bytes = raw_bytes
        """The envelope, as it came or as the pump built it."""
        self.call = call
        """What is under way for the external message that this one follows from."""
        self.from_id = from_id
        """Who sent it, as the pump knows."""

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """What steps tell each other."""
        return {}


@dataclass(slots=True, eq=False)
class Delivery:
    """A message for a handler."""

    target: Target
    """Where it goes."""
    message: MessageState
    """The message."""
    number: int = 0
    """Its number in the journal; 0 until it is noted there."""
    state: DeliveryState = DeliveryState.QUEUED
    """Where it is on its way."""
    start: CommitGroup | None = None
    """What its start is written with, once it has a slot."""

    def move(self, event: DeliveryEvent) -> None:
        """Change its state as an event does."""
        self.state = DELIVERY[self.state][event]

    @property
    def listener_name(self) -> str:
        """The listener whose handler is to run."""
        return self.target.listener.name

    @property
    def depth(self) -> int:
        """How many listeners are on the path of its thread."""
        return self.target.thread.depth


Step = Callable[[MessageState], Awaitable[None] | None]
"""One step: it reads the state, and sets `error` to stop the message. It may be `async def`."""


_S = TypeVar("_S", bound=Callable[..., object])


def from_outside(step: _S) -> _S:
    """Mark a step that has nothing to do for a message that the pump composed itself."""
    step.__dict__["from_outside"] = True
    return step


class Pipeline:
    """An ordered list of steps; the first that sets an error, or raises, is the last.

    Args:
        steps: The steps; a step is found again by the name of its function.
    """

    def __init__(self, steps: Iterable[Step]) -> None:
        self._set(steps)

    def _set(self, steps: Iterable[Step]) -> None:
        self._steps = tuple(steps)
        self._within = tuple(
            step for step in self._steps if not getattr(step, "from_outside", False)
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the steps, in their order."""
        return tuple(map(_name_of, self._steps))

    def replace(self, name: str, *steps: Step) -> None:
        """Put other steps in the place of one; none removes it.

        Raises:
            KeyError: There is no step of that name.
        """
        if name not in self.names:
            raise KeyError(name)
        index = self.names.index(name)
        self._set((*self._steps[:index], *steps, *self._steps[index + 1 :]))

    def insert(self, index: int, step: Step) -> None:
        """Put a step before the one at an index; messages under way keep the steps they had."""
        self._set((*self._steps[:index], step, *self._steps[index:]))

    async def run(self, state: MessageState) -> None:
        """Take a message through the steps; one that has failed before goes through them all."""
        before = state.error
        for step in self._within if state.composed else self._steps:
            waiting = step(state)
            if waiting is not None:
                await waiting
            if state.error is not before:
                break


def _name_of(step: Step) -> str:
    return getattr(step, "__name__", type(step).__name__)


@dataclass(frozen=True, slots=True)
class Request:
    """What a listener in the process of the pump is called with; the pump established all of it.

    Example:
        ```python
        from agentix.agentserver import Request


        async def count(request: Request) -> bytes:
            request.record_tokens(len(request.xml))
            return b"<counted/>"
        ```
    """

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
    record_tokens: Callable[[int], None]
    """Books so many tokens to the caller's thread, and tells it as a `token_usage` event."""


@dataclass(frozen=True, slots=True)
class InProcessListener:
    """A listener that runs in the pump, and that listeners may name as a peer.

    Example:
        ```python
        from agentix.agentserver import InProcessListener, Request


        async def greet(request: Request) -> bytes:
            return f"<greeting>Hello, {request.caller}</greeting>".encode()


        listener = InProcessListener("greeter", "Greets whoever calls.", greet)
        ```
    """

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


@dataclass(slots=True, eq=False)
class Listener:
    """A listener that can be called."""

    name: str
    """Its name."""
    description: str
    """What it is for."""
    codecs: tuple[PayloadCodec | None, ...]
    """The codec of its payload, then those of its reply classes; `None` takes any element."""
    pipeline: Pipeline
    """The steps of its own that a message for it goes through."""
    handler_seconds: float
    """Seconds that it may take for one message."""
    iterations: int
    """Messages that it handles in one thread for one message from its caller."""
    tokens: int | None = None
    """Tokens that it may use in one thread."""
    source: HandlerSource | None = None
    """Where its code is; `None` for one in the process of the pump."""
    in_process: InProcessListener | None = None
    """What runs in the pump for it."""
    agent: bool = False
    """Whether it is an agent."""
    broadcast: bool = False
    """Whether it answers the root tag of its group too."""
    peers: tuple[str, ...] = ()
    """The names that it may call."""
    routes: "Mapping[str, tuple[Listener, ...]]" = field(default_factory=dict)
    """The listeners behind each root tag that it may emit; its own among them."""
    prefixes: "tuple[tuple[str, Listener], ...]" = ()
    """The peers that take every root tag with a prefix."""
    group_codec: PayloadCodec | None = None
    """The codec of its payload under the root tag of its group."""
    replies: Mapping[str, int] = field(default_factory=dict)
    """Which class takes a reply, by the tag; the empty one takes all others."""

    @property
    def root(self) -> str:
        """The root tag of its payload; for one that takes several, what they begin with."""
        codec = self.codecs[0]
        return f"{self.name.lower()}." if codec is None else codec.root

    @property
    def group(self) -> str | None:
        """The group that it answers for: its name without the last segment."""
        return self.name.rpartition(".")[0] if self.broadcast else None

    @property
    def group_root(self) -> str | None:
        """The root tag of its group."""
        return None if self.group_codec is None else self.group_codec.root

    def tags(self) -> Iterator[str]:
        """Return the tags of its payload: unqualified, and in its own XML namespace."""
        yield self.root
        yield f"{{{listener_namespace(self.name)}}}{self.root}"

    def codec(self, payload_class: int, tag: str) -> PayloadCodec | None:
        """Return the codec of a class for a tag; `None` where any element will do."""
        if self.group_codec is not None and tag == self.group_codec.root:
            return self.group_codec
        return self.codecs[payload_class]

    def reply_class(self, tag: str) -> int | None:
        """Return which class takes a reply of a tag; `None` where it takes none."""
        index = self.replies.get(tag)
        return self.replies.get("") if index is None else index


class ListenerRegistry:
    """All listeners. It changes as a whole: a listener is in every table, or in none."""

    def __init__(self) -> None:
        self._listeners: dict[str, Listener] = {}
        self._roots: dict[str, tuple[Listener, ...]] = {}
        self._prefixes: tuple[tuple[str, Listener], ...] = ()

    def __len__(self) -> int:
        return len(self._listeners)

    def __iter__(self) -> Iterator[Listener]:
        return iter(tuple(self._listeners.values()))

    def __contains__(self, name: object) -> bool:
        return name in self._listeners

    def get(self, name: str) -> Listener | None:
        """Return the listener of a name, where there is one."""
        return self._listeners.get(name)

    def find(self, tag: str) -> tuple[Listener, ...]:
        """Return the listeners behind a tag, whoever asks; none where it is nobody's."""
        return self._roots.get(tag) or by_prefix(self._prefixes, tag)

    def named(self, name: str) -> tuple[Listener, ...]:
        """Return the listener of a name, or the members of the group of that name."""
        listener = self._listeners.get(_listener_name(name))
        if listener is not None:
            return (listener,)
        return tuple(each for each in self._listeners.values() if each.group == name)

    def add(self, listeners: Sequence[Listener]) -> None:
        """Add listeners, all or none.

        Raises:
            RegistrationError: A name or a root tag is taken; nothing has changed.
        """
        self._publish([*self._listeners.values(), *listeners])

    def remove(self, name: str) -> Listener:
        """Remove a listener.

        Raises:
            KeyError: There is none of that name.
        """
        listener = self._listeners[name]
        self._publish([each for each in self._listeners.values() if each is not listener])
        return listener

    def _publish(self, listeners: Sequence[Listener]) -> None:
        names = _by_name(listeners)
        roots = _by_root(listeners)
        self._listeners, self._roots = names, roots
        self._prefixes = tuple(_prefixes(listeners))
        for listener in listeners:
            self._connect(listener)

    def _connect(self, listener: Listener) -> None:
        """Compile the routes of a listener from the names of its peers."""
        routes: dict[str, tuple[Listener, ...]] = {}
        peers: list[Listener] = []
        for peer in listener.peers:
            found = self.named(peer)
            if found and _listener_name(peer) not in self._listeners:
                routes[str(found[0].group_root)] = found
            peers += found if len(found) == 1 and found[0].name == _listener_name(peer) else []
        for each in (listener, *peers):
            routes |= dict.fromkeys(each.tags(), (each,)) if each.codecs[0] is not None else {}
        listener.routes = routes
        listener.prefixes = tuple(_prefixes(peers))


def _listener_name(peer: str) -> str:
    """Return the name of a peer as a listener: `ns.package.function` for `ns:package.function`."""
    return peer.replace("ns:", "ns.", 1) if peer.startswith("ns:") else peer


def _by_name(listeners: Iterable[Listener]) -> dict[str, Listener]:
    names: dict[str, Listener] = {}
    for listener in listeners:
        if listener.name in names:
            raise RegistrationError(
                f"{listener.name!r} is registered already, with the root tag "
                f"{names[listener.name].root!r}: choose another name"
            )
        names[listener.name] = listener
    return names


def _by_root(listeners: Iterable[Listener]) -> dict[str, tuple[Listener, ...]]:
    roots: dict[str, tuple[Listener, ...]] = {}
    groups: dict[str, tuple[Listener, ...]] = {}
    for listener in listeners:
        if listener.codecs[0] is None:
            continue
        for tag in listener.tags():
            if tag in roots:
                raise RegistrationError(
                    f"{listener.name}: the root tag {listener.root!r} is taken by "
                    f"{roots[tag][0].name!r}: choose another name or payload class"
                )
            roots[tag] = (listener,)
        if listener.group_root is not None:
            groups[listener.group_root] = _grown(groups.get(listener.group_root, ()), listener)
    _check_groups(groups, roots)
    return roots | groups


def _grown(members: tuple[Listener, ...], listener: Listener) -> tuple[Listener, ...]:
    """Add a member to its group; all members take the same class."""
    if members and _payload_class(members[0]) != _payload_class(listener):
        raise RegistrationError(
            f"{listener.name}: the group {listener.group!r} takes {_payload_class(members[0])}, "
            f"and not {_payload_class(listener)}: give its members one class"
        )
    return (*members, listener)


def _payload_class(listener: Listener) -> str:
    return "" if listener.source is None else listener.source.payload_classes[0]


def _check_groups(
    groups: Mapping[str, Sequence[Listener]], roots: Mapping[str, Sequence[Listener]]
) -> None:
    """Refuse a group whose root tag is a listener's, or that has members of two classes."""
    seen: dict[Any, str] = {}
    for root, members in groups.items():
        if root in roots:
            raise RegistrationError(
                f"{members[0].name}: the root tag {root!r} of its group is taken by "
                f"{roots[root][0].name!r}: choose another name"
            )
        group = members[0].group
        if seen.setdefault(group, root) != root:
            raise RegistrationError(
                f"{members[0].name}: the group {group!r} takes {seen[group]!r}, and not {root!r}: "
                "give its members one class"
            )


def _prefixes(listeners: Iterable[Listener]) -> Iterator[tuple[str, Listener]]:
    for listener in listeners:
        if listener.codecs[0] is None:
            yield f"{listener.name.lower()}.", listener


def by_prefix(prefixes: Sequence[tuple[str, Listener]], tag: str) -> tuple[Listener, ...]:
    """Return the listener with the longest prefix of a tag."""
    found = [(prefix, listener) for prefix, listener in prefixes if tag.startswith(prefix)]
    return (max(found, key=lambda each: len(each[0]))[1],) if found else ()
