"""The emitter: what handlers return as messages, and what becomes of messages that fail."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from copy import deepcopy

from lxml import etree
from lxml.etree import _Element as Element

from agentix.agentserver.catalog import Meta
from agentix.agentserver.errors import Malformed
from agentix.agentserver.log import EventLog
from agentix.agentserver.names import Primitive, new_thread_id
from agentix.agentserver.registry import Failure, Listener, ListenerRegistry, MessageState, Step
from agentix.agentserver.routing import Destination, Ingress, route
from agentix.agentserver.state import Delivery, PendingCall, Target, Thread
from agentix.agentserver.xml.envelope import (
    CannedText,
    Emission,
    canonical,
    compose,
    huh,
    read_emission,
)
from agentix.agentserver.xml.parser import MessageLimits

__all__ = [
    "CORE",
    "Emitter",
    "System",
    "attempt_of",
]

logger = logging.getLogger(__name__)


CORE = "core"
"""Who the pump's own messages are from."""

Process = Callable[[MessageState], Awaitable[None]]
Prune = Callable[[Thread, bool], None]


class Emitter:
    """Sends what handlers emit, replies, and the pump's own `<huh>`.

    Args:
        registry: The listeners.
        log: Where security events and repairs are recorded.
        ingress: What opens threads below others.
        limits: What an emission may be made of.
        depth: How many listeners may be on a path.
        process: Takes a message through all steps.
        prune: Ends what is below a thread, and the thread itself where that is said.
    """

    def __init__(
        self,
        registry: ListenerRegistry,
        log: EventLog,
        ingress: Ingress,
        limits: MessageLimits,
        depth: int,
        process: Process,
        prune: Prune,
    ) -> None:
        self._registry = registry
        self._log = log
        self._ingress = ingress
        self._limits = limits
        self._depth = depth
        self._process = process
        self._prune = prune

    async def emit(self, delivery: Delivery, returned: bytes) -> None:
        """Send the payloads in what a handler returned, in their order."""
        thread, call = delivery.target.thread, delivery.state.call
        try:
            emission = read_emission(returned, self._limits)
        except Malformed as error:
            failure = Failure(CannedText.MALFORMED, str(error))
            await self._refuse(thread, returned, failure, call)
            return
        if emission.envelopes or emission.repairs or emission.prose:
            self._note(delivery.target, emission)
        if not emission.payloads:
            await self.fail(delivery, Failure(CannedText.NO_BYTES, "it returned no element"))
            return
        answered = False
        for element in emission.payloads:
            if thread.alive:
                sent = await self._emit(delivery.target, element, call, emission.repairs)
                answered = answered or sent
        if not answered:
            dropped = Failure(CannedText.NO_BYTES, "all that it returned was dropped")
            await self.fail(delivery, dropped)

    async def _emit(
        self, source: Target, element: Element, call: PendingCall, repairs: tuple[str, ...]
    ) -> bool:
        """Send one payload where its tag says; return whether anybody hears of it."""
        thread = source.thread
        tag = str(element.tag)
        way = route(source.listener, tag)
        match way:
            case Destination.UP:
                receiver, targets = self._receiver(thread.parent, element)
                if receiver is not None:
                    sender = source.listener.name
                    await self._send(sender, receiver, element, call, thread, repairs, targets)
            case tuple():
                for listener in way:
                    # Steps may change what they are given, and others are to get it as it was.
                    own = element if listener is way[-1] else deepcopy(element)
                    if not await self._call(source, listener, own, call, repairs):
                        break
            case Primitive.TODO_UNTIL:
                await self.reply(thread, element, CORE, call, thread, repairs)
            case Primitive.RETURN | Primitive.HALT:
                await self.reply(thread.parent, element, CORE, call, thread, repairs)
                self._prune(thread, way is Primitive.HALT)
            case Destination.DROP:
                self._security(source.listener.name, thread, f"it emitted {tag}")
                return False
            case Destination.REFUSE:
                failure = Failure(CannedText.INVALID_PAYLOAD, f"{tag} is for none of its peers")
                await self._refuse(thread, attempt_of(element), failure, call)
        return True

    async def _call(
        self,
        source: Target,
        listener: Listener,
        element: Element,
        call: PendingCall,
        repairs: tuple[str, ...],
    ) -> bool:
        """Send an element to a peer, or to the emitter itself; return whether it was taken."""
        thread = source.thread
        if listener is not source.listener:
            if thread.depth >= self._depth:
                failure = Failure(CannedText.LIMIT_EXCEEDED, f"{self._depth} listeners on a path")
                await self._refuse(thread, attempt_of(element), failure, call)
                return False
            thread = self._ingress.child(thread, listener.name)
        return await self._send(
            source.listener.name,
            thread,
            element,
            call,
            source.thread,
            repairs,
            (Target(listener, thread),),
        )

    async def reply(
        self,
        thread: Thread | None,
        element: Element,
        sender: str,
        call: PendingCall,
        emitter: Thread | None = None,
        repairs: tuple[str, ...] = (),
        *,
        is_huh: bool = False,
    ) -> None:
        """Send an element to a thread, or to the first one above that takes such replies."""
        receiver, targets = self._receiver(thread, element)
        if receiver is not None:
            await self._send(sender, receiver, element, call, emitter, repairs, targets, is_huh)

    def _receiver(
        self, thread: Thread | None, element: Element
    ) -> tuple[Thread | None, tuple[Target, ...]]:
        """Return the thread that takes a reply, and as what; none where all are forgotten."""
        while thread is not None and thread.parent is not None:
            listener = self._registry.get(thread.name) if thread.alive else None
            index = None if listener is None else listener.reply_class(str(element.tag))
            if listener is not None and index is not None:
                return thread, (Target(listener, thread, index),)
            thread = thread.parent
        return thread, ()

    async def _send(
        self,
        sender: str,
        thread: Thread,
        element: Element,
        call: PendingCall,
        emitter: Thread | None,
        repairs: tuple[str, ...],
        targets: tuple[Target, ...],
        is_huh: bool = False,
    ) -> bool:
        """Compose the message around an element, and take it through all steps."""
        try:
            envelope = compose(sender, thread.name, thread.id, element, self._limits, repairs)
        except Malformed as error:
            state = MessageState(b"", call, sender)
            state.error = Failure(CannedText.MALFORMED, str(error))
        else:
            state = MessageState(envelope.canonical, call, sender)
            state.composed = True
            state.payload_tree = envelope.payload
            state.canonical = envelope.canonical
            state.to = envelope.to
            state.repairs = envelope.repairs
            state.target_listeners = targets
        state.thread_id = thread.id
        state.thread = thread
        state.emitter = emitter
        state.attempt = element
        state.is_huh = is_huh
        await self._process(state)
        return state.error is None

    async def tell(self, principal: str, element: Element, call: PendingCall) -> None:
        """Send a `<huh>` to a principal whose message had no thread of its own."""
        thread = Thread(new_thread_id(), principal, None)
        await self._send(CORE, thread, element, call, None, (), (), True)

    async def fail(self, delivery: Delivery, failure: Failure) -> None:
        """Tell the caller of a handler that there will be no answer; the thread lives on."""
        thread, state = delivery.target.thread, delivery.state
        name = delivery.target.listener.name
        text = failure.text or CannedText.HANDLER_FAILED
        reason = f"{text.value}: {failure.detail}"
        logger.warning("%s failed in thread %s: %s", name, thread.id, reason)
        attempt = b"" if state.payload_tree is None else canonical(state.payload_tree)
        element = huh(text, attempt)
        await self.reply(thread.parent, element, CORE, state.call, is_huh=True)

    async def _refuse(
        self, thread: Thread, attempt: bytes, failure: Failure, call: PendingCall
    ) -> None:
        """Return what cannot be sent to the system pipeline."""
        state = MessageState(attempt, call, thread.name)
        state.emitter = thread
        state.thread_id = thread.id
        state.error = failure
        await self._process(state)

    def _security(self, name: str, thread: Thread, detail: str) -> None:
        logger.warning("%s in thread %s: %s", name, thread.id, detail)
        self._log.event("security", thread=thread.id, sender=name, detail=detail)

    def _note(self, source: Target, emission: Emission) -> None:
        """Record what was done to an emission: text dropped, XML mended, claims ignored."""
        if emission.envelopes:
            self._security(source.listener.name, source.thread, "it emitted an envelope of its own")
        notes = [*emission.repairs]
        if emission.prose:
            notes.append(f"text between payloads was dropped: {emission.prose:.200}")
        if notes:
            thread = source.thread
            logger.info("thread %s: %s", thread.id, "; ".join(notes))
            self._log.event("repair", thread=thread.id, sender=thread.name, detail="; ".join(notes))


