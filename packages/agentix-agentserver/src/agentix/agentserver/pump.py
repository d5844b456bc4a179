"""The pump: takes messages through their steps to handlers, and what these return to others.

    post ──► process ──► deliver ──► handler ──► emit ──► process ──► deliver, or out to the sender

A thread that has something to do has a task, which takes its deliveries one after the other. What
happens is noted in the log; it is written, and told to subscribers, before a handler or a sender
sees anything of it.
"""

import asyncio
import logging
from collections import deque
from copy import deepcopy

from lxml import etree
from lxml.etree import _Element as Element

from agentix.agentserver.catalog import Meta
from agentix.agentserver.commits import GroupCommit, PendingCall
from agentix.agentserver.errors import FailureKind, HandlerFailed, JournalError, Malformed
from agentix.agentserver.log import EventKind, EventLog, PendingDelivery
from agentix.agentserver.names import RESERVED, Primitive, Principal, new_thread_id
from agentix.agentserver.registry import (
    Delivery,
    Failure,
    Listener,
    ListenerRegistry,
    MessageState,
    Pipeline,
    Request,
    Target,
)
from agentix.agentserver.routing import Destination, Ingress, receiver_of, route, target_again
from agentix.agentserver.spec import LimitsSpec, MetaSpec
from agentix.agentserver.state import (
    DeliveryEvent,
    DeliveryState,
    Slots,
    Thread,
    ThreadEvent,
    ThreadRegistry,
    ThreadState,
)
from agentix.agentserver.worker.handlers import Handlers
from agentix.agentserver.xml.envelope import (
    CannedText,
    Emission,
    canonical,
    compose,
    huh,
    read_emission,
)
from agentix.agentserver.xml.parser import MessageLimits

__all__ = ["CORE", "Pump"]

logger = logging.getLogger(__name__)

CORE = "core"
"""Who the pump's own messages are from."""


