"""The child: what a worker does once it is held, until the pump leaves."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, NoReturn

from agentix.agentserver.errors import RegistrationError
from agentix.agentserver.worker import entry as entries
from agentix.agentserver.worker.frame import DESCRIPTION, LENGTH, Outcome, pack, pack_answer, unpack

if TYPE_CHECKING:
    from socket import socket

__all__ = ["serve"]

DETAIL = 16 * 1024
"""How much of a failure's text goes to the log, in bytes."""


class Calls:
    """Reads the frames of the pump from a blocking socket.

    Args:
        channel: The socket. The process ends where the pump has left it.
    """

    def __init__(self, channel: socket) -> None:
        self._channel = channel
        self._left = b""

    def read(self) -> Any:
        """Waits for the next frame, and gives its value."""
        data = self._left or self._receive()
        while len(data) < LENGTH.size:
            data += self._receive()
        end = LENGTH.size + LENGTH.unpack_from(data)[0]
        if len(data) < end:
            data = self._complete(data, end)
        self._left = data[end:]
        return unpack(data[LENGTH.size : end])

    def _complete(self, data: bytes, end: int) -> bytes:
        buffer = bytearray(data)
        while len(buffer) < end:
            buffer += self._receive()
        return bytes(buffer)

    def _receive(self) -> bytes:
        data = self._channel.recv(16384)
        if not data:
            os._exit(0)
        return data


def serve(channel: socket) -> NoReturn:
    """Reads the order, imports the code that it names, and serves calls until the pump leaves."""
    calls = Calls(channel)
    loop = asyncio.new_event_loop()
    describing, handler, classes, own_name, output = calls.read()
    order = entries.Order(handler, tuple(classes), own_name, output)
    if describing:
        channel.sendall(_description(order))
        os._exit(0)
    try:
        entry = entries.load(order)
    except RegistrationError as error:
        _refuse(channel, calls, str(error))
    loop.run_until_complete(_answer(channel, calls, entry))
    os._exit(0)


def _description(order: entries.Order) -> bytes:
    try:
        return pack_answer(DESCRIPTION, Outcome.VALUE, pack(entries.describe(order)))
    except RegistrationError as error:
        return pack_answer(DESCRIPTION, Outcome.REFUSED, _shorten(str(error).encode()))


def _refuse(channel: socket, calls: Calls, reason: str) -> NoReturn:
    while True:
        call = calls.read()[0]
        channel.sendall(pack_answer(call, Outcome.RAISED, _shorten(reason.encode())))


async def _answer(channel: socket, calls: Calls, entry: entries.Entry) -> None:
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
        channel.sendall(pack_answer(call, outcome, content))


def _shorten(content: bytes) -> bytes:
    return content if len(content) <= DETAIL else content[-DETAIL:]
