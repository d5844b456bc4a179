"""The pump: takes messages through their steps, and handlers through their messages."""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from typing import Any

from agentix.agentserver import budget
from agentix.agentserver.emitter import CORE, Emitter
from agentix.agentserver.ingress import Ingress
from agentix.agentserver.ledger import Ledger, Pending
from agentix.agentserver.meta import Meta
from agentix.agentserver.names import RESERVED
from agentix.agentserver.pipeline import Failure, MessageState, Pipeline
from agentix.agentserver.principal import Principal
from agentix.agentserver.registry import Registry
from agentix.agentserver.scheduler import Delivery, Exchange, Scheduler, Target
from agentix.agentserver.spec import LimitsSpec, MetaSpec
from agentix.agentserver.system import System
from agentix.agentserver.threads import Thread, Threads
from agentix.agentserver.trusted import Request
from agentix.agentserver.worker.handlers import FailureKind, HandlerFailed, Handlers
from agentix.agentserver.xml.canonical import canonical
from agentix.agentserver.xml.huh import CannedText, huh
from agentix.agentserver.xml.limits import Limits

__all__ = ["Pump"]

logger = logging.getLogger(__name__)


class Pump:
    """Moves messages between principals and listeners.

    A step of the pump ends with `commit`: what happened is written, told to subscribers, and only
    then do handlers see what is for them.

    Args:
        registry: The listeners.
        ledger: What happened.
        handlers: What runs the code of listeners.
        limits: What is bounded.
        meta: Who may ask about listeners.
        depth_first: Whether the deepest waiting thread goes first.
    """

    def __init__(
        self,
        registry: Registry,
        ledger: Ledger,
        handlers: Handlers,
        limits: LimitsSpec,
        meta: MetaSpec,
        *,
        depth_first: bool = False,
    ) -> None:
        self.threads = Threads()
        self._registry = registry
        self._ledger = ledger
        self._handlers = handlers
        self._scheduler = Scheduler(
            limits.concurrent_handlers, limits.concurrent_per_listener, depth_first=depth_first
        )
        bounds = Limits(size=limits.message_bytes)
        ingress = Ingress(registry, self.threads, ledger, bounds)
        self._emitter = Emitter(
            registry, ledger, ingress, bounds, limits.depth, self.process, self.prune
        )
        self.ingress = Pipeline(ingress.steps())
        """The steps of every message, before those of its listener."""
        self.system = Pipeline(System(ledger, self._emitter, Meta(meta, registry)).steps())
        """The steps of messages that no listener gets."""
        self._starting: list[Delivery] = []
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._closing = False
        self._forgotten: list[tuple[str, str]] = []
        self._forgetting: asyncio.Task[None] | None = None

    @property
    def running(self) -> int:
        """How many handlers run."""
        return self._scheduler.running

    async def post(self, message: bytes, principal: Principal) -> tuple[MessageState, Exchange]:
        """Takes an external message; it is written when this returns."""
        exchange = Exchange()
        exchange.hold()
        state = MessageState(
            raw_bytes=message, exchange=exchange, principal=principal, from_id=principal.name
        )
        if principal.name in self._registry or principal.name in RESERVED:
            detail = f"{principal.name} is the name of a listener, or of the pump"
            state.error = Failure(CannedText.MALFORMED, detail, security=True)
        await self.process(state)
        exchange.release()
        self.commit()
        if self._ledger.on_disk:
            await self._ledger.synced()
        return state, exchange

    async def process(self, state: MessageState) -> None:
        """Takes a message through its steps, and on to its listeners or out of the organism."""
        payloads: list[dict[str, Any]] = []
        if state.error is None:
            try:
                await self.ingress.run(state)
                if state.error is None and state.target_listeners:
                    payloads = await self._accept(state)
            except Exception as error:
                logger.exception("a step failed on a message of %s", state.from_id)
                state.error = Failure(CannedText.INVALID_PAYLOAD, f"a step failed: {error!r}")
        if state.system and state.error is None:
            self._record(state)
            await self._run_system(state)
        if state.error is not None:
            await self._run_system(state)
        elif not state.system:
            self._deliver(state, payloads)

    async def _accept(self, state: MessageState) -> list[dict[str, Any]]:
        """Takes a message through the pipeline of each of its listeners."""
        payloads = []
        for target in state.target_listeners:
            state.target = target
            await target.listener.pipeline.run(state)
            if state.error is not None:
                break
            assert state.payload is not None
            payloads.append(state.payload)
        return payloads

    async def _run_system(self, state: MessageState) -> None:
        try:
            await self.system.run(state)
        except Exception:
            logger.exception("a system step failed on a message of %s", state.from_id)

    def _record(self, state: MessageState) -> int:
        """Writes a message to the audit log, with what was repaired in it."""
        seq = self._ledger.event(
            "huh" if state.is_huh else "message",
            thread=state.thread_id,
            sender=state.from_id,
            to=state.to or "",
            xml=state.canonical,
        )
        state.metadata["seq"] = seq
        if state.repairs:
            detail = "; ".join(state.repairs)
            self._ledger.event(
                "repair",
                thread=state.thread_id,
                sender=state.from_id,
                to=state.to or "",
                detail=detail,
            )
        return seq

    def _deliver(self, state: MessageState, payloads: Iterable[dict[str, Any]]) -> None:
        seq = self._record(state)
        if not state.target_listeners:
            state.exchange.replies.append(state.canonical)
        for target, payload in zip(state.target_listeners, payloads, strict=True):
            number = self._ledger.queued(target.thread, seq)
            self._enqueue(Delivery(number, target, payload, state))

    def _enqueue(self, delivery: Delivery) -> None:
        """Lets a delivery start, or wait for those before it in its thread, or for a slot."""
        delivery.state.exchange.hold()
        thread = delivery.target.thread
        if thread.busy:
            if thread.queue is None:
                thread.queue = deque()
            thread.queue.append(delivery)
            return
        thread.busy = True
        if self._scheduler.take(delivery):
            self._start(delivery)

    def _start(self, delivery: Delivery) -> None:
        self._ledger.started(delivery.number)
        self._starting.append(delivery)

    def commit(self) -> None:
        """Writes and tells what happened, then lets handlers see what is for them."""
        self._ledger.commit()
        if self._starting:
            starting, self._starting = self._starting, []
            loop = asyncio.get_running_loop()
            for delivery in starting:
                self._tasks[delivery.number] = loop.create_task(self._work(delivery))

    async def _work(self, delivery: Delivery) -> None:
        try:
            if self._ledger.on_disk:
                await self._ledger.synced()
            await self._handle(delivery)
        except Exception:
            logger.exception("delivery %d failed in the pump", delivery.number)
        finally:
            del self._tasks[delivery.number]
            # What is cut off by the end of the organism stays in the journal, to be reported.
            if not self._closing:
                self._finish(delivery)

    async def _handle(self, delivery: Delivery) -> None:
        """Calls the handler of a delivery and sends what it emits."""
        target, state = delivery.target, delivery.state
        anew = state.principal is not None or state.emitter is target.thread.parent
        if not target.thread.alive or (target.thread.exhausted and not anew):
            return
        excess = budget.admit(target.listener, target.thread, anew=anew)
        if excess is not None:
            target.thread.exhausted = True
            await self._emitter.fail(delivery, CannedText.LIMIT_EXCEEDED, excess)
            return
        try:
            returned = await self._call(delivery)
        except HandlerFailed as failed:
            if target.thread.alive:
                await self._emitter.fail(delivery, _text_of(failed.kind), str(failed))
            return
        if not target.thread.alive:
            return
        try:
            await self._emitter.emit(delivery, returned)
        except Exception as error:
            logger.exception("what %s returned could not be sent", target.listener.name)
            await self._emitter.fail(delivery, CannedText.HANDLER_FAILED, repr(error))

    async def _call(self, delivery: Delivery) -> bytes:
        target = delivery.target
        listener = target.listener
        if listener.source is None:
            return await self._call_trusted(delivery)
        return await self._handlers.call(
            listener.source,
            target.thread.id,
            target.payload_class,
            delivery.payload,
            listener.handler_seconds,
        )

    async def _call_trusted(self, delivery: Delivery) -> bytes:
        listener = delivery.target.listener
        assert listener.trusted is not None
        try:
            async with asyncio.timeout(listener.handler_seconds):
                return await listener.trusted.handle(self._request(delivery))
        except TimeoutError:
            raise HandlerFailed(FailureKind.TIMED_OUT, "the deadline passed") from None
        except Exception as error:
            logger.exception("%s failed", listener.name)
            raise HandlerFailed(FailureKind.RAISED, repr(error)) from error

    def _request(self, delivery: Delivery) -> Request:
        state, thread = delivery.state, delivery.target.thread
        caller = state.emitter or state.thread or thread
        assert state.payload_tree is not None
        return Request(
            payload=delivery.payload,
            xml=canonical(state.payload_tree),
            thread_id=thread.id,
            caller=caller.name,
            caller_thread=caller.id,
            book=lambda tokens: self.book(caller, tokens),
        )

    def book(self, thread: Thread, tokens: int) -> None:
        """Adds tokens to what was used in a thread, and tells of it."""
        budget.book(thread, tokens)
        self._ledger.booked(thread, tokens)
        self.commit()

    def _finish(self, delivery: Delivery) -> None:
        """Ends a delivery, and starts what waited for it."""
        thread = delivery.target.thread
        self._ledger.finished(delivery.number)
        delivery.state.exchange.release()
        following = self._scheduler.give(delivery.target.listener.name)
        if following is not None:
            self._start(following)
        if thread.queue:
            successor = thread.queue.popleft()
            if self._scheduler.take(successor):
                self._start(successor)
        else:
            thread.busy = False
            thread.queue = None
        self.commit()

    def prune(self, thread: Thread, itself: bool) -> None:
        """Forgets what is below a thread, and the thread itself where that is said."""
        pruned = self.threads.prune(thread, itself=itself)
        if not pruned:
            return
        for each in pruned:
            for delivery in each.queue or ():
                self._ledger.finished(delivery.number)
                delivery.state.exchange.release()
            each.queue = None
        self._ledger.pruned(pruned)
        self._forgotten += [(each.name, each.id) for each in pruned if each.parent is not None]
        if self._forgetting is None and self._forgotten:
            self._forgetting = asyncio.create_task(self._forget())

    async def _forget(self) -> None:
        """Ends the workers of threads that were pruned, one after the other."""
        try:
            while self._forgotten:
                name, thread = self._forgotten.pop()
                try:
                    await self._handlers.forget(name, thread)
                except Exception:
                    logger.exception("the worker of %s in thread %s may live on", name, thread)
        finally:
            self._forgetting = None

    async def redeliver(self, pending: Pending) -> None:
        """Delivers what was waiting when the organism ended, and reports what was at a handler."""
        thread = self.threads.get(pending.thread)
        if thread is None:
            self._ledger.finished(pending.number)
            return
        state = MessageState(
            raw_bytes=pending.message.xml,
            exchange=Exchange(),
            from_id=pending.message.sender,
            is_huh=pending.message.kind == "huh",
            thread=thread.parent,
        )
        await self.ingress.run(state)
        state.target_listeners = self._targets_again(state, thread)
        payloads = [] if pending.started else await self._accept(state)
        if state.error is not None or not payloads:
            await self._report(thread, state)
            self._ledger.finished(pending.number)
            return
        (target,) = state.target_listeners
        self._enqueue(Delivery(pending.number, target, payloads[0], state))

    def _targets_again(self, state: MessageState, thread: Thread) -> tuple[Target, ...]:
        """Gives the target of a message that was under way; none where it is gone."""
        listener = self._registry.get(thread.name)
        if listener is None or state.payload_tree is None:
            return ()
        tag = str(state.payload_tree.tag)
        if listener in self._registry.find(tag):
            return (Target(listener, thread),)
        index = listener.reply_class(tag)
        return () if index is None else (Target(listener, thread, index),)

    async def _report(self, thread: Thread, state: MessageState) -> None:
        """Tells a caller that the organism ended while its message was at a handler."""
        name = thread.name
        logger.warning("%s: a message of thread %s was cut off by a restart", name, thread.id)
        attempt = b"" if state.payload_tree is None else canonical(state.payload_tree)
        element = huh(CannedText.HANDLER_FAILED, attempt)
        await self._emitter.reply(thread.parent, element, CORE, state.exchange, is_huh=True)

    async def settled(self) -> None:
        """Waits until nothing is under way."""
        while under_way := self._under_way():
            await asyncio.wait(under_way)

    def _under_way(self) -> list[asyncio.Task[None]]:
        forgetting = [] if self._forgetting is None else [self._forgetting]
        return [*self._tasks.values(), *forgetting]

    async def aclose(self) -> None:
        """Ends what is under way; the journal keeps it, and the next start reports it."""
        self._closing = True
        tasks = self._under_way()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _text_of(kind: FailureKind) -> CannedText:
    """Gives what the caller of a handler is told of its failure."""
    match kind:
        case FailureKind.WRONG_TYPE:
            return CannedText.NO_BYTES
        case FailureKind.OVERSIZED:
            return CannedText.LIMIT_EXCEEDED
        case _:
            return CannedText.HANDLER_FAILED
