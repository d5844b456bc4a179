"""The child: what a worker does once it is held, until the pump leaves."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any, NoReturn

from agentix.agentserver.errors import RegistrationError
from agentix.agentserver.worker import entry as entries
from agentix.agentserver.worker.frame import DESCRIPTION, LENGTH, Outcome, pack, pack_answer, unpack
from agentix.agentserver.worker.hardening import CHANNEL

__all__ = ["rehearse", "serve"]

CHUNK = 16 * 1024
"""How much is read at a time, in bytes."""

DETAIL = 16 * 1024
"""How much of a failure's text goes to the log, in bytes."""


SAMPLE = entries.Order(
    "agentix.agentserver.worker.sample.handle",
    ("agentix.agentserver.worker.sample.Sample",),
    own_name=None,
    output=1024,
)
"""Code of our own."""

CALL = pack({"number": 1, "text": "one"})
"""What it is called with."""


async def rehearse() -> None:
    """Loads and calls a sample, as a worker loads and calls a handler."""
    sys.modules.pop(SAMPLE.handler.rpartition(".")[0], None)
    entry = entries.load(SAMPLE)
    outcome, content = await entries.attempt(entry, "", 0, unpack(CALL))
    pack_answer(0, outcome, content)


class Calls:
    """Reads the frames of the pump, by blocking; the process ends where the pump has left."""

    def __init__(self) -> None:
        self._left = b""

    def read(self) -> Any:
        """Waits for the next frame, and gives its value."""
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
    """Reads the order, imports the code that it names, and serves calls until the pump leaves."""
    calls = Calls()
    describing, order = _read_order(calls)
    if describing:
        _describe(calls, order)
    try:
        entry = entries.load(order)
    except RegistrationError as error:
        _refuse(calls, str(error))
    await _answer(calls, entry)


def _read_order(calls: Calls) -> tuple[bool, entries.Order]:
    describing, handler, classes, own_name, output = calls.read()
    return describing, entries.Order(handler, tuple(classes), own_name, output)


def _describe(calls: Calls, order: entries.Order) -> NoReturn:
    """Describes one listener after the other, and calls none."""
    while True:
        _send(_description(order))
        _, order = _read_order(calls)


def _description(order: entries.Order) -> bytes:
    try:
        return pack_answer(DESCRIPTION, Outcome.VALUE, pack(entries.describe(order)))
    except RegistrationError as error:
        return pack_answer(DESCRIPTION, Outcome.REFUSED, _shorten(str(error).encode()))


def _refuse(calls: Calls, reason: str) -> NoReturn:
    while True:
        call = calls.read()[0]
        _send(pack_answer(call, Outcome.RAISED, _shorten(reason.encode())))


async def _answer(calls: Calls, entry: entries.Entry) -> NoReturn:
    """Answers calls one after the other.

    The socket is read by blocking inside of the loop's one task: a handler that does not wait
    costs no turn of the loop, and what it leaves running stands still between calls.
    """
    task = asyncio.current_task()
    assert task is not None
    while True:
        call, payload_class, payload, thread_id = calls.read()
        try:
            outcome, content = await entries.attempt(entry, thread_id, payload_class, payload)
        except BaseException:  # whatever it raises, the worker goes on
            outcome, content = entries.raised()
        while task.cancelling():
            task.uncancel()
        if outcome is not Outcome.VALUE:
            content = _shorten(content)
        _send(pack_answer(call, outcome, content))


def _shorten(content: bytes) -> bytes:
    return content if len(content) <= DETAIL else content[-DETAIL:]
