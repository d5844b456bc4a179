"""Puts the impls behind the stubs."""

from agentix.dispatch import Dispatcher

from . import _impl, score, setup, tasks


def register() -> Dispatcher:
    """Gives the functions of this namespace."""
    dispatcher = Dispatcher()
    dispatcher.bind(tasks, _impl.tasks)
    dispatcher.bind(setup, _impl.setup)
    dispatcher.bind(score, _impl.score)
    return dispatcher
