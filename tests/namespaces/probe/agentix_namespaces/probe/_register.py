"""Puts every impl behind the stub of the same name."""

import sys

from agentix.dispatch import Dispatcher

from . import _impl


def register() -> Dispatcher:
    dispatcher = Dispatcher()
    stubs = sys.modules[__package__ or ""]
    for name, impl in vars(_impl).items():
        if getattr(impl, "__module__", None) == _impl.__name__ and not name.startswith("_"):
            dispatcher.bind(getattr(stubs, name), impl)
    return dispatcher
