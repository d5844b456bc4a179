"""Puts the impls behind the stubs."""

from agentix.dispatch import Dispatcher

from . import (
    _impl,
    call,
    describe,
    history,
    listen,
    post,
    privileged,
    start,
    stop,
    threads,
)


def register() -> Dispatcher:
    """Gives the functions of this namespace."""
    dispatcher = Dispatcher()
    for stub in (start, post, call, listen, describe, threads, history, privileged, stop):
        dispatcher.bind(stub, getattr(_impl, stub.__name__))
    return dispatcher
