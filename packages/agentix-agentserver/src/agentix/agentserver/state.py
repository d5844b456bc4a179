"""State: the threads, deliveries and slots of a pump, and all transitions between their states.

All that changes a state is in this file, which knows neither asyncio nor XML nor files.
An event that a table does not have for a state is a bug, and raises `TransitionError`.

    a delivery   queued ──► waiting ──► starting ──► running ──► replying ──► done
    a thread     idle ◄──► busy ◄──► exhausted, and closed for good
    a call       open ──► written or settled ──► ended, or failed
"""

from collections import deque
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final, Generic, Protocol, TypeVar

from agentix.agentserver.errors import TransitionError
from agentix.agentserver.names import new_thread_id

__all__ = [
    "CALL",
    "DELIVERY",
    "THREAD",
    "CallEvent",
    "CallState",
    "DeliveryEvent",
    "DeliveryState",
    "Slots",
    "Thread",
    "ThreadEvent",
    "ThreadRegistry",
    "ThreadState",
    "Transitions",
]


class DeliveryState(StrEnum):
    """Where a delivery is on its way."""

    QUEUED = "queued"
    """Behind others of its thread."""
    WAITING = "waiting"
    """The next of its thread, without a slot."""
    STARTING = "starting"
    """It has a slot, and its start is to be written before its handler sees it."""
    RUNNING = "running"
    """At its handler."""
    REPLYING = "replying"
    """Its handler has returned or failed, and what follows from that is sent."""
    DONE = "done"
    """Nothing follows from it any more."""


class DeliveryEvent(StrEnum):
    """What happens to a delivery."""

    HEAD = "it is the next of its thread"
    SLOT = "a slot is free"
    WRITTEN = "its start is written"
    NOT_WRITTEN = "its start cannot be written"
    UNSEEN = "its thread takes no more of it"
    REFUSED = "it is beyond a limit"
    OUTCOME = "its handler has returned or failed"
    SENT = "all that follows is sent"
    DROPPED = "its thread is closed"


class ThreadState(StrEnum):
    """What a thread does."""

    IDLE = "idle"
    """Nothing is for it."""
    BUSY = "busy"
    """A delivery of it is on its way."""
    EXHAUSTED = "exhausted"
    """Beyond a limit while deliveries of it are on their way."""
    SPENT = "spent"
    """Beyond a limit, and nothing is for it."""
    CLOSED = "closed"
    """Its UUID does not resolve any more."""


class ThreadEvent(StrEnum):
    """What happens to a thread."""

    DELIVERY = "a delivery is for it"
    REST = "its last delivery is done"
    LIMIT = "a limit is reached"
    REQUEST = "its caller asks anew"
    CLOSE = "it is closed"


class CallState(StrEnum):
    """How far what follows from an external message is."""

    OPEN = "open"
    """It is under way, and not yet written."""
    WRITTEN = "written"
    """The message is written, and acknowledged."""
    SETTLED = "settled"
    """All that follows from it is over, before it was acknowledged."""
    ENDED = "ended"
    """It is acknowledged, and all that follows from it is over."""
    FAILED = "failed"
    """The journal cannot be written, or the organism has ended."""


class CallEvent(StrEnum):
    """What happens to a call."""

    WRITTEN = "the message is written"
    SETTLED = "nothing of it is under way"
    FAIL = "no more can be written"


_S = TypeVar("_S", bound=StrEnum)
_E = TypeVar("_E", bound=StrEnum)


class Transitions(dict[_E, _S]):
    """What follows a state, by the event. An event that is not here is a bug, and loud."""

    def __missing__(self, event: _E) -> _S:
        raise TransitionError(f"this cannot happen now: {event}")


DELIVERY: Final[Mapping[DeliveryState, Transitions[DeliveryEvent, DeliveryState]]] = {
    DeliveryState.QUEUED: Transitions(
        {
            DeliveryEvent.HEAD: DeliveryState.WAITING,
            DeliveryEvent.DROPPED: DeliveryState.DONE,
        }
    ),
    DeliveryState.WAITING: Transitions({DeliveryEvent.SLOT: DeliveryState.STARTING}),
    DeliveryState.STARTING: Transitions(
        {
            DeliveryEvent.WRITTEN: DeliveryState.RUNNING,
            DeliveryEvent.NOT_WRITTEN: DeliveryState.DONE,
            DeliveryEvent.UNSEEN: DeliveryState.DONE,
            DeliveryEvent.REFUSED: DeliveryState.REPLYING,
        }
    ),
    DeliveryState.RUNNING: Transitions({DeliveryEvent.OUTCOME: DeliveryState.REPLYING}),
    DeliveryState.REPLYING: Transitions({DeliveryEvent.SENT: DeliveryState.DONE}),
    DeliveryState.DONE: Transitions(),
}
"""The states of a delivery, and which follows at which event."""

