"""Faults of handlers: the caller is told in canned words, in time, and everything else goes on."""

import asyncio
import time
import uuid
from typing import Any

import pytest

from agentix.agentserver import Organism
from tests.agentserver.conftest import Start, events, listener
from tests.agentserver.messages import FAILED, GUARD, T, add, egress, envelope, huh

SECONDS = 1.0
"""The deadline of a handler that hangs or ends."""

LOOPING = 4.0
"""That of one that loops while others answer."""


def faulty(**changes: Any) -> dict[str, Any]:
    """Return a listener that fails as it is told."""
    return listener(
        "faulty",
        payload_class="fixture_handlers.FaultPayload",
        handler="fixture_handlers.fault",
        **changes,
    )


def fail(kind: str) -> str:
    """Return a payload that makes it fail."""
    return f'<faulty.faultpayload xmlns=""><kind>{kind}</kind></faulty.faultpayload>'


def answer(error: str, kind: str) -> bytes:
    """Return what its caller is told."""
    return egress("core", huh(error, fail(kind).replace(' xmlns=""', "").encode()))


async def works(organism: Organism) -> None:
    """Assert that its thread is alive, and that others are."""
    assert await organism.call(envelope(fail("well")), "ext") == [
        egress("faulty", '<result xmlns="">well</result>')
    ]
    assert await organism.call(envelope(add(7, 35)), "ext") == [
        egress("calculator.add", '<result xmlns="">42</result>')
    ]


@pytest.mark.parametrize("isolation", ["inprocess", "thread"])
async def test_a12_what_is_not_bytes_is_told_by_the_guard_text(
    start: Start, isolation: str
) -> None:
    organism = await start(faulty(), isolation=isolation)
    assert len(GUARD.encode()) == 76
    for kind in ("nothing", "text", "number", "bytearray", "memoryview", "list"):
        assert await organism.call(envelope(fail(kind)), "ext") == [answer(GUARD, kind)]
    await works(organism)


@pytest.mark.parametrize("isolation", ["inprocess", "thread"])
async def test_a13_what_a_handler_raises_stays_off_the_bus(start: Start, isolation: str) -> None:
    organism = await start(faulty(), isolation=isolation)
    assert await organism.call(envelope(fail("raise")), "ext") == [answer(FAILED, "raise")]
    seen = await events(organism, "message", "huh", "repair", "security", "listener_state")
    assert not [event for event in seen if b"secret <" in event.xml or "password" in event.detail]
    await works(organism)


async def in_time(organism: Organism, kind: str, seconds: float) -> list[bytes]:
    """Return the answer to a fault, which is there a second after the deadline at the latest."""
    async with asyncio.timeout(seconds + 1):
        return await organism.call(envelope(fail(kind)), "ext")


async def test_a14_a_deadline_ends_a_handler(start: Start) -> None:
    organism = await start(faulty(handler_seconds=SECONDS), isolation="thread")
    for kind in ("sleep", "loop"):
        started = time.monotonic()
        assert await in_time(organism, kind, SECONDS) == [answer(FAILED, kind)]
        assert time.monotonic() - started >= SECONDS
    await works(organism)


async def test_a15_a_handler_that_loops_holds_up_no_other(start: Start) -> None:
    organism = await start(faulty(handler_seconds=LOOPING), isolation="thread")
    looping = asyncio.create_task(in_time(organism, "loop", LOOPING))
    thread = str(uuid.uuid4())
    for number in range(100):
        assert await organism.call(envelope(add(number, 1), thread=thread), "ext") == [
            egress("calculator.add", f'<result xmlns="">{number + 1}</result>', thread=thread)
        ]
    assert organism.status()["handlers_running"] == 1
    assert not looping.done()
    assert await looping == [answer(FAILED, "loop")]
    assert organism.status()["handlers_running"] == 0


@pytest.mark.parametrize("kind", ["exit", "segfault", "allocate"])
async def test_a16_a_worker_that_ends_is_told_as_a_failure(start: Start, kind: str) -> None:
    organism = await start(faulty(handler_seconds=SECONDS), isolation="thread")
    assert await in_time(organism, kind, SECONDS) == [answer(FAILED, kind)]
    await works(organism)


async def test_a_failure_below_an_agent_is_the_agents_to_hear(start: Start) -> None:
    organism = await start(
        faulty(),
        listener("boss", agent=True, payload_class="contract_handlers.ResearchPayload",
                 handler="fixture_handlers.research", peers=["faulty"]),
    )  # fmt: skip
    topic = fail("raise").replace(' xmlns=""', "").replace("<", "&lt;")
    payload = f'<boss.researchpayload xmlns=""><topic>{topic}</topic></boss.researchpayload>'
    (reply,) = await organism.call(envelope(payload), "ext")
    assert b'<heard xmlns="" tag="huh"' in reply
    assert f"<error>{FAILED}</error>".encode() in reply
    assert f"<thread>{T}</thread>".encode() in reply
