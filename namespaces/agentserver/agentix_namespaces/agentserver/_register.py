"""Puts the impls behind the stubs."""

from agentix.dispatch import Dispatcher

from . import (
    _impl,
    call,
    catalog,
    describe,
    grant,
    history,
    listen,
    post,
    privileged,
    revoke,
    start,
    stop,
    threads,
)

STUBS = (
    start,
    grant,
    revoke,
    post,
    call,
    listen,
    describe,
    catalog,
    threads,
    history,
    privileged,
    stop,
)


def register() -> Dispatcher:
    """Return the functions of this namespace."""
    dispatcher = Dispatcher()
    for stub in STUBS:
        dispatcher.bind(stub, getattr(_impl, stub.__name__))
    return dispatcher
