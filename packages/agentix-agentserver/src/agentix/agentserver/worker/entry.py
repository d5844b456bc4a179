"""Entries: the code of a listener, imported and checked against the contract."""

from __future__ import annotations

import importlib
import inspect
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from agentix.agentserver.errors import RegistrationError
from agentix.agentserver.metadata import HandlerMetadata
from agentix.agentserver.worker.frame import Outcome

__all__ = ["Entry", "Order", "attempt", "describe", "load", "raised"]

Handler = Callable[[Any, HandlerMetadata], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Order:
    """Which code a worker is for, and all that it is told of its listener."""

    handler: str
    """The import path of the handler."""
    payload_classes: tuple[str, ...]
    """The import paths of the classes that it takes."""
    own_name: str | None
    """The name of the listener; only an agent is told."""
    output: int
    """How many bytes the handler may return."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The code of a listener, ready to be called."""

    handler: Handler
    """The handler."""
    constructors: tuple[Callable[[dict[str, Any]], object], ...]
    """Makes an instance of each payload class from plain values."""
    own_name: str | None
    """What the handler is told as its own name."""
    output: int
    """How many bytes the handler may return."""


def load(order: Order) -> Entry:
    """Imports the code of a listener, which `describe` has held against the contract before.

    Raises:
        RegistrationError: It can not be imported; the message names the path.
    """
    from agentix.agentserver.payload.construct import record_builder

    handler = _import_path(order.handler)
    classes = [_import_class(path) for path in order.payload_classes]
    return Entry(
        handler=handler,
        constructors=tuple(record_builder(cls) for cls in classes),
        own_name=order.own_name,
        output=order.output,
    )


def describe(order: Order) -> list[dict[str, Any]]:
    """Imports the code of a listener, and describes its payload classes as plain data.

    Raises:
        RegistrationError: It can not be imported or does not fit the contract, or a class has a
            field that no schema can express; the message names the path.
    """
    from agentix.agentserver.payload.describe import describe_record
    from agentix.agentserver.payload.kinds import to_data

    _check_handler(order.handler, _import_path(order.handler))
    return [to_data(describe_record(_import_class(path))) for path in order.payload_classes]


async def attempt(
    entry: Entry, thread_id: str, payload_class: int, payload: dict[str, Any]
) -> tuple[Outcome, bytes]:
    """Calls the handler once, and lets what it raises through."""
    instance = entry.constructors[payload_class](payload)
    result = await entry.handler(instance, HandlerMetadata(thread_id, entry.own_name))
    if type(result) is not bytes:
        return Outcome.WRONG_TYPE, f"a {type(result).__name__}".encode(errors="backslashreplace")
    if len(result) > entry.output:
        return Outcome.OVERSIZED, f"{len(result)} bytes".encode()
    return Outcome.VALUE, result


def raised() -> tuple[Outcome, bytes]:
    """Gives the outcome of the exception that is being handled."""
    return Outcome.RAISED, traceback.format_exc().encode(errors="backslashreplace")


def _import_path(path: str) -> Any:
    module, _, attribute = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except BaseException as error:  # the module's own code runs here, and may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise RegistrationError(f"{path!r} can not be imported: {reason}") from error


def _import_class(path: str) -> type:
    found = _import_path(path)
    if not isinstance(found, type):
        raise RegistrationError(f"{path!r} is not a class but a {type(found).__name__}")
    return found


def _check_handler(path: str, handler: object) -> None:
    """Checks a handler against the contract: `async def`, with a payload and metadata."""
    if not inspect.iscoroutinefunction(handler):
        raise RegistrationError(f"the handler {path!r} is not declared with `async def`")
    parameters = list(inspect.signature(handler).parameters.values())
    takes_two = len(parameters) == 2 and all(
        parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and parameter.default is parameter.empty
        for parameter in parameters
    )
    if not takes_two:
        raise RegistrationError(
            f"the handler {path!r} takes {inspect.signature(handler)}; "
            "the contract is (payload, metadata)"
        )
