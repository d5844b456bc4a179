"""Puts the impls behind the stubs."""

from agentix.dispatch import Dispatcher

from . import _impl, chat, run


def register() -> Dispatcher:
    """Gives the functions of this namespace."""
    dispatcher = Dispatcher()
    dispatcher.bind(run, _impl.run)
    dispatcher.bind(chat, _impl.chat)
    return dispatcher