THREAD: Final[Mapping[ThreadState, Transitions[ThreadEvent, ThreadState]]] = {
    ThreadState.IDLE: Transitions(
        {
            ThreadEvent.DELIVERY: ThreadState.BUSY,
            ThreadEvent.CLOSE: ThreadState.CLOSED,
        }
    ),
    ThreadState.BUSY: Transitions(
        {
            ThreadEvent.DELIVERY: ThreadState.BUSY,
            ThreadEvent.REST: ThreadState.IDLE,
            ThreadEvent.LIMIT: ThreadState.EXHAUSTED,
            ThreadEvent.REQUEST: ThreadState.BUSY,
            ThreadEvent.CLOSE: ThreadState.CLOSED,
        }
    ),
    ThreadState.EXHAUSTED: Transitions(
        {
            ThreadEvent.DELIVERY: ThreadState.EXHAUSTED,
            ThreadEvent.REST: ThreadState.SPENT,
            ThreadEvent.REQUEST: ThreadState.BUSY,
            ThreadEvent.CLOSE: ThreadState.CLOSED,
        }
    ),
    ThreadState.SPENT: Transitions(
        {
            ThreadEvent.DELIVERY: ThreadState.EXHAUSTED,
            ThreadEvent.CLOSE: ThreadState.CLOSED,
        }
    ),
    # What was on its way when the thread was closed still ends.
    ThreadState.CLOSED: Transitions(
        {
            ThreadEvent.DELIVERY: ThreadState.CLOSED,
            ThreadEvent.REST: ThreadState.CLOSED,
        }
    ),
}
"""The states of a thread, and which follows at which event."""

CALL: Final[Mapping[CallState, Transitions[CallEvent, CallState]]] = {
    CallState.OPEN: Transitions(
        {
            CallEvent.WRITTEN: CallState.WRITTEN,
            CallEvent.SETTLED: CallState.SETTLED,
            CallEvent.FAIL: CallState.FAILED,
        }
    ),
    CallState.WRITTEN: Transitions(
        {
            CallEvent.SETTLED: CallState.ENDED,
            CallEvent.FAIL: CallState.FAILED,
        }
    ),
    CallState.SETTLED: Transitions(
        {
            CallEvent.WRITTEN: CallState.ENDED,
            CallEvent.FAIL: CallState.FAILED,
        }
    ),
    CallState.ENDED: Transitions(),
    # What follows from a message that could not be written still ends, and fails as it does.
    CallState.FAILED: Transitions(
        {
            CallEvent.WRITTEN: CallState.FAILED,
            CallEvent.SETTLED: CallState.FAILED,
            CallEvent.FAIL: CallState.FAILED,
        }
    ),
}
"""The states of a call, and which follows at which event."""


class Thread:
    """One listener's side of one conversation; the root is its principal's.

    A thread that is idle is nothing but this object.
    """

    __slots__ = ("_children", "id", "iterations", "name", "parent", "state", "tokens")

    def __init__(self, id: str, name: str, parent: "Thread | None") -> None:  # noqa: A002 - the thread's word for it
        self.id = id
        """Its UUID, all that a handler learns of it."""
        self.name = name
        """The listener that it is of; the principal, for a root."""
        self.parent = parent
        """The thread that calls it; `None` for a root."""
        self.state = ThreadState.IDLE
        """What it does."""
        self.iterations = 0
        """Messages handled since the last one from its caller."""
        self.tokens = 0
        """Tokens that were used in it."""
        self._children: dict[str, Thread] | None = None

    def move(self, event: ThreadEvent) -> None:
        """Change its state as an event does."""
        self.state = THREAD[self.state][event]

    @property
    def alive(self) -> bool:
        """Whether its UUID resolves."""
        return self.state is not ThreadState.CLOSED

    def check_limits(
        self, iterations: int, tokens: int | None, *, is_new_request: bool
    ) -> str | None:
        """Count one more message for its handler.

        Args:
            iterations: How many there may be for one message of its caller.
            tokens: How many tokens may be used in it.
            is_new_request: Whether the message is from its caller: the count begins again.

        Returns:
            The limit that it is beyond; `None` within all. Beyond a limit nothing is admitted
            until the caller asks anew, and tokens stay used.
        """
        if is_new_request:
            self.iterations = 0
            self.move(ThreadEvent.REQUEST)
        self.iterations += 1
        if self.iterations > iterations:
            excess = f"{self.name}: more than {iterations} messages for one of its caller"
        elif tokens is not None and self.tokens >= tokens:
            excess = f"{self.name}: {self.tokens} tokens used; {tokens} are allowed"
        else:
            return None
        self.move(ThreadEvent.LIMIT)
        return excess

    def record_tokens(self, tokens: int) -> None:
        """Add tokens to those that were used in it."""
        if tokens < 0:
            raise ValueError(f"{tokens} tokens cannot be recorded: give a number from 0 on")
        self.tokens += tokens

    @property
    def owner(self) -> str:
        """The name of the principal whose conversation it is in."""
        thread = self
        while thread.parent is not None:
            thread = thread.parent
        return thread.name

    @property
    def path(self) -> tuple[str, ...]:
        """The principal, then the listeners down to this one."""
        names, thread = [], self
        while thread.parent is not None:
            names.append(thread.name)
            thread = thread.parent
        return (thread.name, *reversed(names))

    @property
    def depth(self) -> int:
        """How many listeners are on its path."""
        return len(self.path) - 1

    def child(self, name: str) -> "Thread | None":
        """Return the thread of a listener below this one, where there is one."""
        return None if self._children is None else self._children.get(name)

    def adopt(self, child: "Thread") -> None:
        """Take a thread below this one."""
        if self._children is None:
            self._children = {}
        self._children[child.name] = child

    def disown(self, child: "Thread") -> None:
        """Let go of a thread below this one."""
        if self._children is not None:
            self._children.pop(child.name, None)
            self._children = self._children or None

    def below(self) -> "Iterator[Thread]":
        """Return all threads below this one, the deepest last."""
        for child in tuple(self._children.values()) if self._children else ():
            yield child
            yield from child.below()