def attempt_of(attempt: Element | bytes) -> bytes:
    """Return what a `<huh>` quotes as bytes."""
    if isinstance(attempt, bytes):
        return attempt
    data: bytes = etree.tostring(attempt, with_tail=False)
    return data


class System:
    """The steps of the permanent pipeline that needs no listener."""

    def __init__(self, log: EventLog, emitter: Emitter, meta: Meta) -> None:
        self._log = log
        self._emitter = emitter
        self._meta = meta

    def steps(self) -> Sequence[Step]:
        """Return the steps in their order."""
        return (self.answer_meta, self.record_failure, self.answer_huh)

    async def answer_meta(self, state: MessageState) -> None:
        """Answer a query about capabilities, where the organism's settings allow it."""
        if not state.system or state.error is not None or state.principal is None:
            return
        assert state.payload_tree is not None
        answer = self._meta.answer(state.principal, state.payload_tree)
        if answer is None:
            state.error = Failure(CannedText.INVALID_PAYLOAD, "a query that is not allowed")
            return
        await self._emitter.reply(state.thread, answer, CORE, state.call)

    async def record_failure(self, state: MessageState) -> None:
        """Log why a message goes no further; the reason never travels."""
        if state.error is None:
            return
        level = logging.WARNING if state.error.security else logging.INFO
        detail = state.error.detail
        logger.log(level, "a message of %s goes no further: %s", state.from_id, detail)
        if state.error.security:
            self._log.event("security", thread=state.thread_id, sender=state.from_id, detail=detail)

    async def answer_huh(self, state: MessageState) -> None:
        """Tell the sender, in canned words; about a `<huh>` nobody is told."""
        if state.error is None or state.error.text is None or state.is_huh:
            return
        attempt = state.raw_bytes if state.attempt is None else state.attempt
        element = huh(state.error.text, attempt_of(attempt))
        receiver = state.emitter or state.thread
        if receiver is not None:
            await self._emitter.reply(receiver, element, CORE, state.call, is_huh=True)
        elif state.principal is not None:
            await self._emitter.tell(state.principal.name, element, state.call)
