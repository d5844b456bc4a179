"""Binds the stubs to their bodies."""

from agentix.dispatch import Dispatcher

from . import STREAMS, STUBS, _impl


def register() -> Dispatcher:
    dispatcher = Dispatcher()
    for stub in (*STUBS, *STREAMS):
        dispatcher.bind(stub, getattr(_impl, stub.__name__))
    return dispatcher
