"""Puts the impls behind the stubs."""

from agentix.dispatch import Dispatcher

from . import _impl, cancel, logs, run_wasi, status, submit, submit_spec


def register() -> Dispatcher:
    """Return the functions of this namespace."""
    dispatcher = Dispatcher()
    dispatcher.bind(run_wasi, _impl.run_wasi)
    dispatcher.bind(submit, _impl.submit)
    dispatcher.bind(submit_spec, _impl.submit_spec)
    dispatcher.bind(status, _impl.status)
    dispatcher.bind(cancel, _impl.cancel)
    dispatcher.bind(logs, _impl.logs)
    return dispatcher
