"""Handlers that behave, and those that fail in the ordinary ways."""

import asyncio
import ctypes
import os
import signal
import stat
import sys

from agentix.agentserver.payload.types import HandlerMetadata, xmlify


@xmlify
class AddPayload:
    """Two numbers."""

    a: int = 0
    b: int = 0


@xmlify
class Text:
    """What to do, and with what."""

    text: str = ""


async def add(payload: AddPayload, metadata: HandlerMetadata) -> bytes:
    return f"<result>{payload.a + payload.b}</result>".encode()


memory: dict[str, list[int]] = {}


async def remember(payload: AddPayload, metadata: HandlerMetadata) -> bytes:
    """Answer everything that this process was ever given, by thread."""
    memory.setdefault(metadata.thread_id, []).append(payload.a)
    return repr(memory).encode()


async def show_metadata(payload: Text, metadata: HandlerMetadata) -> bytes:
    try:
        metadata.own_name = "core"  # type: ignore[misc]
    except AttributeError as error:
        refused = type(error).__name__
    return repr((sorted(vars(metadata)), metadata.thread_id, metadata.own_name, refused)).encode()


async def measure(payload: Text, metadata: HandlerMetadata) -> bytes:
    return f"{len(payload.text)} {len(payload.text.encode())}".encode()


class Bytes(bytes):
    """A subclass, which is not exactly bytes."""


async def return_wrong(payload: Text, metadata: HandlerMetadata) -> object:
    match payload.text:
        case "None":
            return None
        case "str":
            return "str"
        case "int":
            return 5
        case "bytearray":
            return bytearray(b"<x/>")
        case "memoryview":
            return memoryview(b"<x/>")
        case "list":
            return [b"x"]
        case "subclass":
            return Bytes(b"<x/>")
        case _:
            return b"<right/>"


async def misbehave(payload: Text, metadata: HandlerMetadata) -> bytes:
    match payload.text.split():
        case ["raise"]:
            raise RuntimeError("secret <db> password")
        case ["raise-words", *words]:
            raise ValueError(" ".join(words))
        case ["exit-python"]:
            sys.exit("secret")
        case ["cancel"]:
            raise asyncio.CancelledError
        case ["cancel-task"]:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)
        case ["exit"]:
            os._exit(1)
        case ["segfault"]:
            ctypes.string_at(0)
        case ["allocate"]:
            return bytes(10 * 1024**3)
        case ["sleep"]:
            await asyncio.sleep(3600)
        case ["spin"]:
            while True:
                pass
        case ["return", size]:
            return b"x" * int(size)
        case ["print", *words]:
            print(*words)
            print("to stderr", file=sys.stderr)
        case ["flood", size]:
            os.write(1, b"y" * 99 + b"\n")
            sys.stdout.write("z" * int(size))
    return b"<fine/>"


waits: list[str] = []


async def wait_in_background(payload: Text, metadata: HandlerMetadata) -> bytes:
    """Start a task that outlives the call; says what earlier ones have done."""

    async def work() -> None:
        for turn in range(1000):
            waits.append(f"{payload.text}{turn}")
            await asyncio.sleep(0)

    waits.append(payload.text)
    task = asyncio.create_task(work())
    async with asyncio.timeout(5):
        await asyncio.sleep(0)
    assert not task.done()
    return repr(waits).encode()


async def use_loop(payload: Text, metadata: HandlerMetadata) -> bytes:
    """Do what a handler may do with its loop, the first thing before it has waited."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    child = asyncio.create_task(asyncio.sleep(0, "task"))
    found = [await child, await asyncio.to_thread(str, "thread")]
    woken = loop.create_future()
    loop.call_later(0.01, woken.set_result, "timer")
    found.append(await woken)
    reader, writer = os.pipe()
    readable = asyncio.Event()
    loop.add_reader(reader, readable.set)
    os.write(writer, b"x")
    await readable.wait()
    loop.remove_reader(reader)
    found.append("reader")
    caught = asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, caught.set)
    os.kill(os.getpid(), signal.SIGUSR1)
    await caught.wait()
    found.append("signal")
    try:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(60)
    except TimeoutError:
        found.append("timeout")
    assert asyncio.current_task() is task
    assert asyncio.get_running_loop() is loop
    return repr(found).encode()


async def list_sockets(payload: Text, metadata: HandlerMetadata) -> bytes:
    """Answer which sockets this process has, by their numbers in the kernel."""
    found = []
    for descriptor in range(64):
        try:
            status = os.fstat(descriptor)
        except OSError:
            continue
        if stat.S_ISSOCK(status.st_mode):
            found.append(status.st_ino)
    return repr(found).encode()


def synchronous(payload: AddPayload, metadata: HandlerMetadata) -> bytes:
    return b"<x/>"


async def only_payload(payload: AddPayload) -> bytes:
    return b"<x/>"


async def defaulted(payload: AddPayload, metadata: HandlerMetadata | None = None) -> bytes:
    return b"<x/>"
