"""The impls of the probe."""

import asyncio
import os
import subprocess
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

from agentix.trace import current_trace

from . import Everything, Hostile
from ._errors import make


def echo(value: Any) -> Any:
    return value


async def echo_async(value: Any) -> Any:
    return value


def everything(value: Everything) -> Everything:
    return value


def parameters(a: int, /, b: int, *rest: int, c: int = 3, **more: int) -> list[Any]:
    return [a, b, rest, c, more]


def defaults(a: int, b: list[int] = [1, 2], *, c: str = "c") -> list[Any]:  # noqa: B006
    return [a, b, c]


def hostile(value: Hostile) -> None:
    pass


def fail(kind: str) -> None:
    raise make(kind)


async def fail_async(kind: str) -> None:
    raise make(kind)


async def fail_stream(kind: str, after: int) -> AsyncIterator[int]:
    for number in range(after):
        yield number
    raise make(kind)


def _value(kind: str) -> Any:
    circle: list[Any] = []
    circle.append(circle)
    values = {"object": object(), "text": "text", "circle": circle, "nan": float("nan")}
    return "\ud800" if kind == "surrogate" else values[kind]


def give(kind: str) -> int:
    return _value(kind)  # type: ignore[no-any-return]


def give_any(kind: str) -> Any:
    return _value(kind)


def give_point() -> Any:
    return {"name": "a mapping", "weights": [1, 2.5]}


async def give_stream(kind: str) -> AsyncIterator[int]:
    yield 1
    yield _value(kind)
    yield 2


def _trace() -> list[str | None]:
    trace = current_trace.get()
    return [] if trace is None else [trace.traceparent, trace.tracestate]


def trace() -> list[str | None]:
    return _trace()


async def trace_async() -> list[str | None]:
    return _trace()


async def trace_stream() -> AsyncIterator[list[str | None]]:
    yield _trace()


def read(path: str) -> str:
    """Blocks its thread until somebody writes to the FIFO."""
    return Path(path).read_text()


def environment(program: str) -> dict[str, str]:
    output = subprocess.run([program, "-0"], capture_output=True, check=True).stdout
    pairs = (item.decode().partition("=") for item in output.split(b"\0") if item)
    return {name: value for name, _, value in pairs}


async def tasks() -> int:
    return len(asyncio.all_tasks())


def _mark(path: str) -> None:
    Path(path).touch()


async def wait_for_ever(started: str, cancelled: str) -> None:
    _mark(started)
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        _mark(cancelled)
        raise


async def count(to: int) -> AsyncGenerator[int, None]:
    for number in range(to):
        yield number


async def lines(path: str) -> AsyncIterator[str]:
    """Yields what is written to a FIFO, line by line, as it comes."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    try:
        while line := await reader.readline():
            yield line.decode().rstrip("\n")
    finally:
        transport.close()


async def endless(counter: str, closed: str, size: int = 1000) -> AsyncIterator[str]:
    """Never waits; writes how often it has yielded, and a marker when it is closed."""
    text = "x" * size
    file = os.open(counter, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        number = 0
        while True:
            number += 1
            os.pwrite(file, b"%d" % number, 0)
            yield text
    finally:
        os.close(file)
        _mark(closed)


async def one_then_wait(closed: str) -> AsyncIterator[int]:
    try:
        yield 1
        await asyncio.Event().wait()
    finally:
        _mark(closed)


async def stubborn(cancelled: str) -> AsyncIterator[int]:
    """Catches its cancellation and goes on, as bad code does."""
    yield 1
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        _mark(cancelled)
    while True:
        yield 2
