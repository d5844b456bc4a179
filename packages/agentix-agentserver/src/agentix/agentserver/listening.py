"""Listening: the events of the past, and then those that happen, without one lost between them."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass

from agentix.agentserver.events import Event, EventBus
from agentix.agentserver.ledger import Ledger

__all__ = ["Wanted", "history", "listen"]

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
        """Tells whether an event is wanted, as gaps always are."""
        return event.kind == "gap" or (
            (self.thread is None or event.thread == self.thread)
            and (self.principal is None or event.concerns(self.principal))
        )


async def listen(
    ledger: Ledger, bus: EventBus, size: int, wanted: Wanted, after: int
) -> AsyncGenerator[Event, None]:
    """Gives events after a number: from the ledger, and then as they happen.

    A `gap` stands for those that the journal has no more.

    Args:
        ledger: Has the events so far.
        bus: Tells of those to come.
        size: How many may wait to be taken before there is a gap.
        wanted: Which events are wanted.
        after: The number of the last event that is known.
    """
    ledger.commit()
    upto = ledger.seq
    subscription = bus.subscribe(wanted, size)
    try:
        if after < upto:
            events = ledger.events(wanted.thread or "", after)
            async with aclosing(_in_turns(events)) as past:
                async for event in past:
                    if after < event.seq <= upto and wanted(event):
                        yield event
        while (live := await subscription.next()) is not None:
            if live.seq > after:
                yield live
    finally:
        bus.unsubscribe(subscription)


async def history(ledger: Ledger, wanted: Wanted) -> AsyncGenerator[Event, None]:
    """Gives the messages so far, oldest first.

    A `gap` stands for the part of the journal that was removed, where messages may have been.
    """
    ledger.commit()
    async with aclosing(_in_turns(ledger.events(wanted.thread or ""))) as past:
        async for event in past:
            if event.kind in ("message", "huh", "gap") and wanted(event):
                yield event


async def _in_turns(events: Iterable[Event]) -> AsyncGenerator[Event, None]:
    """Gives events that are read from a file, and lets others have their turn between them."""
    for number, event in enumerate(events):
        if number % CHUNK == CHUNK - 1:
            await asyncio.sleep(0)
        yield event
