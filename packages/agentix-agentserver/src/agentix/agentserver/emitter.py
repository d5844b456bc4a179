"""The emitter: turns what handlers return into messages, whose provenance is the pump's own."""

import logging
from collections.abc import Awaitable, Callable

from lxml import etree
from lxml.etree import _Element as Element

from agentix.agentserver.core import Primitive
from agentix.agentserver.errors import Malformed
from agentix.agentserver.ingress import Ingress
from agentix.agentserver.ledger import Ledger
from agentix.agentserver.names import new_thread_id
from agentix.agentserver.pipeline import Failure, MessageState
from agentix.agentserver.registry import Listener, Registry
from agentix.agentserver.routing import Calls, Way, route
from agentix.agentserver.scheduler import Delivery, Exchange, Target
from agentix.agentserver.threads import Thread
from agentix.agentserver.xml.canonical import canonical
from agentix.agentserver.xml.emission import Emission, read_emission
from agentix.agentserver.xml.envelope import build_envelope
from agentix.agentserver.xml.huh import CannedText, huh
from agentix.agentserver.xml.limits import Limits

__all__ = ["CORE", "Emitter", "attempt_of"]

logger = logging.getLogger(__name__)

CORE = "core"
"""Who the pump's own messages are from."""

Process = Callable[[MessageState], Awaitable[None]]
Prune = Callable[[Thread, bool], None]


