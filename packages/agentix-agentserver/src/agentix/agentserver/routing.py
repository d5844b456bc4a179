"""Routing: which listeners a message from outside is for, and where an emitted element goes."""

from collections.abc import Sequence
from enum import Enum

from agentix.agentserver.errors import Malformed, PayloadError
from agentix.agentserver.log import EventLog
from agentix.agentserver.names import (
    META_NAMESPACE,
    PRIVILEGED_NAMESPACE,
    Primitive,
    Principal,
    is_thread_id,
    new_thread_id,
    primitive,
)
from agentix.agentserver.registry import (
    Failure,
    Listener,
    ListenerRegistry,
    MessageState,
    Step,
    Target,
    by_prefix,
    from_outside,
)
from agentix.agentserver.state import Thread, ThreadRegistry
from agentix.agentserver.xml.envelope import CannedText, build_envelope, canonical, open_envelope
from agentix.agentserver.xml.parser import MessageLimits

__all__ = [
    "Destination",
    "Ingress",
    "Route",
    "read_payload",
    "receiver_of",
    "route",
    "target_again",
    "validate_payload",
]


PRIVILEGED = f"{{{PRIVILEGED_NAMESPACE}}}"
META = f"{{{META_NAMESPACE}}}"


class Ingress:
    """The steps from bytes to the listeners that a message is for."""

    def __init__(
        self,
        registry: ListenerRegistry,
        threads: ThreadRegistry,
        log: EventLog,
        limits: MessageLimits,
    ) -> None:
        self._registry = registry
        self._threads = threads
        self._log = log
        self._limits = limits

    def steps(self) -> Sequence[Step]:
        """Return the steps in their order."""
        return (
            self.open_message,
            self.check_provenance,
            self.assign_thread,
            self.route_message,
        )

    @from_outside
    def open_message(self, state: MessageState) -> None:
        """Bound, parses, repair, canonicalises and validates the envelope."""
        try:
            envelope = open_envelope(state.raw_bytes, self._limits)
        except Malformed as error:
            state.error = Failure(CannedText.MALFORMED, str(error))
            return
        state.envelope_tree = envelope.payload.getparent()
        state.payload_tree = envelope.payload
        state.canonical = envelope.canonical
        state.to = envelope.to
        state.repairs = envelope.repairs
        state.thread_id = envelope.thread or ""
        state.claimed = envelope.sender

    @from_outside
    def check_provenance(self, state: MessageState) -> None:
        """Refuse a `<from>` that is not who the pump knows the sender to be."""
        if state.claimed == state.from_id:
            return
        detail = f"{state.from_id} claims to be {state.claimed!r}"
        state.thread_id = ""
        state.error = Failure(CannedText.MALFORMED, detail, security=True)

    @from_outside
    def assign_thread(self, state: MessageState) -> None:
        """Keep the thread of an external message that is new or its sender's; else opens one."""
        if state.principal is None:
            return
        self._find_thread(state, state.principal)
        if state.repairs:
            self._note_repairs(state)

    def _find_thread(self, state: MessageState, principal: Principal) -> None:
        given = state.thread_id
        thread = self._threads.get(given) if given else None
        if thread is None and is_thread_id(given):
            state.thread = self._open(given, principal.name)
        elif thread is not None and thread.parent is None and thread.name == principal.name:
            state.thread = thread
        else:
            self._replace_thread(state, given, principal)

    def _replace_thread(self, state: MessageState, given: str, principal: Principal) -> None:
        """Move a message to a thread of its own."""
        state.thread = self._open(new_thread_id(), principal.name)
        state.thread_id = state.thread.id
        reason = f"thread {given!r} was replaced" if given else "a thread was assigned"
        state.repairs = (*state.repairs, reason)

    def _note_repairs(self, state: MessageState) -> None:
        """List what was repaired in the message itself, which stays canonical."""
        assert state.payload_tree is not None
        state.canonical = build_envelope(
            state.from_id, state.to, state.thread_id, state.payload_tree, state.repairs
        )

    def _open(self, id: str, owner: str) -> Thread:  # noqa: A002 - the thread's word for it
        thread = self._threads.open_root(id, owner)
        self._log.opened(thread)
        return thread

    @from_outside
    def route_message(self, state: MessageState) -> None:
        """Find the listeners of an external message by its root tag; the pump set all others."""
        if state.principal is None:
            return
        assert state.payload_tree is not None
        tag = str(state.payload_tree.tag)
        if tag.startswith(PRIVILEGED):
            state.error = Failure(
                None, f"the privileged root {tag!r} on the main bus", security=True
            )
        elif tag.startswith(META):
            state.system = True
        else:
            state.target_listeners = self._targets(state, self._allowed(state, tag))

    def _allowed(self, state: MessageState, tag: str) -> Sequence[Listener]:
        """Return the listeners of a tag that the sender may call, and addressed where it did."""
        assert state.principal is not None
        listeners = self._registry.find(tag)
        roots = state.principal.roots
        if roots is not None and tag.rpartition("}")[2] not in roots:
            return ()
        if state.to is None:
            return listeners
        return [each for each in listeners if state.to in (each.name, each.group)]

    def _targets(self, state: MessageState, listeners: Sequence[Listener]) -> tuple[Target, ...]:
        if not listeners:
            state.error = Failure(CannedText.INVALID_PAYLOAD, "a root tag that leads nowhere")
        thread = state.thread
        assert thread is not None
        return tuple([Target(each, self.child(thread, each.name)) for each in listeners])

    def child(self, parent: Thread, name: str) -> Thread:
        """Return the thread of a listener below another one, a new one where there is none."""
        thread = parent.child(name)
        if thread is None:
            thread = self._threads.open_child(parent, name)
            self._log.opened(thread)
        return thread


