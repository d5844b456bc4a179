"""Binds the stubs to what they do."""

from agentix.dispatch import Dispatcher

from . import _impl, block


def register() -> Dispatcher:
    dispatcher = Dispatcher()
    dispatcher.bind(block, _impl.block)
    return dispatcher
