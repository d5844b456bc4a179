"""The pump: takes messages through their steps, and handlers through their messages."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from agentix.agentserver.catalog import Meta
from agentix.agentserver.eager import run_eagerly
from agentix.agentserver.emitter import CORE, Emitter, System
from agentix.agentserver.errors import FailureKind, HandlerFailed, JournalError
from agentix.agentserver.log import EventKind, EventLog, PendingDelivery
from agentix.agentserver.names import RESERVED, Principal
from agentix.agentserver.registry import Failure, ListenerRegistry, MessageState, Pipeline, Request
from agentix.agentserver.routing import Ingress
from agentix.agentserver.spec import LimitsSpec, MetaSpec
from agentix.agentserver.state import (
    Delivery,
    PendingCall,
    Scheduler,
    Target,
    Thread,
    ThreadRegistry,
    check_limits,
    record_tokens,
)
from agentix.agentserver.worker.handlers import Handlers, HandlerSource
from agentix.agentserver.xml.envelope import CannedText, canonical, huh
from agentix.agentserver.xml.parser import MessageLimits

__all__ = [
    "Pump",
    "Turns",
]

logger = logging.getLogger(__name__)


class Turns:
    """Holds back effects until what they follow from is written.

    A message that comes alone is written at once. What comes in the same turn of the loop after it,
    and while messages keep coming, is written together, a turn at a time.

    Args:
        log: What writes.
        begin: Gives a delivery to its handler.
        abandon: Ends a delivery that no handler may see.
    """

    def __init__(
        self,
        log: EventLog,
        begin: Callable[[Delivery], None],
        abandon: Callable[[Delivery], None],
    ) -> None:
        self._log = log
        self._begin = begin
        self._abandon = abandon
        self._gathering = False
        self._broken: JournalError | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.accepted: list[PendingCall] = []
        """The calls whose messages are to be acknowledged."""
        self.starting: list[Delivery] = []
        """The deliveries that are to be given to their handlers."""
        self.ended: list[PendingCall] = []
        """The calls of which nothing is under way."""

    def soon(self) -> None:
        """Have everything written in this turn of the loop or in the next."""
        if not self._gathering:
            self._gathering = True
            asyncio.get_running_loop().call_soon(self._turn)
            self._write_or_fail()

    def _turn(self) -> None:
        if self.accepted or self.starting or self.ended or self._log.waiting:
            asyncio.get_running_loop().call_soon(self._turn)
            self._write_or_fail()
        else:
            self._gathering = False

    def _write_or_fail(self) -> None:
        with suppress(JournalError):  # those who wait for it were told
            self.write()

    def write(self) -> None:
        """Write everything now, and let it have its effects.

        Raises:
            JournalError: It cannot be written.
        """
        accepted, self.accepted = self.accepted, []
        starting, self.starting = self.starting, []
        ended, self.ended = self.ended, []
        try:
            self._commit()
        except JournalError as error:
            self._fail([*accepted, *ended], starting, error)
            raise
        for call in ended:
            call.end()
        if self._log.on_disk:
            self._follow(self._after_sync(accepted, starting))
        else:
            self._release(accepted, starting)

    def _commit(self) -> None:
        """Write, unless that failed before: what was lost then may be of any message since."""
        try:
            if self._broken is not None:
                raise self._broken.with_traceback(None)
            self._log.commit()
        except JournalError as error:
            self._broken = error
            self._log.discard()
            raise

    def _release(self, accepted: list[PendingCall], starting: list[Delivery]) -> None:
        for call in accepted:
            call.written()
        for delivery in starting:
            self._begin(delivery)

    async def _after_sync(self, accepted: list[PendingCall], starting: list[Delivery]) -> None:
        try:
            await self._log.synced()
        except JournalError as error:
            self._broken = error
            self._fail(accepted, starting, error)
            return
        self._release(accepted, starting)

    def _fail(
        self, calls: list[PendingCall], starting: list[Delivery], error: JournalError
    ) -> None:
        """Tell who waits, and make way for those behind, who are to be told, too."""
        for call in calls:
            call.fail(error)
        for delivery in starting:
            delivery.state.call.fail(error)
            self._abandon(delivery)

    def _follow(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def aclose(self) -> None:
        """Write and acknowledges what is left."""
        self._write_or_fail()
        await asyncio.gather(*self._tasks)


class Pump:
    """Moves messages between principals and listeners.

    A step of the pump ends with `commit`: what happened is written, told to subscribers, and only
    then do handlers see what is for them.

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
        self._scheduler = Scheduler(
            limits.concurrent_handlers, limits.concurrent_per_listener, depth_first=depth_first
        )
        bounds = MessageLimits(size=limits.message_bytes)
        ingress = Ingress(registry, self.threads, log, bounds)
        self._emitter = Emitter(
            registry, log, ingress, bounds, limits.depth, self.process, self.prune
        )
        self.ingress = Pipeline(ingress.steps())
        """The steps of every message, before those of its listener."""
        self.system = Pipeline(System(log, self._emitter, Meta(meta, registry)).steps())
        """The steps of messages that no listener gets."""
        self._turns = Turns(log, self._begin, self._finish)
        self._tasks: set[asyncio.Task[None]] = set()
        self._under_way = 0
        self._quiet: asyncio.Future[None] | None = None
        self._closing = False
        self._forgotten: list[tuple[str, str]] = []
        self._forgetting: asyncio.Task[None] | None = None

    @property
    def running(self) -> int:
        """How many handlers run."""
        return self._scheduler.running

    async def post(self, message: bytes, principal: Principal) -> MessageState:
        """Take an external message; its call tells when it is written, and when it is over."""
        call = PendingCall()
        state = MessageState(message, call, principal.name)
        state.principal = principal
        if principal.name in self._registry or principal.name in RESERVED:
            detail = f"{principal.name} is the name of a listener, or of the pump"
            state.error = Failure(CannedText.MALFORMED, detail, security=True)
        await self.process(state)
        self._turns.accepted.append(call)
        self._release(call)
        self._turns.soon()
        return state

    async def process(self, state: MessageState) -> None:
        """Take a message through its steps, and on to its listeners or out of the organism."""
        if state.error is None:
            try:
                waiting = self.ingress.run(state)
                if waiting is not None:
                    await waiting
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
            self._deliver(state)

    async def _accept(self, state: MessageState, target: Target) -> None:
        """Take a message through the pipeline of one of its listeners."""
        if state.error is not None:  # on the way to another one
            return
        assert state.payload_tree is not None
        state.target = target
        state.codec = target.listener.codec(target.payload_class, str(state.payload_tree.tag))
        waiting = target.listener.pipeline.run(state)
        if waiting is not None:
            await waiting
        target.payload = state.payload

    async def _run_system(self, state: MessageState) -> None:
        try:
            waiting = self.system.run(state)
            if waiting is not None:
                await waiting
        except Exception:
            logger.exception("a system step failed on a message of %s", state.from_id)

    def _record(self, state: MessageState) -> int:
        """Write a message to the audit log, with what was repaired in it."""
        kind: EventKind = "huh" if state.is_huh else "message"
        to = state.to or ""
        seq = self._log.event(kind, state.thread_id, state.from_id, to, state.canonical)
        if state.repairs:
            detail = "; ".join(state.repairs)
            self._log.event("repair", state.thread_id, state.from_id, to, detail=detail)
        return seq

    def _deliver(self, state: MessageState) -> None:
        seq = self._record(state)
        if not state.target_listeners:
            state.call.replies.append(state.canonical)
        for target in state.target_listeners:
            delivery = Delivery(0, target, state)
            starts = self._enqueue(delivery)
            delivery.number = self._log.queued(target.thread, seq, starts)

    def _enqueue(self, delivery: Delivery) -> bool:
        """Let a delivery start, or wait for those before it in its thread, or for a slot.

        Returns:
            Whether it starts, which is for the caller to note.
        """
        delivery.state.call.outstanding += 1
        self._under_way += 1
        thread = delivery.target.thread
        if thread.busy:
            if thread.queue is None:
                thread.queue = deque()
            thread.queue.append(delivery)
            return False
        thread.busy = True
        if not self._scheduler.take(delivery):
            return False
        self._turns.starting.append(delivery)
        return True

    def _start(self, delivery: Delivery) -> None:
        """Let a delivery start that has waited."""
        self._log.started(delivery.number)
        self._turns.starting.append(delivery)

    def commit(self) -> None:
        """Write and tell what happened, then let handlers see what is for them."""
        self._turns.write()

    def _begin(self, delivery: Delivery) -> None:
        """Return a delivery to its handler."""
        if self._closing:  # the journal has it as begun, and the next start reports it
            return
        target, state = delivery.target, delivery.state
        listener, thread = target.listener, target.thread
        is_new_request = state.principal is not None or state.emitter is thread.parent
        if not thread.alive or (thread.exhausted and not is_new_request):
            self._finish(delivery)
            return
        excess = check_limits(listener, thread, is_new_request=is_new_request)
        if excess is not None:
            thread.exhausted = True
            failure = Failure(CannedText.LIMIT_EXCEEDED, excess)
            self._conclude(delivery, failure)
        elif listener.source is None:
            self._keep(asyncio.create_task(self._call_in_process(delivery)))
        else:
            self._give(delivery, listener.source)

    def _give(self, delivery: Delivery, source: HandlerSource) -> None:
        target = delivery.target
        try:
            self._handlers.begin(
                source,
                target.thread.id,
                target.payload_class,
                target.payload or {},
                target.listener.handler_seconds,
                partial(self._returned, delivery),
            )
        except Exception as error:  # it must not keep others from theirs
            logger.exception("%s could not be called", source.name)
            self._conclude(delivery, Failure(CannedText.HANDLER_FAILED, repr(error)))

    async def _call_in_process(self, delivery: Delivery) -> None:
        listener = delivery.target.listener
        assert listener.in_process is not None
        outcome: bytes | HandlerFailed
        try:
            async with asyncio.timeout(listener.handler_seconds):
                outcome = await listener.in_process.handle(self._request(delivery))
        except TimeoutError:
            outcome = HandlerFailed(FailureKind.TIMED_OUT, "the deadline passed")
        except asyncio.CancelledError:
            if self._closing:
                raise
            outcome = HandlerFailed(FailureKind.RAISED, "it was cancelled")
        except Exception as error:
            logger.exception("%s failed", listener.name)
            outcome = HandlerFailed(FailureKind.RAISED, repr(error))
        self._returned(delivery, outcome)

    def _request(self, delivery: Delivery) -> Request:
        state, thread, payload = delivery.state, delivery.target.thread, delivery.target.payload
        caller = state.emitter or state.thread or thread
        assert state.payload_tree is not None
        assert payload is not None
        return Request(
            payload=payload,
            xml=canonical(state.payload_tree),
            thread_id=thread.id,
            caller=caller.name,
            caller_thread=caller.id,
            record_tokens=lambda tokens: self.record_tokens(caller, tokens),
        )

    def record_tokens(self, thread: Thread, tokens: int) -> None:
        """Add tokens to what was used in a thread, and tell of it."""
        record_tokens(thread, tokens)
        self._log.tokens_recorded(thread, tokens)
        self.commit()

    def _returned(self, delivery: Delivery, outcome: bytes | HandlerFailed) -> None:
        """Take what a handler returned, or how it failed."""
        if self._closing:  # it is reported, too
            return
        self._conclude(delivery, outcome if isinstance(outcome, bytes) else _failure_of(outcome))

    def _conclude(self, delivery: Delivery, outcome: bytes | Failure) -> None:
        task = run_eagerly(self._answer(delivery, outcome))
        if task is not None:
            self._keep(task)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, delivery: Delivery, outcome: bytes | Failure) -> None:
        """Send what a handler emits, or tell its caller that it failed."""
        try:
            if delivery.target.thread.alive:
                if isinstance(outcome, bytes):
                    await self._emitter.emit(delivery, outcome)
                else:
                    await self._emitter.fail(delivery, outcome)
        except Exception as error:
            await self._give_up(delivery, error)
        finally:
            if not self._closing:
                self._finish(delivery)

    async def _give_up(self, delivery: Delivery, error: Exception) -> None:
        """Tell the caller of a handler that what it returned could not be sent."""
        name = delivery.target.listener.name
        logger.error("what %s returned could not be sent", name, exc_info=error)
        try:
            await self._emitter.fail(delivery, Failure(CannedText.HANDLER_FAILED, repr(error)))
        except Exception:
            logger.exception("the caller of %s could not be told of a failure", name)

    def _finish(self, delivery: Delivery) -> None:
        """End a delivery, and start what waited for it."""
        thread = delivery.target.thread
        self._drop(delivery)
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
        self._turns.soon()

    def _drop(self, delivery: Delivery) -> None:
        """Note that a delivery is done with."""
        self._log.finished(delivery.number)
        self._release(delivery.state.call)
        self._under_way -= 1
        if not self._under_way:
            self._rest()

    def _rest(self) -> None:
        """Tell who waits that nothing is under way."""
        quiet, self._quiet = self._quiet, None
        if quiet is not None:
            quiet.set_result(None)

    def _release(self, call: PendingCall) -> None:
        call.outstanding -= 1
        if not call.outstanding:
            self._turns.ended.append(call)

    def prune(self, thread: Thread, itself: bool) -> None:
        """Forget what is below a thread, and the thread itself where that is said."""
        pruned = self.threads.prune(thread, itself=itself)
        if not pruned:
            return
        for each in pruned:
            for delivery in each.queue or ():
                self._drop(delivery)
            each.queue = None
        self._log.pruned(pruned)
        self._forgotten += [(each.name, each.id) for each in pruned if each.parent is not None]
        if self._forgetting is None and self._forgotten:
            self._forgetting = asyncio.create_task(self._forget())

    async def _forget(self) -> None:
        """End the workers of threads that were pruned, one after the other."""
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
        """Deliver what was waiting when the organism ended, and reports what was at a handler."""
        thread = self.threads.get(pending.thread)
        if thread is None:
            self._log.finished(pending.number)
            return
        state = MessageState(pending.message.xml, PendingCall(), pending.message.sender)
        state.is_huh = pending.message.kind == "huh"
        state.thread = thread.parent
        waiting = self.ingress.run(state)
        if waiting is not None:
            await waiting
        state.target_listeners = self._targets_again(state, thread)
        if not pending.started and state.error is None:
            for target in state.target_listeners:
                await self._accept(state, target)
                if state.error is None:
                    if self._enqueue(Delivery(pending.number, target, state)):
                        self._log.started(pending.number)
                    return
        await self._report(thread, state)
        self._log.finished(pending.number)

    def _targets_again(self, state: MessageState, thread: Thread) -> tuple[Target, ...]:
        """Return the target of a message that was under way; none where it is gone."""
        listener = self._registry.get(thread.name)
        if listener is None or state.payload_tree is None:
            return ()
        tag = str(state.payload_tree.tag)
        if listener in self._registry.find(tag):
            return (Target(listener, thread),)
        index = listener.reply_class(tag)
        return () if index is None else (Target(listener, thread, index),)

    async def _report(self, thread: Thread, state: MessageState) -> None:
        """Tell a caller that the organism ended while its message was at a handler."""
        name = thread.name
        logger.warning("%s: a message of thread %s was cut off by a restart", name, thread.id)
        attempt = b"" if state.payload_tree is None else canonical(state.payload_tree)
        element = huh(CannedText.HANDLER_FAILED, attempt)
        await self._emitter.reply(thread.parent, element, CORE, state.call, is_huh=True)

    async def wait_idle(self) -> None:
        """Wait until nothing is under way."""
        while self._under_way and not self._closing:
            if self._quiet is None:
                self._quiet = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._quiet)  # others may wait for it, too
        if self._forgetting is not None:
            await asyncio.wait([self._forgetting])

    async def aclose(self) -> None:
        """End what is under way; the journal keeps it, and the next start reports it."""
        self._closing = True
        self._rest()
        tasks = [*self._tasks] if self._forgetting is None else [*self._tasks, self._forgetting]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._turns.aclose()


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
