"""The event log: numbers events, writes them before they have an effect, and tells subscribers.

What is noted until a commit is one frame of the journal: the number of the last event before it,
then entries, one after the other, and the time. Lists of their own would cost as much as what is in
them. An entry of an event is its kind and what makes it up. One of a delivery is a number that says
what became of it, and the delivery's own number."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import islice
from time import time
from typing import Any, Final, Literal, NamedTuple

from agentix.agentserver.journal import Frame, Journal
from agentix.agentserver.state import Thread

__all__ = [
    "Event",
    "EventBus",
    "EventKind",
    "EventLog",
    "EventSubscription",
    "PendingDelivery",
    "Recovered",
    "Wanted",
    "history",
    "listen",
]


EventKind = Literal[
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


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened.

    Example:
        ```python
        from agentix.agentserver import Organism


        async def watch(organism: Organism) -> None:
            async for event in organism.listen(after_seq=None):
                print(event.seq, event.kind, event.sender, "to", event.to)
        ```
    """

    seq: int
    """Its number; each is greater than those before, over restarts too."""
    kind: EventKind
    """What kind of thing."""
    thread: str
    """The thread that it happened in; empty for what belongs to none."""
    sender: str
    """The `<from>` of a message, or who caused it."""
    to: str
    """The `<to>` of a message; empty where it has none."""
    xml: bytes
    """The canonical bytes of a message; empty for other kinds."""
    detail: str
    """What else is to be said, for people; empty for messages."""
    t: float
    """When, in seconds since 1970."""

    def concerns(self, principal: str) -> bool:
        """Return whether a principal may see it: it sent it, or is sent it."""
        if self.kind in ("security", "listener_state", "token_usage"):
            return False
        return principal in (self.sender, self.to) or self.kind == "gap"


Filter = Callable[[Event], bool]


class EventSubscription:
    """The events that wait for one subscriber: so many, and a gap for those beyond."""

    def __init__(self, wanted: Filter, size: int) -> None:
        self._wanted = wanted
        self._size = size
        self._events: deque[Event] = deque()
        self._lost: Event | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False

    def offer(self, event: Event) -> None:
        """Take an event that is wanted; one beyond the size becomes part of a gap."""
        if not self._wanted(event):
            return
        if len(self._events) < self._size and self._lost is None:
            self._events.append(event)
        else:
            self._lost = event
        self._wake()

    def close(self) -> None:
        """End it: what waits is still given, then `None`."""
        self._closed = True
        self._wake()

    async def next(self) -> Event | None:
        """Return the next event, when there is one; `None` at the end."""
        while not self._events:
            if self._lost is not None:
                return self._gap()
            if self._closed:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._events.popleft()

    def _gap(self) -> Event:
        """Tell of events that were lost: all up to the seq of the gap are gone."""
        last, self._lost = self._lost, None
        assert last is not None
        detail = "events were lost: the subscriber was too slow"
        return Event(last.seq, "gap", "", "core", "", b"", detail, last.t)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class EventBus:
    """Hands events to subscribers, and never waits for one."""

    def __init__(self) -> None:
        self.subscriptions: set[EventSubscription] = set()
        """Who is told; without any, there is no need to make events."""

    def subscribe(self, wanted: Filter, size: int) -> EventSubscription:
        """Add a subscriber.

        Args:
            wanted: Tells which events it gets.
            size: How many may wait for it.
        """
        subscription = EventSubscription(wanted, size)
        self.subscriptions.add(subscription)
        return subscription

    def unsubscribe(self, subscription: EventSubscription) -> None:
        """Remove a subscriber."""
        self.subscriptions.discard(subscription)

    def publish(self, events: Iterable[Event]) -> None:
        """Hand events to everybody who wants them."""
        for event in events:
            for subscription in self.subscriptions:
                subscription.offer(event)

    def close(self) -> None:
        """End all subscriptions."""
        for subscription in self.subscriptions:
            subscription.close()


Entry = Sequence[Any]
"""What is written of one fact."""