class ThreadRegistry:
    """The registry of all threads that are alive."""

    def __init__(self) -> None:
        self._threads: dict[str, Thread] = {}

    def __len__(self) -> int:
        return len(self._threads)

    def __iter__(self) -> Iterator[Thread]:
        return iter(tuple(self._threads.values()))

    def get(self, id: str) -> Thread | None:  # noqa: A002 - the thread's word for it
        """Return the thread of a UUID, where it resolves."""
        return self._threads.get(id)

    def open_root(self, id: str, owner: str) -> Thread:  # noqa: A002 - the thread's word for it
        """Begin a conversation of a principal."""
        return self._add(Thread(id, owner, None))

    def open_child(self, parent: Thread, name: str, id: str | None = None) -> Thread:  # noqa: A002 - the thread's word for it
        """Add a listener to the path of a thread; the two never had a thread, or it was pruned."""
        child = self._add(Thread(id or new_thread_id(), name, parent))
        parent.adopt(child)
        return child

    def restore(self, threads: Mapping[str, tuple[str, str]]) -> None:
        """Bring back the threads of the time before, parents first.

        Args:
            threads: The UUID of the parent, empty for roots, and the name of each, by its UUID.
        """
        for id, (parent, name) in threads.items():  # noqa: A001 - the thread's word for it
            above = self._threads.get(parent)
            if above is not None:
                self.open_child(above, name, id)
            elif not parent:
                self.open_root(id, name)

    def _add(self, thread: Thread) -> Thread:
        self._threads[thread.id] = thread
        return thread

    def close(self, thread: Thread) -> list[Thread]:
        """Forget a thread, and all below it.

        Returns:
            Those that were forgotten; none where it was before.
        """
        if not thread.alive:
            return []
        if thread.parent is not None:
            thread.parent.disown(thread)
        return self._forget([thread, *thread.below()])

    def close_children(self, thread: Thread) -> list[Thread]:
        """Forget all threads below one, and return them."""
        below = list(thread.below())
        for child in below:
            thread.disown(child)
        return self._forget(below)

    def _forget(self, threads: list[Thread]) -> list[Thread]:
        for each in threads:
            each.move(ThreadEvent.CLOSE)
            each._children = None
            self._threads.pop(each.id, None)
        return threads


class Waiting(Protocol):
    """What can wait for a slot."""

    @property
    def number(self) -> int:
        """Its number: what waits longest has the lowest."""

    @property
    def listener_name(self) -> str:
        """The listener whose handler is to run."""

    @property
    def depth(self) -> int:
        """How many listeners are on the path of its thread."""


_W = TypeVar("_W", bound=Waiting)


class Slots(Generic[_W]):
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
        self._waiting: dict[str, deque[_W]] = {}

    @property
    def running(self) -> int:
        """How many handlers run."""
        return self._running

    def take(self, waiting: _W) -> bool:
        """Take a slot, or wait for one; return whether there was one."""
        name = waiting.listener_name
        running = self._running_of.get(name, 0)
        if self._running < self._total and running < self._each:
            self._running += 1
            self._running_of[name] = running + 1
            return True
        self._waiting.setdefault(name, deque()).append(waiting)
        return False

    def give(self, name: str) -> _W | None:
        """Take a slot of a listener back; return what has it next, if anything waits."""
        self._running -= 1
        running = self._running_of[name] - 1
        if running:
            self._running_of[name] = running
        else:
            del self._running_of[name]
        open_queues = [
            queue
            for each, queue in self._waiting.items()
            if self._running_of.get(each, 0) < self._each
        ]
        if not open_queues:
            return None
        queue = min(open_queues, key=self._rank)
        chosen = self._next(queue)
        if not queue:
            del self._waiting[chosen.listener_name]
        self._running += 1
        self._running_of[chosen.listener_name] = self._running_of.get(chosen.listener_name, 0) + 1
        return chosen

    def _rank(self, queue: deque[_W]) -> tuple[int, int]:
        """Order the queues of listeners by what each would give."""
        if self._depth_first:
            deepest = max(queue, key=_depth)
            return -deepest.depth, deepest.number
        return 0, queue[0].number

    def _next(self, queue: deque[_W]) -> _W:
        if not self._depth_first:
            return queue.popleft()
        deepest = max(queue, key=_depth)
        queue.remove(deepest)
        return deepest


def _depth(waiting: Waiting) -> int:
    return waiting.depth
