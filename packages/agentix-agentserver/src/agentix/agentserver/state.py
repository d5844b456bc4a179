"""State: threads, deliveries, slots and pending calls, and what bounds them."""

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentix.agentserver.deadlines import Deadlines
from agentix.agentserver.names import new_thread_id
from agentix.agentserver.registry import Listener

if TYPE_CHECKING:
    from agentix.agentserver.registry import MessageState

__all__ = [
    "Delivery",
    "PendingCall",
    "Scheduler",
    "Target",
    "Thread",
    "ThreadRegistry",
    "check_limits",
    "record_tokens",
]


class Thread:
    """One listener's side of one conversation; the root is its principal's.

    A thread that is idle is nothing but this object: its queue exists while messages wait.
    """

    __slots__ = (
        "_children",
        "alive",
        "busy",
        "exhausted",
        "id",
        "iterations",
        "name",
        "parent",
        "queue",
        "tokens",
    )

    def __init__(self, id: str, name: str, parent: "Thread | None") -> None:  # noqa: A002 - the thread's word for it
        self.id = id
        """Its UUID, all that a handler learns of it."""
        self.name = name
        """The listener that it is of; the principal, for a root."""
        self.parent = parent
        """The thread that calls it; `None` for a root."""
        self.alive = True
        """Whether its UUID resolves."""
        self.busy = False
        """Whether a message of it is at its handler, or waits for a slot."""
        self.queue: deque[Delivery] | None = None
        """The messages that wait for those before them."""
        self.iterations = 0
        """Messages handled since the last one from its caller."""
        self.tokens = 0
        """Tokens that were used in it."""
        self.exhausted = False
        """Whether a limit was hit since the last message from its caller."""
        self._children: dict[str, Thread] | None = None

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

    def prune(self, thread: Thread, *, itself: bool) -> list[Thread]:
        """Forget what is below a thread, and the thread itself where that is asked for."""
        pruned = list(thread.below())
        if itself:
            pruned.insert(0, thread)
            if thread.parent is not None:
                thread.parent.disown(thread)
        else:
            for child in pruned:
                thread.disown(child)
        for each in pruned:
            each.alive = False
            each._children = None
            self._threads.pop(each.id, None)
        return pruned


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
        """Take a slot; where there is none the delivery waits for one."""
        name = delivery.target.listener.name
        running = self._running_of.get(name, 0)
        if self._running < self._total and running < self._each:
            self._running += 1
            self._running_of[name] = running + 1
            return True
        self._waiting.setdefault(name, deque()).append(delivery)
        return False

    def give(self, name: str) -> Delivery | None:
        """Return a slot back, and the delivery that has it next."""
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
        """Order the queues of listeners by the delivery that each would give."""
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


class PendingCall:
    """All that follows from one external message, and what came back to its sender."""

    __slots__ = ("_ended", "_ending", "_error", "_writing", "_written", "outstanding", "replies")

    def __init__(self) -> None:
        self.outstanding = 1
        """How many things are under way; at first it is the message itself."""
        self._written = False
        self._ended = False
        self._error: Exception | None = None
        self._writing: asyncio.Future[None] | None = None
        self._ending: asyncio.Future[None] | None = None
        self.replies: list[bytes] = []
        """The envelopes that left the organism for the sender."""

    def end(self) -> None:
        """Tell who waits that all that came of the message is written."""
        self._ended = True
        if self._ending is not None and not self._ending.done():
            self._ending.set_result(None)

    def fail(self, error: Exception) -> None:
        """Tell who waits that no more can be written."""
        self._error = error
        for future in (self._writing, self._ending):
            if future is not None and not future.done():
                future.set_exception(error)

    def written(self) -> None:
        """Tell who waits that the message is written."""
        self._written = True
        if self._writing is not None and not self._writing.done():
            self._writing.set_result(None)

    async def wait_written(self) -> None:
        """Wait until the message is written."""
        if not self._written:
            self._writing = self._future()
            await self._writing

    async def wait_ended(self, deadlines: Deadlines, seconds: float) -> None:
        """Wait until nothing is under way.

        Raises:
            TimeoutError: It takes longer than so many seconds.
        """
        if self._ended:
            return
        self._ending = ending = self._future()
        deadlines.watch(ending, seconds)
        try:
            await ending
        finally:
            deadlines.forget(ending)

    def _future(self) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._error is not None:
            future.set_exception(self._error)
        return future


def check_limits(listener: Listener, thread: Thread, *, is_new_request: bool) -> str | None:
    """Count one more message for a handler.

    Args:
        listener: The listener.
        thread: Its thread.
        is_new_request: Whether it is from the caller of the thread: the count begins again.

    Returns:
        The limit that it is beyond; `None` within all. Beyond a limit nothing is admitted until
        the caller asks anew, and tokens stay used.
    """
    if is_new_request:
        thread.iterations = 0
        thread.exhausted = False
    thread.iterations += 1
    if thread.iterations > listener.iterations:
        return f"{listener.name}: more than {listener.iterations} messages for one of its caller"
    if listener.tokens is not None and thread.tokens >= listener.tokens:
        return f"{listener.name}: {thread.tokens} tokens used; {listener.tokens} are allowed"
    return None


def record_tokens(thread: Thread, tokens: int) -> None:
    """Add tokens to what was used in a thread."""
    if tokens < 0:
        raise ValueError(f"{tokens} tokens cannot be recorded: give a number from 0 on")
    thread.tokens += tokens
