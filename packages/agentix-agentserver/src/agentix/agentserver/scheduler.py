"""The scheduler: which delivery runs next, within the limits."""

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentix.agentserver.pipeline import MessageState
    from agentix.agentserver.registry import Listener
    from agentix.agentserver.threads import Thread

__all__ = ["Delivery", "Scheduler", "Target"]


@dataclass(slots=True)
class Target:
    """A listener's thread that a message goes to."""

    listener: "Listener"
    """The listener."""
    thread: "Thread"
    """Its thread."""
    payload_class: int = 0
    """Which class it is given the payload as: 0 for its own, then its reply classes."""
    payload: dict[str, Any] | None = None
    """The fields of the payload, once its pipeline has read them."""


@dataclass(slots=True)
class Delivery:
    """A message for a handler."""

    number: int
    """Its number in the journal; 0 until it is noted there."""
    target: Target
    """Where it goes."""
    state: "MessageState"
    """The message."""


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
        running = self._running_of.get(name, 0)
        if self._running < self._total and running < self._each:
            self._running += 1
            self._running_of[name] = running + 1
            return True
        self._waiting.setdefault(name, deque()).append(delivery)
        return False

    def give(self, name: str) -> Delivery | None:
        """Gives a slot back, and the delivery that has it next."""
        self._running -= 1
        running = self._running_of[name] - 1
        if running:
            self._running_of[name] = running
        else:
            del self._running_of[name]
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
        self._running += 1
        self._running_of[chosen] = self._running_of.get(chosen, 0) + 1
        return delivery

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
