"""The ledger: numbers events, and writes them with what becomes of threads and deliveries."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from agentix.agentserver.events import Event, EventBus, EventKind
from agentix.agentserver.journal import Entry, Journal
from agentix.agentserver.threads import Thread

__all__ = ["Ledger", "Pending", "Recovered"]

EVENT: Final = 0
OPENED: Final = 1
PRUNED: Final = 2
QUEUED: Final = 3
STARTED: Final = 4
FINISHED: Final = 5
BOOKED: Final = 6


@dataclass(slots=True)
class Pending:
    """A delivery that had not ended when the organism did."""

    number: int
    """Its number."""
    thread: str
    """The thread that it is for."""
    message: Event
    """The message."""
    started: bool = False
    """Whether its handler may have seen it; then it is reported, and not delivered again."""


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

    def read(self, frame: Iterable[Entry]) -> None:
        """Takes in the entries of one frame."""
        events: dict[int, Event] = {}
        for kind, *values in frame:
            match kind:
                case 0:
                    event = Event(*values)
                    events[event.seq] = event
                    self.seq = event.seq
                case 1:
                    thread, parent, name = values
                    self.threads[thread] = (parent, name)
                case 2:
                    for thread in values[0]:
                        self.threads.pop(thread, None)
                        self.tokens.pop(thread, None)
                case 3:
                    number, thread, seq = values
                    self.delivery = number
                    self.pending[number] = Pending(number, thread, events[seq])
                case 4:
                    self.pending[values[0]].started = True
                case 5:
                    self.pending.pop(values[0], None)
                case 6:
                    thread, used = values
                    self.tokens[thread] = used


class Ledger:
    """What has happened, in order, written before it has an effect.

    Args:
        journal: Where it is written.
        bus: Who is told.
    """

    def __init__(self, journal: Journal, bus: EventBus) -> None:
        self._journal = journal
        self._bus = bus
        self._entries: list[Entry] = []
        self._events: list[Event] = []
        self._delivery = 0
        self.on_disk = journal.on_disk
        """Whether there is anything to wait for with `synced`."""
        self.seq = 0
        """The number of the last event."""

    def recover(self) -> Recovered:
        """Reads what the journal says of the time before, and numbers on from there."""
        recovered = Recovered()
        for frame in self._journal.frames():
            recovered.read(frame)
        self.seq, self._delivery = recovered.seq, recovered.delivery
        return recovered

    def event(
        self,
        kind: EventKind,
        *,
        thread: str = "",
        sender: str = "",
        to: str = "",
        xml: bytes = b"",
        detail: str = "",
    ) -> int:
        """Numbers an event, which is written and told at the next commit."""
        self.seq = seq = self.seq + 1
        moment = time.time()
        self._entries.append((EVENT, seq, kind, thread, sender, to, xml, detail, moment))
        if self._bus.subscriptions:
            self._events.append(Event(seq, kind, thread, sender, to, xml, detail, moment))
        return seq

    def opened(self, thread: Thread) -> None:
        """Notes a new thread, and tells of it."""
        parent = "" if thread.parent is None else thread.parent.id
        self._entries.append((OPENED, thread.id, parent, thread.name))
        self.event("thread_opened", thread=thread.id, sender=thread.name)

    def booked(self, thread: Thread, tokens: int) -> None:
        """Notes that tokens were used in a thread, and tells of it."""
        self._entries.append((BOOKED, thread.id, thread.tokens))
        detail = f"{tokens} tokens, {thread.tokens} in all"
        self.event("token_usage", thread=thread.id, sender=thread.name, detail=detail)

    def pruned(self, threads: Iterable[Thread]) -> None:
        """Notes that threads are forgotten, and tells of it."""
        self._entries.append((PRUNED, [thread.id for thread in threads]))
        for thread in threads:
            self.event("thread_pruned", thread=thread.id, sender=thread.name)

    def queued(self, thread: Thread, seq: int) -> int:
        """Notes that a message is for a handler, and gives the delivery's number.

        The event of the message is of the same commit.
        """
        self._delivery = number = self._delivery + 1
        self._entries.append((QUEUED, number, thread.id, seq))
        return number

    def started(self, number: int) -> None:
        """Notes that a handler is about to see a delivery."""
        self._entries.append((STARTED, number))

    def finished(self, number: int) -> None:
        """Notes that a delivery is done with."""
        self._entries.append((FINISHED, number))

    def commit(self) -> None:
        """Writes what was noted, as one, and tells subscribers."""
        if self._entries:
            entries, self._entries = self._entries, []
            self._journal.write(entries)
        if self._events:
            events, self._events = self._events, []
            self._bus.publish(events)

    async def synced(self) -> None:
        """Waits until what was committed survives what the journal is set to survive."""
        await self._journal.synced()

    def events(self, containing: str = "") -> Iterator[Event]:
        """Gives the events so far, oldest first.

        Args:
            containing: A text that is in all events that are looked for, such as a thread's UUID;
                others may be left out.
        """
        for frame in self._journal.frames(containing.encode()):
            for entry in frame:
                if entry[0] == EVENT:
                    yield Event(*entry[1:])