def validate_payload(state: MessageState) -> None:
    """Refuse a payload that the schema of its listener refuses."""
    assert state.target is not None
    assert state.payload_tree is not None
    if state.codec is not None and not state.codec.validate(state.payload_tree):
        name = state.target.listener.name
        state.error = Failure(CannedText.INVALID_PAYLOAD, f"the schema of {name} refuses it")


def read_payload(state: MessageState) -> None:
    """Turn a valid payload into plain values; a class that takes any reply gets tag and XML."""
    assert state.payload_tree is not None
    if state.codec is None:
        tag = str(state.payload_tree.tag).rpartition("}")[2]
        state.payload = {"tag": tag, "xml": canonical(state.payload_tree).decode()}
        return
    try:
        state.payload = state.codec.decode(state.payload_tree)
    except PayloadError as error:
        state.error = Failure(CannedText.INVALID_PAYLOAD, str(error))


class Destination(Enum):
    """Where else an element can go."""

    UP = "to the parent"
    """To the parent of the emitter, from the emitter."""
    DROP = "nowhere"
    """A privileged root."""
    REFUSE = "nowhere, and the emitter is told so"
    """A root tag of nobody, or of a listener that is no peer: one cannot tell which."""


Route = tuple[Listener, ...] | Primitive | Destination
"""A declared peer, the members of a declared group or the emitter itself; or another way."""


def route(emitter: Listener, tag: str) -> Route:
    """Return where an element of a tag goes that a listener emitted.

    The look-ups are the same for a root tag that does not exist and for one of a listener that is
    no peer, so neither the answer nor its time tells them apart.
    """
    listeners = emitter.routes.get(tag)
    if listeners is not None:
        return listeners
    own = primitive(tag)
    if own is not None:
        return own
    if tag.startswith(PRIVILEGED):
        return Destination.DROP
    if "." not in tag.rpartition("}")[2]:
        return Destination.UP
    found = by_prefix(emitter.prefixes, tag)
    return found or Destination.REFUSE


def receiver_of(
    registry: ListenerRegistry, thread: Thread | None, tag: str
) -> tuple[Thread | None, tuple[Target, ...]]:
    """Return the thread that takes a reply, and as what: this one, or the first above that does.

    Returns:
        The thread, without a target where it is a principal's; no thread where all are forgotten.
    """
    while thread is not None and thread.parent is not None:
        listener = registry.get(thread.name) if thread.alive else None
        index = None if listener is None else listener.reply_class(tag)
        if listener is not None and index is not None:
            return thread, (Target(listener, thread, index),)
        thread = thread.parent
    return thread, ()


def target_again(registry: ListenerRegistry, thread: Thread, tag: str) -> tuple[Target, ...]:
    """Return the target of a message that was under way in a thread; none where it is gone."""
    listener = registry.get(thread.name)
    if listener is None:
        return ()
    if listener in registry.find(tag):
        return (Target(listener, thread),)
    index = listener.reply_class(tag)
    return () if index is None else (Target(listener, thread, index),)