MESSAGES: Final = ("message", "huh")
QUEUED: Final = 0
HANDED: Final = 1
STARTED: Final = 2
FINISHED: Final = 3
LENGTHS: Final = {
    "message": 5,
    "huh": 5,
    "repair": 5,
    "thread_opened": 4,
    "thread_pruned": 3,
    "listener_state": 5,
    "token_usage": 5,
    "security": 5,
    QUEUED: 4,
    HANDED: 4,
    STARTED: 2,
    FINISHED: 2,
}
"""How many values an entry has, by its first."""


class PendingDelivery(NamedTuple):
    """A delivery that had not ended when the organism did."""

    queued: Entry
    """What was written of it."""
    event: Entry
    """What was written of its message."""

    @property
    def number(self) -> int:
        """Its number."""
        return int(self.queued[1])

    @property
    def thread(self) -> str:
        """The thread that it is for."""
        return str(self.queued[2])

    @property
    def message(self) -> Event:
        """The message; its time is not kept."""
        return _event(self.queued[3], self.event, 0.0)

    @property
    def started(self) -> bool:
        """Whether its handler may have seen it; then it is reported, and not delivered again."""
        return bool(self.queued[0] == HANDED)


@dataclass(slots=True)
class Recovered:
    """What a journal says of the time before."""

    seq: int = 0
    """The number of the last event."""
    delivery: int = 0
    """The number of the last delivery."""
    threads: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The threads that were alive: the UUID of the parent (empty for roots) and the name."""
    tokens: dict[str, int] = field(default_factory=dict)
    """The tokens that were used in each of them, where there were any."""
    pending: dict[int, PendingDelivery] = field(default_factory=dict)
    """The deliveries that had not ended, oldest first."""

    def read_snapshot(self, snapshot: Frame) -> None:
        """Begin with what a snapshot says."""
        self.seq, self.delivery, threads, pending = snapshot
        values = iter(threads)
        for thread, parent, name, tokens in zip(values, values, values, values, strict=True):
            self.threads[thread] = (parent, name)
            if tokens:
                self.tokens[thread] = tokens
        self.pending = {queued[1]: PendingDelivery(queued, message) for queued, message in pending}

    def read(self, frame: Frame) -> None:
        """Take in the entries of one frame."""
        seq = frame[0]
        events: dict[int, Entry] = {}
        for entry in _entries(frame):
            what = entry[0]
            if isinstance(what, int):
                self._read_delivery(entry, events)
                continue
            seq += 1
            events[seq] = entry
            if what not in MESSAGES:
                self._read_event(entry)
        self.seq = seq

    def _read_event(self, entry: Entry) -> None:
        match entry:
            case "thread_opened", thread, name, parent:
                self.threads[thread] = (parent, name)
            case "thread_pruned", thread, _:
                self.threads.pop(thread, None)
                self.tokens.pop(thread, None)
            case "token_usage", thread, _, _, total if thread in self.threads:
                self.tokens[thread] = total

    def _read_delivery(self, entry: Entry, events: dict[int, Entry]) -> None:
        what, number = entry[:2]
        if what == FINISHED:
            self.pending.pop(number, None)
        elif what == STARTED:
            queued, event = self.pending[number]
            self.pending[number] = PendingDelivery([HANDED, *queued[1:]], event)
        else:
            self.delivery = number
            self.pending[number] = PendingDelivery(entry, events[entry[3]])


class EventLog:
    """What has happened, in order, written before it has an effect.

    Args:
        journal: Where it is written.
        bus: Who is told.
    """

    def __init__(self, journal: Journal, bus: EventBus) -> None:
        self._journal = journal
        self._write = journal.write
        self._bus = bus
        self._frame: list[Any] = [0]
        self._event: Entry = ()
        self._pending: dict[int, tuple[Entry, Entry]] = {}
        self._delivery = 0
        self.on_disk = journal.on_disk
        """Whether there is anything to wait for with `synced`."""
        self.seq = 0
        """The number of the last event."""
        self.threads: Iterable[Thread] | None = None
        """The threads that are alive, parents first, once those of the time before are brought
        back; until then no segment of the journal begins, for want of its snapshot."""

    def recover(self) -> Recovered:
        """Read what the journal says of the time before, and numbers on from there."""
        recovered = Recovered()
        if (snapshot := self._journal.snapshot()) is not None:
            recovered.read_snapshot(snapshot)
        for frame in self._journal.frames(self._journal.first):
            recovered.read(frame)
        self.seq, self._delivery = recovered.seq, recovered.delivery
        self._frame = [self.seq]
        self._pending = dict(recovered.pending)
        return recovered

    def event(
        self,
        kind: EventKind,
        thread: str = "",
        sender: str = "",
        to: str = "",
        xml: bytes = b"",
        detail: str = "",
    ) -> int:
        """Number an event, which is written and told at the next commit, with the time of that.

        Args:
            kind: What kind of thing happened.
            thread: The thread that it happened in.
            sender: Who caused it.
            to: Whom a message is for.
            xml: The canonical bytes of a message; other kinds have none.
            detail: What else is to be said of other kinds; messages have none.
        """
        self._event = event = (kind, thread, sender, to, xml or detail)
        self._frame += event
        self.seq = seq = self.seq + 1
        return seq

    def opened(self, thread: Thread) -> None:
        """Note a new thread, and tell of it."""
        parent = "" if thread.parent is None else thread.parent.id
        self._frame += ("thread_opened", thread.id, thread.name, parent)
        self.seq += 1

    def tokens_recorded(self, thread: Thread, tokens: int) -> None:
        """Note that tokens were used in a thread, and tell of it."""
        self._frame += ("token_usage", thread.id, thread.name, tokens, thread.tokens)
        self.seq += 1

    def pruned(self, threads: Iterable[Thread]) -> None:
        """Note that threads are forgotten, and tell of it."""
        for thread in threads:
            self._frame += ("thread_pruned", thread.id, thread.name)
            self.seq += 1

    def queued(self, thread: Thread, seq: int, started: bool = False) -> int:
        """Note that a message is for a handler, and return the delivery's number.

        Args:
            thread: The handler's thread.
            seq: The number of the message's event, which is of the same commit.
            started: Whether the handler is about to see it, without a wait.
        """
        self._delivery = number = self._delivery + 1
        queued = (HANDED if started else QUEUED, number, thread.id, seq)
        self._frame += queued
        self._pending[number] = (queued, self._event if seq == self.seq else self._noted(seq))
        return number

    def _noted(self, seq: int) -> Entry:
        """Return the entry of an event that is not yet written."""
        events = (entry for entry in _entries([*self._frame, 0]) if isinstance(entry[0], str))
        return next(islice(events, seq - self._frame[0] - 1, None))

    def started(self, number: int) -> None:
        """Note that a handler is about to see a delivery that has waited."""
        self._frame += (STARTED, number)
        queued, event = self._pending[number]
        self._pending[number] = ((HANDED, *queued[1:]), event)

    def finished(self, number: int) -> None:
        """Note that a delivery is done with."""
        self._frame += (FINISHED, number)
        self._pending.pop(number, None)

    @property
    def waiting(self) -> bool:
        """Whether something is noted that is not committed."""
        return len(self._frame) > 1

    def discard(self) -> None:
        """Forget what was noted, where nothing can be written."""
        self._frame = [self.seq]

    def commit(self) -> None:
        """Write what was noted, as one, and tell subscribers."""
        frame = self._frame
        if len(frame) == 1:
            return
        self._frame = [self.seq]
        frame.append(time())
        full = self._write(frame)
        if self._bus.subscriptions:
            self._bus.publish(_events(frame))
        if full and self.threads is not None and self.seq >= self._journal.first:
            self._begin_segment(self.threads)

    def _begin_segment(self, threads: Iterable[Thread]) -> None:
        """Begin a segment of the journal with what all that was written comes to."""
        alive: list[Any] = []
        for each in threads:
            parent = "" if each.parent is None else each.parent.id
            alive += (each.id, parent, each.name, each.tokens)
        pending = list(self._pending.values())
        self._journal.begin(self.seq + 1, (self.seq, self._delivery, alive, pending))

    async def synced(self) -> None:
        """Wait until what was committed survives what the journal is set to survive."""
        await self._journal.synced()

    def events(self, containing: str = "", after: int = 0) -> Iterator[Event]:
        """Return the events so far, oldest first, and a `gap` in the place of those that are gone.

        Args:
            containing: A text that is in all events that are looked for, such as a thread's UUID;
                others may be left out.
            after: The number of an event; those up to it may be left out.
        """
        known, last = after, self.seq
        segments = self._journal.segments(after)
        for first, following in zip(segments, [*segments[1:], last + 1], strict=True):
            try:
                frames = self._journal.frames(first, containing.encode())
            except FileNotFoundError:
                continue
            if known + 1 < first:
                yield _gap(first - 1)
            for frame in frames:
                yield from _events(frame)
            known = following - 1
        if known < last:
            yield _gap(last)


def _entries(frame: Frame) -> Iterator[Entry]:
    """Return the entries of a frame."""
    position, end = 1, len(frame) - 1
    while position < end:
        following = position + LENGTHS[frame[position]]
        yield frame[position:following]
        position = following


def _events(frame: Frame) -> Iterator[Event]:
    """Return the events of a frame."""
    seq, moment = frame[0], frame[-1]
    for entry in _entries(frame):
        if isinstance(entry[0], str):
            seq += 1
            yield _event(seq, entry, moment)


def _event(seq: int, entry: Entry, moment: float) -> Event:
    """Return the event that an entry makes up."""
    match entry:
        case ("message" | "huh") as kind, thread, sender, to, xml:
            return Event(seq, kind, thread, sender, to, xml, "", moment)
        case "thread_opened" | "thread_pruned" as kind, thread, name, *_:
            return Event(seq, kind, thread, name, "", b"", "", moment)
        case "token_usage", thread, name, tokens, total:
            detail = f"{tokens} tokens, {total} in all"
            return Event(seq, "token_usage", thread, name, "", b"", detail, moment)
        case kind, thread, sender, to, detail:
            return Event(seq, kind, thread, sender, to, b"", detail, moment)
    raise AssertionError(entry)


def _gap(seq: int) -> Event:
    """Tell of events that are gone: all up to a number, as far as they were not given."""
    detail = "events are gone: their part of the journal was removed"
    return Event(seq, "gap", "", "core", "", b"", detail, time())


CHUNK = 500
"""Events that are read from the journal before others have their turn."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which events a listener to them wants."""

    thread: str | None = None
    """The thread that they are of; `None` for all."""
    principal: str | None = None
    """Whom they concern; `None` for everybody."""

    def __call__(self, event: Event) -> bool:
        """Return whether an event is wanted, as gaps always are."""
        return event.kind == "gap" or (
            (self.thread is None or event.thread == self.thread)
            and (self.principal is None or event.concerns(self.principal))
        )


