"""The child: what a worker does once it is held: import its code, check it, and answer calls."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from agentix.agentserver.errors import RegistrationError
from agentix.agentserver.payload.types import HandlerMetadata
from agentix.agentserver.worker.isolation import CHANNEL
from agentix.agentserver.worker.protocol import (
    DESCRIPTION,
    LENGTH,
    CallOutcome,
    pack,
    pack_answer,
    unpack,
)

__all__ = [
    "LoadedHandler",
    "Order",
    "attempt",
    "describe",
    "load",
    "raised",
    "serve",
    "warm_up",
]


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
class LoadedHandler:
    """The code of a listener, ready to be called."""

    handler: Handler
    """The handler."""
    constructors: tuple[Callable[[dict[str, Any]], object], ...]
    """Makes an instance of each payload class from plain values."""
    own_name: str | None
    """What the handler is told as its own name."""
    output: int
    """How many bytes the handler may return."""


def load(order: Order) -> LoadedHandler:
    """Import the code of a listener, which `describe` has held against the contract before.

    Raises:
        RegistrationError: It cannot be imported; the message names the path.
    """
    from agentix.agentserver.payload.construct import record_builder

    handler = _import_path(order.handler)
    classes = [_import_class(path) for path in order.payload_classes]
    return LoadedHandler(
        handler=handler,
        constructors=tuple(record_builder(cls) for cls in classes),
        own_name=order.own_name,
        output=order.output,
    )


def describe(order: Order) -> list[dict[str, Any]]:
    """Import the code of a listener, and describe its payload classes as plain data.

    Raises:
        RegistrationError: It cannot be imported or does not fit the contract, or a class has a
            field that no schema can express; the message names the path.
    """
    from agentix.agentserver.payload.describe import describe_record
    from agentix.agentserver.payload.types import to_data

    _check_handler(order.handler, _import_path(order.handler))
    return [to_data(describe_record(_import_class(path))) for path in order.payload_classes]


async def attempt(
    entry: LoadedHandler, thread_id: str, payload_class: int, payload: dict[str, Any]
) -> tuple[CallOutcome, bytes]:
    """Call the handler once, and let what it raises through."""
    instance = entry.constructors[payload_class](payload)
    result = await entry.handler(instance, HandlerMetadata(thread_id, entry.own_name))
    if type(result) is not bytes:
        return CallOutcome.WRONG_TYPE, f"a {type(result).__name__}".encode(
            errors="backslashreplace"
        )
    if len(result) > entry.output:
        return CallOutcome.OVERSIZED, f"{len(result)} bytes".encode()
    return CallOutcome.VALUE, result


def raised() -> tuple[CallOutcome, bytes]:
    """Return the outcome of the exception that is being handled."""
    return CallOutcome.RAISED, traceback.format_exc().encode(errors="backslashreplace")


def _import_path(path: str) -> Any:
    module, _, attribute = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except BaseException as error:  # the module's own code runs here, and may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise RegistrationError(f"{path!r} cannot be imported: {reason}") from error


def _import_class(path: str) -> type:
    found = _import_path(path)
    if not isinstance(found, type):
        raise RegistrationError(f"{path!r} is not a class but a {type(found).__name__}")
    return found


def _check_handler(path: str, handler: object) -> None:
    """Check a handler against the contract: `async def`, with a payload and metadata."""
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


CHUNK = 16 * 1024
"""How much is read at a time, in bytes."""

DETAIL = 16 * 1024
"""How much of a failure's text goes to the log, in bytes."""


SAMPLE = Order(
    "agentix.agentserver.worker.sample.handle",
    ("agentix.agentserver.worker.sample.Sample",),
    own_name=None,
    output=1024,
)
"""Code of our own."""

CALL = pack({"number": 1, "text": "one"})
"""What it is called with."""


async def warm_up() -> None:
    """Load and calls a sample, as a worker loads and calls a handler."""
    sys.modules.pop(SAMPLE.handler.rpartition(".")[0], None)
    entry = load(SAMPLE)
    outcome, content = await attempt(entry, "", 0, unpack(CALL))
    pack_answer(0, outcome, content)


class CallReader:
    """Reads the frames of the pump, by blocking; the process ends where the pump has left."""

    def __init__(self) -> None:
        self._left = b""

    def read(self) -> Any:
        """Wait for the next frame, and return its value."""
        data = self._left or _receive()
        while len(data) < LENGTH.size:
            data += _receive()
        end = LENGTH.size + LENGTH.unpack_from(data)[0]
        if len(data) < end:
            data = _complete(data, end)
        self._left = data[end:]
        return unpack(data[LENGTH.size : end])


def _receive() -> bytes:
    data = os.read(CHANNEL, CHUNK)
    if not data:
        os._exit(0)
    return data


def _complete(data: bytes, end: int) -> bytes:
    buffer = bytearray(data)
    while len(buffer) < end:
        buffer += _receive()
    return bytes(buffer)


def _send(answer: bytes) -> None:
    sent = os.write(CHANNEL, answer)
    while sent < len(answer):
        sent += os.write(CHANNEL, answer[sent:])


async def serve() -> NoReturn:
    """Read the order, import the code that it names, and serve calls until the pump leaves."""
    calls = CallReader()
    describing, order = _read_order(calls)
    if describing:
        _describe(calls, order)
    try:
        entry = load(order)
    except RegistrationError as error:
        _refuse(calls, str(error))
    await _answer(calls, entry)


def _read_order(calls: CallReader) -> tuple[bool, Order]:
    describing, handler, classes, own_name, output = calls.read()
    return describing, Order(handler, tuple(classes), own_name, output)


def _describe(calls: CallReader, order: Order) -> NoReturn:
    """Describe one listener after the other, and calls none."""
    while True:
        _send(_description(order))
        _, order = _read_order(calls)


def _description(order: Order) -> bytes:
    try:
        return pack_answer(DESCRIPTION, CallOutcome.VALUE, pack(describe(order)))
    except RegistrationError as error:
        return pack_answer(DESCRIPTION, CallOutcome.REFUSED, _shorten(str(error).encode()))


def _refuse(calls: CallReader, reason: str) -> NoReturn:
    while True:
        call = calls.read()[0]
        _send(pack_answer(call, CallOutcome.RAISED, _shorten(reason.encode())))


async def _answer(calls: CallReader, entry: LoadedHandler) -> NoReturn:
    """Answer calls one after the other.

    The socket is read by blocking inside of the loop's one task: a handler that does not wait
    costs no turn of the loop, and what it leaves running stands still between calls.
    """
    task = asyncio.current_task()
    assert task is not None
    while True:
        call, payload_class, payload, thread_id = calls.read()
        try:
            outcome, content = await attempt(entry, thread_id, payload_class, payload)
        except BaseException:  # whatever it raises, the worker goes on
            outcome, content = raised()
        while task.cancelling():
            task.uncancel()
        if outcome is not CallOutcome.VALUE:
            content = _shorten(content)
        _send(pack_answer(call, outcome, content))


def _shorten(content: bytes) -> bytes:
    return content if len(content) <= DETAIL else content[-DETAIL:]
