"""The ledger: numbers events, and writes them with what becomes of threads and deliveries.

What is noted until a commit is one frame of the journal: the number of the last event before it,
then entries, one after the other, and the time. Lists of their own would cost as much as what is in
them. An entry of an event is its kind and what makes it up. One of a delivery is a number that says
what became of it, and the delivery's own number.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from time import time
from typing import Any, Final, NamedTuple

from agentix.agentserver.events import Event, EventBus, EventKind
from agentix.agentserver.journal import Frame, Journal
from agentix.agentserver.threads import Thread

__all__ = ["Ledger", "Pending", "Recovered"]

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


class Pending(NamedTuple):
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
    pending: dict[int, Pending] = field(default_factory=dict)
    """The deliveries that had not ended, oldest first."""

    def read_snapshot(self, snapshot: Frame) -> None:
        """Begins with what a snapshot says."""
        self.seq, self.delivery, threads, pending = snapshot
        values = iter(threads)
        for thread, parent, name, tokens in zip(values, values, values, values, strict=True):
            self.threads[thread] = (parent, name)
            if tokens:
                self.tokens[thread] = tokens
        self.pending = {queued[1]: Pending(queued, message) for queued, message in pending}

    def read(self, frame: Frame) -> None:
        """Takes in the entries of one frame."""
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
            self.pending[number] = Pending([HANDED, *queued[1:]], event)
        else:
            self.delivery = number
            self.pending[number] = Pending(entry, events[entry[3]])


class Ledger:
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
        """Reads what the journal says of the time before, and numbers on from there."""
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
        """Numbers an event, which is written and told at the next commit, with the time of that.

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
        """Notes a new thread, and tells of it."""
        parent = "" if thread.parent is None else thread.parent.id
        self._frame += ("thread_opened", thread.id, thread.name, parent)
        self.seq += 1

    def booked(self, thread: Thread, tokens: int) -> None:
        """Notes that tokens were used in a thread, and tells of it."""
        self._frame += ("token_usage", thread.id, thread.name, tokens, thread.tokens)
        self.seq += 1

    def pruned(self, threads: Iterable[Thread]) -> None:
        """Notes that threads are forgotten, and tells of it."""
        for thread in threads:
            self._frame += ("thread_pruned", thread.id, thread.name)
            self.seq += 1

    def queued(self, thread: Thread, seq: int, started: bool = False) -> int:
        """Notes that a message is for a handler, and gives the delivery's number.

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
        """Gives the entry of an event that is not yet written."""
        events = (entry for entry in _entries([*self._frame, 0]) if isinstance(entry[0], str))
        return next(islice(events, seq - self._frame[0] - 1, None))

    def started(self, number: int) -> None:
        """Notes that a handler is about to see a delivery that has waited."""
        self._frame += (STARTED, number)
        queued, event = self._pending[number]
        self._pending[number] = ((HANDED, *queued[1:]), event)

    def finished(self, number: int) -> None:
        """Notes that a delivery is done with."""
        self._frame += (FINISHED, number)
        self._pending.pop(number, None)

    @property
    def waiting(self) -> bool:
        """Whether something is noted that is not committed."""
        return len(self._frame) > 1

    def discard(self) -> None:
        """Forgets what was noted, where nothing can be written."""
        self._frame = [self.seq]

    def commit(self) -> None:
        """Writes what was noted, as one, and tells subscribers."""
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
        """Begins a segment of the journal with what all that was written comes to."""
        alive: list[Any] = []
        for each in threads:
            parent = "" if each.parent is None else each.parent.id
            alive += (each.id, parent, each.name, each.tokens)
        pending = list(self._pending.values())
        self._journal.begin(self.seq + 1, (self.seq, self._delivery, alive, pending))

    async def synced(self) -> None:
        """Waits until what was committed survives what the journal is set to survive."""
        await self._journal.synced()

    def events(self, containing: str = "", after: int = 0) -> Iterator[Event]:
        """Gives the events so far, oldest first, and a `gap` in the place of those that are gone.

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
    """Gives the entries of a frame."""
    position, end = 1, len(frame) - 1
    while position < end:
        following = position + LENGTHS[frame[position]]
        yield frame[position:following]
        position = following


def _events(frame: Frame) -> Iterator[Event]:
    """Gives the events of a frame."""
    seq, moment = frame[0], frame[-1]
    for entry in _entries(frame):
        if isinstance(entry[0], str):
            seq += 1
            yield _event(seq, entry, moment)


def _event(seq: int, entry: Entry, moment: float) -> Event:
    """Gives the event that an entry makes up."""
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
    """Tells of events that are gone: all up to a number, as far as they were not given."""
    detail = "events are gone: their part of the journal was removed"
    return Event(seq, "gap", "", "core", "", b"", detail, time())
