"""The scheduler: which delivery runs next, within the limits."""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentix.agentserver.deadlines import Deadlines

if TYPE_CHECKING:
    from agentix.agentserver.pipeline import MessageState
    from agentix.agentserver.registry import Listener
    from agentix.agentserver.threads import Thread

__all__ = ["Delivery", "Exchange", "Scheduler", "Target"]


class Exchange:
    """All that follows from one external message, and what came back to its sender."""

    __slots__ = ("_outstanding", "_waiter", "replies")

    def __init__(self) -> None:
        self._outstanding = 0
        self._waiter: asyncio.Future[None] | None = None
        self.replies: list[bytes] = []
        """The envelopes that left the organism for the sender."""

    def hold(self) -> None:
        """Counts one more thing that is under way."""
        self._outstanding += 1

    def release(self) -> None:
        """Counts one thing less; nothing under way ends the exchange."""
        self._outstanding -= 1
        if not self._outstanding and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def ended(self, deadlines: Deadlines, seconds: float) -> None:
        """Waits until nothing is under way.

        Raises:
            TimeoutError: It takes longer than so many seconds.
        """
        if self._outstanding:
            self._waiter = asyncio.get_running_loop().create_future()
            await deadlines.wait(self._waiter, seconds)


@dataclass(slots=True)
class Target:
    """A listener's thread that a message goes to."""

    listener: "Listener"
    """The listener."""
    thread: "Thread"
    """Its thread."""
    payload_class: int = 0
    """Which class it is given the payload as: 0 for its own, then its reply classes."""


@dataclass(slots=True)
class Delivery:
    """A message for a handler."""

    number: int
    """Its number in the journal."""
    target: Target
    """Where it goes."""
    payload: dict[str, Any]
    """The fields of the payload."""
    state: "MessageState"
    """The message."""
    waiting: bool = field(default=False)
    """Whether it waits for a slot."""


class Scheduler:
    """Hands out slots: so many in all, so many for each listener.

    Args:
        total: Handlers that run at once.
        each: Threads of one listener that run at once.
        depth_first: Whether the deepest waiting thread goes first, not the one waiting longest.
    """

    def __init__(self, total: int, each: int, *, depth_first: bool) -> None:
        self._total = total
        self._each = each
        self._depth_first = depth_first
        self._running = 0
        self._running_of: dict[str, int] = {}
        self._waiting: dict[str, deque[Delivery]] = {}

    @property
    def running(self) -> int:
        """How many handlers run."""
        return self._running

    def take(self, delivery: Delivery) -> bool:
        """Takes a slot; where there is none the delivery waits for one."""
        name = delivery.target.listener.name
        if self._running < self._total and self._running_of.get(name, 0) < self._each:
            self._count(name, 1)
            return True
        self._waiting.setdefault(name, deque()).append(delivery)
        return False

    def give(self, name: str) -> Delivery | None:
        """Gives a slot back, and the delivery that has it next."""
        self._count(name, -1)
        if not self._waiting:
            return None
        candidates = [
            (waiting, each)
            for each, waiting in self._waiting.items()
            if self._running_of.get(each, 0) < self._each
        ]
        if not candidates:
            return None
        queue, chosen = min(candidates, key=lambda candidate: self._rank(candidate[0]))
        delivery = self._next(queue)
        if not queue:
            del self._waiting[chosen]
        self._count(chosen, 1)
        return delivery

    def _count(self, name: str, change: int) -> None:
        self._running += change
        count = self._running_of.get(name, 0) + change
        if count:
            self._running_of[name] = count
        else:
            self._running_of.pop(name, None)

    def _rank(self, waiting: deque[Delivery]) -> tuple[int, int]:
        """Orders the queues of listeners by the delivery that each would give."""
        if self._depth_first:
            delivery = max(waiting, key=_depth)
            return -_depth(delivery), delivery.number
        return 0, waiting[0].number

    def _next(self, waiting: deque[Delivery]) -> Delivery:
        if not self._depth_first:
            return waiting.popleft()
        delivery = max(waiting, key=_depth)
        waiting.remove(delivery)
        return delivery


def _depth(delivery: Delivery) -> int:
    return delivery.target.thread.depth
