"""Budgets: how often a listener may go on in one thread, and how many tokens it may use there."""

from agentix.agentserver.registry import Listener
from agentix.agentserver.threads import Thread

__all__ = ["admit", "book"]


def admit(listener: Listener, thread: Thread, *, anew: bool) -> str | None:
    """Counts one more message for a handler.

    Args:
        listener: The listener.
        thread: Its thread.
        anew: Whether the message is from the caller of the thread, which begins the count again.

    Returns:
        The limit that it is beyond; `None` within all. Beyond a limit nothing is admitted until
        the caller asks anew, and tokens stay used.
    """
    if anew:
        thread.iterations = 0
        thread.exhausted = False
    thread.iterations += 1
    if thread.iterations > listener.iterations:
        return f"{listener.name}: more than {listener.iterations} messages for one of its caller"
    if listener.tokens is not None and thread.tokens >= listener.tokens:
        return f"{listener.name}: {thread.tokens} tokens used; {listener.tokens} are allowed"
    return None


def book(thread: Thread, tokens: int) -> None:
    """Adds tokens to what was used in a thread."""
    if tokens < 0:
        raise ValueError(f"{tokens} tokens can not be booked: give a number from 0 on")
    thread.tokens += tokens