class Emitter:
    """Sends what handlers emit, replies, and the pump's own `<huh>`.

    Args:
        registry: The listeners.
        ledger: Where security events and repairs are recorded.
        ingress: What opens threads below others.
        limits: What an emission may be made of.
        depth: How many listeners may be on a path.
        process: Takes a message through all steps.
        prune: Ends what is below a thread, and the thread itself where that is said.
    """

    def __init__(
        self,
        registry: Registry,
        ledger: Ledger,
        ingress: Ingress,
        limits: Limits,
        depth: int,
        process: Process,
        prune: Prune,
    ) -> None:
        self._registry = registry
        self._ledger = ledger
        self._ingress = ingress
        self._limits = limits
        self._depth = depth
        self._process = process
        self._prune = prune

    async def emit(self, delivery: Delivery, returned: bytes) -> None:
        """Sends the payloads in what a handler returned, in their order."""
        thread, exchange = delivery.target.thread, delivery.state.exchange
        try:
            emission = read_emission(returned, self._limits)
        except Malformed as error:
            failure = Failure(CannedText.MALFORMED, str(error))
            await self._refuse(thread, returned, failure, exchange)
            return
        self._note(delivery.target, emission)
        if not emission.payloads:
            await self.fail(delivery, CannedText.NO_BYTES, "it returned no element")
            return
        answered = False
        for element in emission.payloads:
            if thread.alive:
                sent = await self._emit(delivery.target, element, exchange, emission.repairs)
                answered = answered or sent
        if not answered:
            await self.fail(delivery, CannedText.NO_BYTES, "all that it returned was dropped")

    async def _emit(
        self, source: Target, element: Element, exchange: Exchange, repairs: tuple[str, ...]
    ) -> bool:
        """Sends one payload where its tag says; gives whether anybody hears of it."""
        thread = source.thread
        tag = str(element.tag)
        match route(source.listener, tag):
            case Calls(listeners):
                for listener in listeners:
                    if not await self._call(source, listener, element, exchange, repairs):
                        break
            case Way.UP:
                sender = source.listener.name
                await self.reply(thread.parent, element, sender, exchange, thread, repairs)
            case Primitive.TODO_UNTIL:
                await self.reply(thread, element, CORE, exchange, thread, repairs)
            case Primitive.RETURN | Primitive.HALT as way:
                await self.reply(thread.parent, element, CORE, exchange, thread, repairs)
                self._prune(thread, way is Primitive.HALT)
            case Way.DROP:
                self._security(source.listener.name, thread, f"it emitted {tag}")
                return False
            case Way.REFUSE:
                failure = Failure(CannedText.INVALID_PAYLOAD, f"{tag} is for none of its peers")
                await self._refuse(thread, attempt_of(element), failure, exchange)
        return True

    async def _call(
        self,
        source: Target,
        listener: Listener,
        element: Element,
        exchange: Exchange,
        repairs: tuple[str, ...],
    ) -> bool:
        """Sends an element to a peer, or to the emitter itself; gives whether it was taken."""
        thread = source.thread
        if listener is not source.listener:
            if thread.depth >= self._depth:
                failure = Failure(CannedText.LIMIT_EXCEEDED, f"{self._depth} listeners on a path")
                await self._refuse(thread, attempt_of(element), failure, exchange)
                return False
            thread = self._ingress.child(thread, listener.name)
        return await self._send(
            source.listener.name,
            thread,
            element,
            exchange,
            source.thread,
            repairs,
            (Target(listener, thread),),
        )

    async def reply(
        self,
        thread: Thread | None,
        element: Element,
        sender: str,
        exchange: Exchange,
        emitter: Thread | None = None,
        repairs: tuple[str, ...] = (),
        *,
        is_huh: bool = False,
    ) -> None:
        """Sends an element to a thread, or to the first one above that takes such replies."""
        while thread is not None and thread.parent is not None:
            listener = self._registry.get(thread.name) if thread.alive else None
            index = None if listener is None else listener.reply_class(str(element.tag))
            if listener is not None and index is not None:
                target = Target(listener, thread, index)
                await self._send(
                    sender, thread, element, exchange, emitter, repairs, (target,), is_huh=is_huh
                )
                return
            thread = thread.parent
        if thread is not None:
            await self._send(sender, thread, element, exchange, emitter, repairs, (), is_huh=is_huh)

    async def _send(
        self,
        sender: str,
        thread: Thread,
        element: Element,
        exchange: Exchange,
        emitter: Thread | None,
        repairs: tuple[str, ...],
        targets: tuple[Target, ...],
        *,
        is_huh: bool = False,
    ) -> bool:
        """Builds the envelope around an element, and takes it through all steps."""
        try:
            envelope = build_envelope(sender, thread.name, thread.id, element, repairs)
        except Malformed as error:
            failure = Failure(CannedText.MALFORMED, str(error))
            await self._refuse(emitter or thread, attempt_of(element), failure, exchange)
            return False
        state = MessageState(
            raw_bytes=envelope,
            exchange=exchange,
            emitter=emitter,
            attempt=element,
            is_huh=is_huh,
            from_id=sender,
            thread=thread,
            target_listeners=targets,
        )
        await self._process(state)
        return state.error is None

    async def tell(self, principal: str, element: Element, exchange: Exchange) -> None:
        """Sends a `<huh>` to a principal whose message had no thread of its own."""
        thread = Thread(new_thread_id(), principal, None)
        await self._send(CORE, thread, element, exchange, None, (), (), is_huh=True)

    async def fail(self, delivery: Delivery, text: CannedText, detail: str) -> None:
        """Tells the caller of a handler that there will be no answer; the thread lives on."""
        thread, state = delivery.target.thread, delivery.state
        name = delivery.target.listener.name
        logger.warning("%s failed in thread %s: %s: %s", name, thread.id, text.value, detail)
        attempt = b"" if state.payload_tree is None else canonical(state.payload_tree)
        element = huh(text, attempt)
        await self.reply(thread.parent, element, CORE, state.exchange, is_huh=True)

    async def _refuse(
        self, thread: Thread, attempt: bytes, failure: Failure, exchange: Exchange
    ) -> None:
        """Gives what can not be sent to the system pipeline."""
        state = MessageState(
            raw_bytes=attempt,
            exchange=exchange,
            emitter=thread,
            attempt=attempt,
            from_id=thread.name,
            thread_id=thread.id,
            error=failure,
        )
        await self._process(state)

    def _security(self, name: str, thread: Thread, detail: str) -> None:
        logger.warning("%s in thread %s: %s", name, thread.id, detail)
        self._ledger.event("security", thread=thread.id, sender=name, detail=detail)

    def _note(self, source: Target, emission: Emission) -> None:
        """Records what was done to an emission: text dropped, XML mended, claims ignored."""
        if emission.envelopes:
            self._security(source.listener.name, source.thread, "it emitted an envelope of its own")
        notes = [*emission.repairs]
        if emission.prose:
            notes.append(f"text between payloads was dropped: {emission.prose:.200}")
        if notes:
            thread = source.thread
            logger.info("thread %s: %s", thread.id, "; ".join(notes))
            self._ledger.event(
                "repair", thread=thread.id, sender=thread.name, detail="; ".join(notes)
            )


def attempt_of(attempt: Element | bytes) -> bytes:
    """Gives what a `<huh>` quotes as bytes."""
    if isinstance(attempt, bytes):
        return attempt
    data: bytes = etree.tostring(attempt, with_tail=False)
    return data
