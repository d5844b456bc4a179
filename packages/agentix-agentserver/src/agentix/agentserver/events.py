"""Events: what happens in an organism, numbered, for subscribers that may be slow."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

__all__ = ["Event", "EventBus", "EventKind", "Subscription"]

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
    """One thing that happened."""

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
        """Tells whether a principal may see it: it sent it, or is sent it."""
        if self.kind in ("security", "listener_state", "token_usage"):
            return False
        return principal in (self.sender, self.to) or self.kind == "gap"


Filter = Callable[[Event], bool]


class Subscription:
    """The events that wait for one subscriber: so many, and a gap for those beyond."""

    def __init__(self, wanted: Filter, size: int) -> None:
        self._wanted = wanted
        self._size = size
        self._events: deque[Event] = deque()
        self._lost: Event | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False

    def offer(self, event: Event) -> None:
        """Takes an event that is wanted; one beyond the size becomes part of a gap."""
        if not self._wanted(event):
            return
        if len(self._events) < self._size and self._lost is None:
            self._events.append(event)
        else:
            self._lost = event
        self._wake()

    def close(self) -> None:
        """Ends it: what waits is still given, then `None`."""
        self._closed = True
        self._wake()

    async def next(self) -> Event | None:
        """Gives the next event, when there is one; `None` at the end."""
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
        """Tells of events that were lost: all up to the seq of the gap are gone."""
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
        self.subscriptions: set[Subscription] = set()
        """Who is told; without any, there is no need to make events."""

    def subscribe(self, wanted: Filter, size: int) -> Subscription:
        """Adds a subscriber.

        Args:
            wanted: Tells which events it gets.
            size: How many may wait for it.
        """
        subscription = Subscription(wanted, size)
        self.subscriptions.add(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Removes a subscriber."""
        self.subscriptions.discard(subscription)

    def publish(self, events: Iterable[Event]) -> None:
        """Hands events to everybody who wants them."""
        for event in events:
            for subscription in self.subscriptions:
                subscription.offer(event)

    def close(self) -> None:
        """Ends all subscriptions."""
        for subscription in self.subscriptions:
            subscription.close()