class Pump:
    """Moves messages between principals and listeners.

    Args:
        registry: The listeners.
        log: What happened.
        handlers: What runs the code of listeners.
        limits: What is bounded.
        meta: Who may ask about listeners.
        depth_first: Whether the deepest waiting thread goes first.
    """

    def __init__(
        self,
        registry: ListenerRegistry,
        log: EventLog,
        handlers: Handlers,
        limits: LimitsSpec,
        meta: MetaSpec,
        *,
        depth_first: bool = False,
    ) -> None:
        self.threads = ThreadRegistry()
        self._registry = registry
        self._log = log
        self._handlers = handlers
        self._meta = Meta(meta, registry)
        self._depth = limits.depth
        self._bounds = MessageLimits(size=limits.message_bytes)
        self._slots: Slots[Delivery] = Slots(
            limits.concurrent_handlers, limits.concurrent_per_listener, depth_first=depth_first
        )
        self._ingress = Ingress(registry, self.threads, log, self._bounds)
        self.ingress = Pipeline(self._ingress.steps())
        """The steps of every message, before those of its listener."""
        self.system = Pipeline((self.answer_meta, self.record_failure, self.answer_huh))
        """The steps of messages that no listener gets."""
        self._commits = GroupCommit(log)
        self._inboxes: dict[Thread, deque[Delivery]] = {}
        self._turns: dict[Delivery, asyncio.Future[None]] = {}
        self._serving: dict[Thread, asyncio.Task[None]] = {}
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = False
        self._forgotten: list[tuple[str, str]] = []
        self._forgetting: asyncio.Task[None] | None = None

    @property
    def running(self) -> int:
        """How many handlers run."""
        return self._slots.running

    # In: a message, from outside or from a handler, through its steps.

    async def post(self, message: bytes, principal: Principal) -> MessageState:
        """Take an external message; its call tells when it is over."""
        state = MessageState(message, PendingCall(), principal.name)
        state.principal = principal
        if principal.name in self._registry or principal.name in RESERVED:
            detail = f"{principal.name} is the name of a listener, or of the pump"
            state.error = Failure(CannedText.MALFORMED, detail, security=True)
        await self.process(state)
        state.call.group = self._commits.group
        state.call.group.accepted.append(state.call)
        self._release(state.call)
        self._commits.soon()
        return state

    async def process(self, state: MessageState) -> None:
        """Take a message through its steps, and on to its listeners or out of the organism."""
        if state.error is None:
            try:
                await self.ingress.run(state)
                for target in state.target_listeners if state.error is None else ():
                    await self._accept(state, target)
            except Exception as error:
                logger.exception("a step failed on a message of %s", state.from_id)
                state.error = Failure(CannedText.INVALID_PAYLOAD, f"a step failed: {error!r}")
        if state.system and state.error is None:
            self._record(state)
            await self._run_system(state)
        if state.error is not None:
            await self._run_system(state)
        elif not state.system:
            self._pass_on(state)

    async def _accept(self, state: MessageState, target: Target) -> None:
        """Take a message through the pipeline of one of its listeners."""
        if state.error is not None:  # on the way to another one
            return
        assert state.payload_tree is not None
        state.target = target
        state.codec = target.listener.codec(target.payload_class, str(state.payload_tree.tag))
        await target.listener.pipeline.run(state)
        target.payload = state.payload

    async def _run_system(self, state: MessageState) -> None:
        try:
            await self.system.run(state)
        except Exception:
            logger.exception("a system step failed on a message of %s", state.from_id)

    def _record(self, state: MessageState) -> int:
        """Note a message for the audit log, with what was repaired in it."""
        kind: EventKind = "huh" if state.is_huh else "message"
        to = state.to or ""
        seq = self._log.event(kind, state.thread_id, state.from_id, to, state.canonical)
        if state.repairs:
            detail = "; ".join(state.repairs)
            self._log.event("repair", state.thread_id, state.from_id, to, detail=detail)
        return seq

    def _pass_on(self, state: MessageState) -> None:
        """Give a message to its listeners, or to the sender of the call that it belongs to."""
        seq = self._record(state)
        if not state.target_listeners:
            state.call.replies.append(state.canonical)
        for target in state.target_listeners:
            delivery = Delivery(target, state)
            starts = self._enqueue(delivery)
            delivery.number = self._log.queued(target.thread, seq, starts)

    def _enqueue(self, delivery: Delivery) -> bool:
        """Let a delivery start, or wait for those before it in its thread, or for a slot.

        Returns:
            Whether it starts, which is for the caller to note.
        """
        delivery.message.call.outstanding += 1
        self._under_way += 1
        self._idle.clear()
        thread = delivery.target.thread
        thread.move(ThreadEvent.DELIVERY)
        inbox = self._inboxes.get(thread)
        if inbox is not None:
            inbox.append(delivery)
            return False
        self._inboxes[thread] = deque((delivery,))
        starts = self._take_slot(delivery)
        self._serving[thread] = asyncio.create_task(self._serve(thread))
        return starts

    def _take_slot(self, delivery: Delivery) -> bool:
        """Let the next delivery of a thread have a slot, or wait for one."""
        delivery.move(DeliveryEvent.HEAD)
        if not self._slots.take(delivery):
            return False
        self._start(delivery)
        return True

    def _start(self, delivery: Delivery) -> None:
        """Let a delivery that has a slot start with what is written next."""
        delivery.move(DeliveryEvent.SLOT)
        delivery.start = self._commits.group

    # Deliver: one thread's messages to its handler, one after the other.

    async def _serve(self, thread: Thread) -> None:
        """Take the deliveries of a thread, oldest first, until there are none."""
        inbox = self._inboxes[thread]
        try:
            while inbox:
                await self.deliver(inbox.popleft())
        except Exception:
            logger.critical("thread %s stands still for a bug", thread.id, exc_info=True)
            return
        del self._inboxes[thread], self._serving[thread]
        thread.move(ThreadEvent.REST)

    async def deliver(self, delivery: Delivery) -> None:
        """Take one delivery from its turn in its thread to its end."""
        if delivery.state is not DeliveryState.STARTING:
            await self._wait_for_start(delivery)
        try:
            assert delivery.start is not None
            await delivery.start.wait()
        except JournalError as error:
            delivery.message.call.fail(error)
            delivery.move(DeliveryEvent.NOT_WRITTEN)
        else:
            if self._closing:  # the journal has it as begun, and the next start reports it
                return
            await self._handle(delivery)
        self._finish(delivery)

    async def _wait_for_start(self, delivery: Delivery) -> None:
        """Wait until a delivery that is the next of its thread has a slot."""
        if delivery.state is DeliveryState.QUEUED and self._take_slot(delivery):
            self._log.started(delivery.number)
            self._commits.soon()
        if delivery.state is DeliveryState.WAITING:
            turn = self._turns[delivery] = asyncio.get_running_loop().create_future()
            await turn

    async def _handle(self, delivery: Delivery) -> None:
        """Let the handler have a delivery, where its thread takes it, and send what it returns."""
        message, target = delivery.message, delivery.target
        thread, listener = target.thread, target.listener
        is_new_request = message.principal is not None or message.emitter is thread.parent
        if not thread.alive or (thread.state is ThreadState.EXHAUSTED and not is_new_request):
            delivery.move(DeliveryEvent.UNSEEN)
            return
        excess = thread.check_limits(
            listener.iterations, listener.tokens, is_new_request=is_new_request
        )
        outcome: bytes | Failure
        if excess is not None:
            delivery.move(DeliveryEvent.REFUSED)
            outcome = Failure(CannedText.LIMIT_EXCEEDED, excess)
        else:
            delivery.move(DeliveryEvent.WRITTEN)
            outcome = await self._run_handler(delivery)
            delivery.move(DeliveryEvent.OUTCOME)
        if thread.alive:
            await self._send_outcome(delivery, outcome)
        delivery.move(DeliveryEvent.SENT)

    async def _run_handler(self, delivery: Delivery) -> bytes | Failure:
        """Return what a handler returns, or how it failed."""
        target = delivery.target
        listener = target.listener
        try:
            if listener.source is None:
                return await self._call_in_process(delivery)
            return await self._handlers.call(
                listener.source,
                target.thread.id,
                target.payload_class,
                target.payload or {},
                listener.handler_seconds,
            )
        except HandlerFailed as failed:
            return _failure_of(failed)
        except Exception as error:  # it must not keep others from theirs
            logger.exception("%s could not be called", listener.name)
            return Failure(CannedText.HANDLER_FAILED, repr(error))

    async def _call_in_process(self, delivery: Delivery) -> bytes:
        listener = delivery.target.listener
        assert listener.in_process is not None
        try:
            async with asyncio.timeout(listener.handler_seconds):
                return await listener.in_process.handle(self._request(delivery))
        except TimeoutError:
            raise HandlerFailed(FailureKind.TIMED_OUT, "the deadline passed") from None
        except asyncio.CancelledError:
            if self._closing:
                raise
            raise HandlerFailed(FailureKind.RAISED, "it was cancelled") from None

    def _request(self, delivery: Delivery) -> Request:
        message, thread, payload = delivery.message, delivery.target.thread, delivery.target.payload
        caller = message.emitter or message.thread or thread
        assert message.payload_tree is not None
        assert payload is not None
        return Request(
            payload=payload,
            xml=canonical(message.payload_tree),
            thread_id=thread.id,
            caller=caller.name,
            caller_thread=caller.id,
            record_tokens=lambda tokens: self.record_tokens(caller, tokens),
        )

    async def _send_outcome(self, delivery: Delivery, outcome: bytes | Failure) -> None:
        """Send what a handler emits, or tell its caller that it failed."""
        name = delivery.target.listener.name
        try:
            if isinstance(outcome, bytes):
                await self._emit_all(delivery, outcome)
            else:
                await self._fail(delivery, outcome)
        except Exception as error:
            logger.exception("what %s returned could not be sent", name)
            try:
                await self._fail(delivery, Failure(CannedText.HANDLER_FAILED, repr(error)))
            except Exception:
                logger.exception("the caller of %s could not be told of a failure", name)

    def _finish(self, delivery: Delivery) -> None:
        """Note the end of a delivery, and start what waited for its slot."""
        self._drop(delivery)
        following = self._slots.give(delivery.listener_name)
        if following is not None:
            self._log.started(following.number)
            self._start(following)
            turn = self._turns.pop(following, None)
            if turn is not None and not turn.done():
                turn.set_result(None)
        self._commits.soon()

    def _drop(self, delivery: Delivery) -> None:
        """Note that a delivery is done with."""
        self._log.finished(delivery.number)
        self._release(delivery.message.call)
        self._under_way -= 1
        if not self._under_way:
            self._idle.set()

    def _release(self, call: PendingCall) -> None:
        call.outstanding -= 1
        if not call.outstanding:
            self._commits.group.ended.append(call)

    # Out: what handlers return as messages, whose provenance is the pump's own.

    async def _emit_all(self, delivery: Delivery, returned: bytes) -> None:
        """Send the payloads in what a handler returned, in their order."""
        source, call = delivery.target, delivery.message.call
        try:
            emission = read_emission(returned, self._bounds)
        except Malformed as error:
            failure = Failure(CannedText.MALFORMED, str(error))
            await self._refuse(source.thread, returned, failure, call)
            return
        if emission.envelopes or emission.repairs or emission.prose:
            self._note(source, emission)
        if not emission.payloads:
            await self._fail(delivery, Failure(CannedText.NO_BYTES, "it returned no element"))
            return
        heard = False
        for element in emission.payloads:
            if source.thread.alive:
                heard |= await self._emit(source, element, call, emission.repairs)
        if not heard:
            dropped = Failure(CannedText.NO_BYTES, "all that it returned was dropped")
            await self._fail(delivery, dropped)

    async def _emit(
        self, source: Target, element: Element, call: PendingCall, repairs: tuple[str, ...]
    ) -> bool:
        """Send one payload where its tag says; return whether anybody hears of it."""
        thread, name = source.thread, source.listener.name
        tag = str(element.tag)
        match destination := route(source.listener, tag):
            case Destination.UP:
                await self.reply(thread.parent, element, name, call, thread, repairs)
            case tuple():
                for listener in destination:
                    # Steps may change what they are given, and others are to get it as it was.
                    own = element if listener is destination[-1] else deepcopy(element)
                    if not await self._call(source, listener, own, call, repairs):
                        break
            case Primitive.TODO_UNTIL:
                await self.reply(thread, element, CORE, call, thread, repairs)
            case Primitive.RETURN:
                await self.reply(thread.parent, element, CORE, call, thread, repairs)
                self._end_threads(self.threads.close_children(thread))
            case Primitive.HALT:
                await self.reply(thread.parent, element, CORE, call, thread, repairs)
                self.close(thread)
            case Destination.DROP:
                self._security(name, thread, f"it emitted {tag}")
                return False
            case Destination.REFUSE:
                failure = Failure(CannedText.INVALID_PAYLOAD, f"{tag} is for none of its peers")
                await self._refuse(thread, _quoted(element), failure, call)
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
                await self._refuse(thread, _quoted(element), failure, call)
                return False
            thread = self._ingress.child(thread, listener.name)
        targets = (Target(listener, thread),)
        sender = source.listener.name
        return await self._send(sender, thread, element, call, source.thread, repairs, targets)

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
        receiver, targets = receiver_of(self._registry, thread, str(element.tag))
        if receiver is not None:
            await self._send(sender, receiver, element, call, emitter, repairs, targets, is_huh)

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
            envelope = compose(sender, thread.name, thread.id, element, self._bounds, repairs)
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
        await self.process(state)
        return state.error is None

    async def _fail(self, delivery: Delivery, failure: Failure) -> None:
        """Tell the caller of a handler that there will be no answer; the thread lives on."""
        thread, message = delivery.target.thread, delivery.message
        text = failure.text or CannedText.HANDLER_FAILED
        reason = f"{text.value}: {failure.detail}"
        logger.warning("%s failed in thread %s: %s", delivery.listener_name, thread.id, reason)
        attempt = b"" if message.payload_tree is None else canonical(message.payload_tree)
        await self.reply(thread.parent, huh(text, attempt), CORE, message.call, is_huh=True)

    async def _refuse(
        self, thread: Thread, attempt: bytes, failure: Failure, call: PendingCall
    ) -> None:
        """Give what cannot be sent to the system pipeline."""
        state = MessageState(attempt, call, thread.name)
        state.emitter = thread
        state.thread_id = thread.id
        state.error = failure
        await self.process(state)

    def _security(self, name: str, thread: Thread, detail: str) -> None:
        logger.warning("%s in thread %s: %s", name, thread.id, detail)
        self._log.event("security", thread=thread.id, sender=name, detail=detail)

    def _note(self, source: Target, emission: Emission) -> None:
        """Note what was done to an emission: text dropped, XML mended, claims ignored."""
        thread = source.thread
        if emission.envelopes:
            self._security(source.listener.name, thread, "it emitted an envelope of its own")
        notes = [*emission.repairs]
        if emission.prose:
            notes.append(f"text between payloads was dropped: {emission.prose:.200}")
        if notes:
            detail = "; ".join(notes)
            logger.info("thread %s: %s", thread.id, detail)
            self._log.event("repair", thread=thread.id, sender=thread.name, detail=detail)

    # The system pipeline: meta queries, and what becomes of messages that go no further.

    async def answer_meta(self, state: MessageState) -> None:
        """Answer a query about capabilities, where the organism's settings allow it."""
        if not state.system or state.error is not None or state.principal is None:
            return
        assert state.payload_tree is not None
        answer = self._meta.answer(state.principal, state.payload_tree)
        if answer is None:
            state.error = Failure(CannedText.INVALID_PAYLOAD, "a query that is not allowed")
            return
        await self.reply(state.thread, answer, CORE, state.call)

    def record_failure(self, state: MessageState) -> None:
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
        element = huh(state.error.text, _quoted(attempt))
        receiver = state.emitter or state.thread
        if receiver is None and state.principal is not None:
            # Its message has no thread of its own, so the answer is in one that nobody has.
            receiver = Thread(new_thread_id(), state.principal.name, None)
        if receiver is not None:
            await self.reply(receiver, element, CORE, state.call, is_huh=True)

    # Commit, close, and what was under way when the organism ended.

    def commit(self) -> None:
        """Write and tell what happened, then let it have its effects.

        Raises:
            JournalError: It cannot be written.
        """
        self._commits.write()

    def record_tokens(self, thread: Thread, tokens: int) -> None:
        """Add tokens to what was used in a thread, and tell of it."""
        thread.record_tokens(tokens)
        self._log.tokens_recorded(thread, tokens)
        self.commit()

    def close(self, thread: Thread) -> None:
        """Forget a thread and all below it; what waits in them is not delivered."""
        self._end_threads(self.threads.close(thread))

    def _end_threads(self, threads: list[Thread]) -> None:
        if not threads:
            return
        for each in threads:
            inbox = self._inboxes.get(each)
            while inbox and inbox[-1].state is DeliveryState.QUEUED:  # the first may have a slot
                delivery = inbox.pop()
                delivery.move(DeliveryEvent.DROPPED)
                self._drop(delivery)
        self._log.pruned(threads)
        self._forgotten += [(each.name, each.id) for each in threads if each.parent is not None]
        if self._forgetting is None and self._forgotten:
            self._forgetting = asyncio.create_task(self._forget())

    async def _forget(self) -> None:
        """End the workers of threads that were closed, one after the other."""
        try:
            while self._forgotten:
                name, thread = self._forgotten.pop()
                try:
                    await self._handlers.forget(name, thread)
                except Exception:
                    logger.exception("the worker of %s in thread %s may live on", name, thread)
        finally:
            self._forgetting = None

    async def redeliver(self, pending: PendingDelivery) -> None:
        """Deliver what was waiting when the organism ended, and report what was at a handler."""
        thread = self.threads.get(pending.thread)
        if thread is None:
            self._log.finished(pending.number)
            return
        state = MessageState(pending.message.xml, PendingCall(), pending.message.sender)
        state.is_huh = pending.message.kind == "huh"
        state.thread = thread.parent
        await self.ingress.run(state)
        if state.payload_tree is not None:
            tag = str(state.payload_tree.tag)
            state.target_listeners = target_again(self._registry, thread, tag)
        if not pending.started and state.error is None:
            for target in state.target_listeners:
                await self._accept(state, target)
                if state.error is None:
                    if self._enqueue(Delivery(target, state, pending.number)):
                        self._log.started(pending.number)
                    return
        name = thread.name
        logger.warning("%s: a message of thread %s was cut off by a restart", name, thread.id)
        attempt = b"" if state.payload_tree is None else canonical(state.payload_tree)
        element = huh(CannedText.HANDLER_FAILED, attempt)
        await self.reply(thread.parent, element, CORE, state.call, is_huh=True)
        self._log.finished(pending.number)

    async def wait_idle(self) -> None:
        """Wait until nothing is under way."""
        while self._under_way and not self._closing:
            await self._idle.wait()
        if self._forgetting is not None:
            await asyncio.wait([self._forgetting])

    async def aclose(self) -> None:
        """End what is under way; the journal keeps it, and the next start reports it."""
        self._closing = True
        self._idle.set()
        tasks = [*self._serving.values()]
        if self._forgetting is not None:
            tasks.append(self._forgetting)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._commits.aclose()


def _quoted(attempt: Element | bytes) -> bytes:
    """Return what a `<huh>` quotes, as bytes."""
    if isinstance(attempt, bytes):
        return attempt
    data: bytes = etree.tostring(attempt, with_tail=False)
    return data


def _failure_of(failed: HandlerFailed) -> Failure:
    """Return what the caller of a handler is told of its failure, and the reason for the log."""
    match failed.kind:
        case FailureKind.WRONG_TYPE:
            text = CannedText.NO_BYTES
        case FailureKind.OVERSIZED:
            text = CannedText.LIMIT_EXCEEDED
        case _:
            text = CannedText.HANDLER_FAILED
    return Failure(text, str(failed))
