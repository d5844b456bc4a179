"""Puts the impls behind the stubs."""

from agentix.dispatch import Dispatcher

from . import _impl, count, echo, echo_plain, forever, tick


def register() -> Dispatcher:
    """Gives the functions of this namespace."""
    dispatcher = Dispatcher()
    dispatcher.bind(echo, _impl.echo)
    dispatcher.bind(echo_plain, _impl.echo_plain)
    dispatcher.bind(count, _impl.count)
    dispatcher.bind(forever, _impl.forever)
    dispatcher.bind(tick, _impl.tick)
    return dispatcher
