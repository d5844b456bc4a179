"""Turns: what happened is written before it has an effect, and together where much happens."""

import asyncio
import errno
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from agentix.agentserver.errors import JournalError
from agentix.agentserver.journal import Frame, Journal
from agentix.agentserver.registry import Failure, MessageState
from agentix.agentserver.worker.handlers import HandlerSource
from agentix.agentserver.worker.inprocess import InProcessHandlers
from agentix.agentserver.xml.envelope import CannedText
from tests.agentserver.conftest import Start, events, listener, organism_of
from tests.agentserver.messages import FAILED, INVALID, T, add, egress, envelope, huh

RESULT = egress("calculator.add", '<result xmlns="">42</result>')
COUNT = "fixture_handlers.CountPayload"


def tell(name: str, returns: str, seconds: float = 0, thread: str | None = T) -> bytes:
    """Return a message that tells a listener what to return, and when."""
    escaped = returns.replace("<", "&lt;")
    told = f"<returns>{escaped}</returns><seconds>{seconds}</seconds>"
    return envelope(f'<{name}.dopayload xmlns="">{told}</{name}.dopayload>', thread=thread)


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> list[Frame]:
    """The frames that are written from now on."""
    written: list[Frame] = []
    write = Journal.write

    def noted(journal: Journal, frame: Frame) -> bool:
        written.append([*frame])
        return write(journal, frame)

    monkeypatch.setattr(Journal, "write", noted)
    return written


async def test_messages_of_one_turn_are_written_together(start: Start, frames: list[Frame]) -> None:
    organism = await start()
    frames.clear()
    calls = [organism.call(envelope(add(7, 35), thread=None), "ext") for _ in range(100)]
    replies = await asyncio.gather(*calls)
    assert [len(each) for each in replies] == [1] * 100
    assert len(frames) < 20


async def test_a_message_that_comes_alone_is_written_when_it_is_posted(
    start: Start, frames: list[Frame]
) -> None:
    organism = await start()
    await organism.wait_idle()
    await asyncio.sleep(0)
    frames.clear()
    posting = asyncio.ensure_future(organism.post(envelope(add(7, 35)), "ext"))
    await asyncio.sleep(0)
    assert len(frames) == 1
    assert (await posting).thread == T