async def listen(
    log: EventLog, bus: EventBus, size: int, wanted: Wanted, after: int
) -> AsyncGenerator[Event, None]:
    """Return events after a number: from the log, and then as they happen.

    A `gap` stands for those that the journal has no more.

    Args:
        log: Has the events so far.
        bus: Tells of those to come.
        size: How many may wait to be taken before there is a gap.
        wanted: Which events are wanted.
        after: The number of the last event that is known.
    """
    log.commit()
    upto = log.seq
    subscription = bus.subscribe(wanted, size)
    try:
        if after < upto:
            events = log.events(wanted.thread or "", after)
            async with aclosing(_in_turns(events)) as past:
                async for event in past:
                    if after < event.seq <= upto and wanted(event):
                        yield event
        while (live := await subscription.next()) is not None:
            if live.seq > after:
                yield live
    finally:
        bus.unsubscribe(subscription)


async def history(log: EventLog, wanted: Wanted) -> AsyncGenerator[Event, None]:
    """Return the messages so far, oldest first.

    A `gap` stands for the part of the journal that was removed, where messages may have been.
    """
    log.commit()
    async with aclosing(_in_turns(log.events(wanted.thread or ""))) as past:
        async for event in past:
            if event.kind in ("message", "huh", "gap") and wanted(event):
                yield event


async def _in_turns(events: Iterable[Event]) -> AsyncGenerator[Event, None]:
    """Return events that are read from a file, and let others have their turn between them."""
    for number, event in enumerate(events):
        if number % CHUNK == CHUNK - 1:
            await asyncio.sleep(0)
        yield event
