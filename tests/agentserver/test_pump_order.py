"""Order: one message at a time in a thread, so many threads at once, and which goes first."""

import asyncio
import uuid
from typing import Any

import pytest

from tests.agentserver.conftest import Start, listener
from tests.agentserver.messages import T, egress, envelope, escaped


def do(name: str, returns: str, seconds: float = 0.0, thread: str = T) -> bytes:
    """Return a message that makes a listener take a while."""
    fields = f"<returns>{escaped(returns)}</returns><seconds>{seconds}</seconds>"
    return envelope(f'<{name}.dopayload xmlns="">{fields}</{name}.dopayload>', thread=thread)


async def test_messages_of_a_thread_are_handled_in_their_order(start: Start) -> None:
    organism = await start(listener("tool"))
    order: list[bytes] = []

    async def call(number: int) -> None:
        seconds = 0.02 if number % 2 else 0.0
        order.extend(await organism.call(do("tool", f"<n{number}/>", seconds), "ext"))

    await asyncio.gather(*map(call, range(10)))
    assert order == [egress("tool", f'<n{n} xmlns=""></n{n}>') for n in range(10)]


@pytest.mark.parametrize(
    ("limits", "most"),
    [({"concurrent_handlers": 3}, 3), ({"concurrent_per_listener": 2}, 2), ({}, 20)],
)
async def test_threads_run_at_once_up_to_the_limits(
    start: Start, limits: dict[str, Any], most: int
) -> None:
    organism = await start(listener("tool", handler="fixture_handlers.tracked"), limits=limits)
    running = __import__("fixture_handlers").RUNNING
    running[:] = [0, 0]
    messages = [do("tool", "<a/>", 0.01, str(uuid.uuid4())) for _ in range(20)]
    answers = await asyncio.gather(*(organism.call(message, "ext") for message in messages))
    assert [len(replies) for replies in answers] == [1] * 20
    assert running == [0, most]


@pytest.mark.parametrize(
    ("scheduling", "expected"),
    [("breadth-first", ["other", "below"]), ("depth-first", ["below", "other"])],
)
async def test_the_schedule_says_which_thread_goes_first(
    start: Start, scheduling: str, expected: list[str]
) -> None:
    organism = await start(
        listener("boss", peers=["below"]),
        listener("below"),
        listener("other"),
        thread_scheduling=scheduling,
        limits={"concurrent_handlers": 1},
    )
    below = f"<below.dopayload><returns>{escaped('<b/>')}</returns></below.dopayload>"
    order: list[str] = []

    async def call(name: str, message: bytes) -> None:
        assert len(await organism.call(message, "ext")) == 1
        order.append(name)

    await asyncio.gather(
        call("below", do("boss", below, 0.01)),
        call("other", do("other", "<o/>", 0.0, str(uuid.uuid4()))),
    )
    assert order == expected


async def test_a_listener_that_waits_holds_up_no_other(start: Start) -> None:
    organism = await start(
        listener("slow"), listener("fast"), limits={"concurrent_per_listener": 1}
    )
    slow = [asyncio.create_task(organism.call(do("slow", "<s/>", 30.0, str(uuid.uuid4())), "ext"))
            for _ in range(2)]  # fmt: skip
    assert await organism.call(do("fast", "<f/>"), "ext") == [egress("fast", '<f xmlns=""></f>')]
    assert [task.done() for task in slow] == [False, False]
    assert organism.status()["handlers_running"] == 1
    for task in slow:
        task.cancel()
    await asyncio.wait(slow)