async def test_a_handler_sees_a_message_only_when_it_is_written(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = listener("counter", payload_class=COUNT, handler="fixture_handlers.count")
    organism = await start(counter)

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    monkeypatch.setattr(os, "writev", full)
    remembered: dict[str, int] = sys.modules["fixture_handlers"].MEMORY
    before = dict(remembered)
    count = '<counter.countpayload xmlns=""><until>1</until></counter.countpayload>'
    payloads = [count, count, "<refused/>", count]
    calls = [organism.call(envelope(payload, thread=None), "ext") for payload in payloads]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [JournalError] * 4
    with pytest.raises(JournalError, match="No space left on device"):
        await organism.post(envelope(add(7, 35)), "ext")
    assert remembered == before


async def test_a_handler_that_can_not_be_called_holds_up_nobody(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    organism = await start()
    call = InProcessHandlers.call

    async def broken(
        self: InProcessHandlers, source: HandlerSource, thread_id: str, *values: Any
    ) -> bytes:
        if thread_id == broken_thread:
            raise OverflowError("no room")
        return await call(self, source, thread_id, *values)

    await organism.call(envelope(add(7, 35)), "ext")
    (broken_thread,) = (each.id for each in organism.threads() if each.path[1:])
    monkeypatch.setattr(InProcessHandlers, "call", broken)
    messages = [envelope(add(7, 35), thread=thread) for thread in (None, T, None)]
    replies = await asyncio.gather(*[organism.call(message, "ext") for message in messages])
    assert [b">42</result>" in reply for (reply,) in replies] == [True, False, True]
    assert FAILED.encode() in replies[1][0]


async def test_a_step_may_wait_and_sees_what_handlers_emit(start: Start) -> None:
    organism = await start()
    seen: list[tuple[str, bytes]] = []

    async def slow(state: MessageState) -> None:
        async with asyncio.timeout(10):
            await asyncio.sleep(0)
        seen.append((state.from_id, state.raw_bytes))

    organism.pump.ingress.insert(0, slow)
    message = envelope(add(7, 35))
    assert await organism.call(message, "ext") == [RESULT]
    assert seen == [("ext", message), ("calculator.add", RESULT)]


async def test_a_step_that_waits_is_followed_by_those_that_look_at_strangers(start: Start) -> None:
    organism = await start()

    async def slow(state: MessageState) -> None:
        await asyncio.sleep(0)

    organism.pump.ingress.insert(1, slow)
    forged = envelope(add(7, 35), sender="core")
    (reply,) = await organism.call(forged, "ext")
    assert b"Malformed message" in reply


async def test_a_step_can_refuse_what_a_handler_emits(start: Start) -> None:
    organism = await start()

    def silence(state: MessageState) -> None:
        if b"42" in state.raw_bytes:
            state.error = Failure(CannedText.INVALID_PAYLOAD, "it is a secret")

    organism.pump.ingress.insert(0, silence)
    attempt = b"<result>42</result>"
    told = [egress("core", huh(INVALID, attempt))]
    assert await organism.call(envelope(add(7, 35)), "ext") == told


async def test_steps_of_a_listener_that_wait_keep_the_order_of_payloads(start: Start) -> None:
    organism = await start(listener("teller", peers=["calculator.add"]))
    teller = organism._registry.get("teller")
    adder = organism._registry.get("calculator.add")
    assert teller is not None
    assert adder is not None

    async def slow(state: MessageState) -> None:
        await asyncio.sleep(0.01)

    adder.pipeline.insert(0, slow)
    payloads = f"<first/>{add(1, 2)}<last/>"
    replies = await organism.call(tell("teller", payloads), "ext")
    tags = [reply.split(b"</meta><")[1].split()[0] for reply in replies]
    assert tags == [b"first", b"last", b"result"]


async def test_a_handler_in_the_pumps_process_that_waits_holds_up_nobody(start: Start) -> None:
    organism = await start(listener("waiter"))
    slow = asyncio.ensure_future(organism.call(tell("waiter", "<late/>", 60), "ext", timeout=120))
    for _ in range(3):
        assert len(await organism.call(envelope(add(7, 35), thread=None), "ext")) == 1
    assert organism.status()["handlers_running"] == 1
    slow.cancel()


async def test_a_handler_that_cancels_its_task_ends_no_other(start: Start) -> None:
    organism = await start(listener("ender", handler="fixture_handlers.cancel"))
    messages = [tell("ender", "<ended/>", thread=None)] * 5
    messages += [envelope(add(7, 35), thread=None)] * 5
    replies = await asyncio.gather(*[organism.call(message, "ext") for message in messages])
    bodies = [reply.split(b"</meta>")[1] for (reply,) in replies]
    ended, added = b'<ended xmlns=""></ended></message>', b'<result xmlns="">42</result></message>'
    assert bodies == [ended] * 5 + [added] * 5


async def test_what_is_posted_as_the_organism_ends_is_acknowledged(tmp_path: Path) -> None:
    changes = {"isolation": "inprocess", "journal": {"path": "journal", "sync": "disk"}}
    async with organism_of(tmp_path, [listener("sleeper")], **changes) as organism:
        slow = tell("sleeper", "<late/>", 60, thread=None)
        posts = [asyncio.ensure_future(organism.post(slow, "ext")) for _ in range(5)]
        await asyncio.sleep(0)
    threads = {(await post).thread for post in posts}
    assert len(threads) == 5
    async with organism_of(tmp_path, [listener("sleeper")], **changes) as organism:
        reported = await events(organism, "huh")
    assert {event.thread for event in reported} == threads
    assert all(FAILED.encode() in event.xml for event in reported)
