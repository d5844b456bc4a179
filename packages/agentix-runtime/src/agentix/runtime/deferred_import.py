"""Loads a module when one of its classes is first used, where an import would load it at once."""

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

__all__ = ["load_later"]


def load_later(name: str, *classes: str) -> None:
    """Let `from <name> import <class>` return a function that loads the module when it is called.

    Whatever else is asked of the module loads it at once. A module that is there already stays.

    Args:
        name: The module.
        classes: Its classes that are only ever called by those who import them.
    """
    if name not in sys.modules:
        sys.modules[name] = LaterModule(name, classes)


class LaterModule(ModuleType):
    """Stands in for a module until it is needed.

    Args:
        name: The module.
        classes: The classes that are made without the module, as functions.
    """

    def __init__(self, name: str, classes: tuple[str, ...]) -> None:
        super().__init__(name)
        for each in classes:
            setattr(self, each, _maker(name, each))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_load(self.__name__), name)


def _maker(module: str, name: str) -> Callable[..., Any]:
    def make(*args: Any, **kwargs: Any) -> Any:
        return getattr(_load(module), name)(*args, **kwargs)

    return make


def _load(name: str) -> ModuleType:
    if isinstance(sys.modules.get(name), LaterModule):
        del sys.modules[name]
    return importlib.import_module(name)
