"""Threads: an opaque UUID for each (conversation, path), known to the pump alone."""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from agentix.agentserver.names import new_thread_id

if TYPE_CHECKING:
    from agentix.agentserver.scheduler import Delivery

__all__ = ["Thread", "Threads"]


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
        """Gives the thread of a listener below this one, where there is one."""
        return None if self._children is None else self._children.get(name)

    def adopt(self, child: "Thread") -> None:
        """Takes a thread below this one."""
        if self._children is None:
            self._children = {}
        self._children[child.name] = child

    def disown(self, child: "Thread") -> None:
        """Lets go of a thread below this one."""
        if self._children is not None:
            self._children.pop(child.name, None)
            self._children = self._children or None

    def below(self) -> "Iterator[Thread]":
        """Gives all threads below this one, the deepest last."""
        for child in tuple(self._children.values()) if self._children else ():
            yield child
            yield from child.below()


class Threads:
    """The registry of all threads that are alive."""

    def __init__(self) -> None:
        self._threads: dict[str, Thread] = {}

    def __len__(self) -> int:
        return len(self._threads)

    def __iter__(self) -> Iterator[Thread]:
        return iter(tuple(self._threads.values()))

    def get(self, id: str) -> Thread | None:  # noqa: A002 - the thread's word for it
        """Gives the thread of a UUID, where it resolves."""
        return self._threads.get(id)

    def open_root(self, id: str, owner: str) -> Thread:  # noqa: A002 - the thread's word for it
        """Begins a conversation of a principal."""
        return self._add(Thread(id, owner, None))

    def open_child(self, parent: Thread, name: str, id: str | None = None) -> Thread:  # noqa: A002 - the thread's word for it
        """Adds a listener to the path of a thread; the two never had a thread, or it was pruned."""
        child = self._add(Thread(id or new_thread_id(), name, parent))
        parent.adopt(child)
        return child

    def bring_back(self, threads: Mapping[str, tuple[str, str]]) -> None:
        """Brings back the threads of the time before, parents first.

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
        """Forgets what is below a thread, and the thread itself where that is asked for."""
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
