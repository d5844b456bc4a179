"""Faults beside the way of a message: what happens to all others while one goes wrong."""

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest
from lxml import etree

from agentix.agentserver import Organism, OrganismClosedError
from agentix.agentserver.commits import GroupCommit
from agentix.agentserver.errors import JournalError
from agentix.agentserver.registry import InProcessListener, MessageState, Request
from tests.agentserver.conftest import Start, events, listener, organism_of
from tests.agentserver.messages import FAILED, add, envelope
from tests.agentserver.test_pump_broadcast import SEARCH, member
from tests.agentserver.test_pump_turns import tell


def full(descriptor: int, data: bytes) -> int:
    """Stand for `os.write` on a disk without room."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


async def broken(start: Start, monkeypatch: pytest.MonkeyPatch, *names: str) -> Organism:
    """Return an organism with a journal in a directory, whose disk is full once all are started."""
    organism = await start(*map(listener, names), journal={"path": "journal", "sync": "process"})
    monkeypatch.setattr(os, "write", full)
    return organism


async def test_a_broken_journal_lets_the_loop_rest(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    organism = await broken(start, monkeypatch)
    for _ in range(3):
        with pytest.raises(JournalError):
            await organism.post(envelope(add(7, 35), thread=None), "ext")
    turns: list[None] = []
    turn = GroupCommit._turn

    def counted(self: GroupCommit) -> None:
        turns.append(None)
        turn(self)

    monkeypatch.setattr(GroupCommit, "_turn", counted)
    for _ in range(20):
        await asyncio.sleep(0)
    with pytest.raises(JournalError):
        await organism.post(envelope(add(7, 35), thread=None), "ext")
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(turns) <= 3
    assert not organism.pump._commits._log.waiting


async def test_all_that_wait_are_told_when_the_journal_breaks(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"concurrent_handlers": 1}
    journal = {"path": "journal", "sync": "process"}
    organism = await start(listener("sleeper"), limits=limits, journal=journal)
    slow = tell("sleeper", "<late/>", 0.05, thread=None)
    calls = [asyncio.ensure_future(organism.call(slow, "ext")) for _ in range(4)]
    await asyncio.sleep(0.01)
    assert organism.status()["handlers_running"] == 1
    monkeypatch.setattr(os, "write", full)
    async with asyncio.timeout(5):
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        await organism.wait_idle()
    assert [type(outcome) for outcome in outcomes] == [JournalError] * 4


async def test_a_disk_that_fails_is_trusted_no_more(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    organism = await start(journal={"path": "journal", "sync": "disk"})
    await organism.call(envelope(add(7, 35)), "ext")

    def failing(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    sync = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", failing)
    with pytest.raises(JournalError):
        await organism.call(envelope(add(7, 35)), "ext")
    monkeypatch.setattr(os, "fdatasync", sync)
    with pytest.raises(JournalError):
        await organism.post(envelope(add(7, 35)), "ext")
    async with asyncio.timeout(5):
        await organism.wait_idle()


async def test_many_wait_until_nothing_is_under_way(start: Start) -> None:
    organism = await start(listener("sleeper"))
    await organism.post(tell("sleeper", "<late/>", 0.05), "ext")
    given_up = asyncio.ensure_future(organism.wait_idle())
    waiting = [asyncio.ensure_future(organism.wait_idle()) for _ in range(3)]
    await asyncio.sleep(0)
    given_up.cancel()
    async with asyncio.timeout(5):
        await asyncio.gather(*waiting)


async def test_nobody_waits_for_an_organism_that_has_ended(tmp_path: Path) -> None:
    async with organism_of(tmp_path, [listener("sleeper")], isolation="inprocess") as organism:
        await organism.post(tell("sleeper", "<late/>", 60), "ext")
        waiting = asyncio.ensure_future(organism.wait_idle())
        await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await waiting


async def test_a_call_in_a_step_that_waits_ends_with_the_organism(tmp_path: Path) -> None:
    opened = asyncio.Event()

    async def gate(state: MessageState) -> None:
        await opened.wait()

    async with organism_of(tmp_path, isolation="inprocess") as organism:
        organism.pump.ingress.insert(0, gate)
        message = envelope(add(7, 35), thread=None)
        takes = [organism.call(message, "ext"), organism.post(message, "ext")]
        waiting = [asyncio.ensure_future(take) for take in takes]
        await asyncio.sleep(0)
    opened.set()
    async with asyncio.timeout(5):
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [OrganismClosedError] * 2


async def test_nothing_begins_while_the_organism_ends(tmp_path: Path) -> None:
    begun, ended = [], []

    async def wait(request: Request) -> bytes:
        begun.append(request.thread_id)
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(request.thread_id)
        return b"<late/>"

    async with organism_of(tmp_path, isolation="inprocess") as organism:
        organism.add_in_process(InProcessListener("waiter", "Waits.", wait))
        message = envelope('<waiter.x xmlns=""/>', thread=None)
        await organism.post(message, "ext")
        await asyncio.sleep(0)
        posts = [asyncio.ensure_future(organism.post(message, "ext")) for _ in range(3)]
        await asyncio.sleep(0)
    await asyncio.gather(*posts)
    assert len(begun) >= 1
    assert ended == begun


async def test_a_trusted_listener_that_is_cancelled_has_failed(start: Start) -> None:
    organism = await start()

    async def give_up(request: Request) -> bytes:
        raise asyncio.CancelledError

    organism.add_in_process(InProcessListener("quitter", "Gives up.", give_up))
    for _ in range(2):
        replies = await organism.call(envelope('<quitter.x xmlns=""/>'), "ext", timeout=5)
        assert [FAILED.encode() in reply for reply in replies] == [True]


@pytest.mark.parametrize("isolation", ["inprocess", "thread"])
async def test_a_failure_that_can_not_be_told_harms_no_other(start: Start, isolation: str) -> None:
    organism = await start(listener("teller"), isolation=isolation)
    teller = organism._registry.get("teller")
    assert teller is not None

    def spoil(state: MessageState) -> None:
        state.payload_tree = etree.fromstring('<a:a xmlns:a="relative"/>')

    teller.pipeline.insert(len(teller.pipeline.names), spoil)
    assert await organism.call(tell("teller", "", thread=None), "ext", timeout=5) == []
    assert len(await organism.call(envelope(add(7, 35), thread=None), "ext", timeout=5)) == 1
    assert organism.status()["handlers_running"] == 0


@pytest.mark.parametrize("isolation", ["inprocess", "thread", "listener"])
async def test_a_payload_that_can_not_be_sent_fails_once(start: Start, isolation: str) -> None:
    limits = {"handler_seconds": 1}
    organism = await start(listener("teller"), isolation=isolation, limits=limits)
    teller = organism._registry.get("teller")
    assert teller is not None
    spoiled = [True, True, False]

    def spoil(state: MessageState) -> None:
        if spoiled.pop(0):
            state.payload = {"returns": object()}

    teller.pipeline.insert(len(teller.pipeline.names), spoil)
    calls = [organism.call(tell("teller", "<told/>"), "ext", timeout=10) for _ in range(3)]
    async with asyncio.timeout(0.9):
        replies = await asyncio.gather(*calls)
    assert [FAILED.encode() in reply for (reply,) in replies] == [True, True, False]
    await asyncio.sleep(1.3)  # past every deadline
    assert organism.status()["handlers_running"] == 0
    assert len(await organism.call(envelope(add(7, 35), thread=None), "ext")) == 1


async def test_a_name_without_a_written_form_is_written_all_the_same(tmp_path: Path) -> None:
    journal = {"path": "journal", "sync": "process"}
    changes: dict[str, Any] = {"isolation": "inprocess", "journal": journal}
    async with organism_of(tmp_path, **changes) as organism:
        message = envelope(add(7, 35), thread=None)
        calls = [organism.call(message, name) for name in ("ext", "\ud800")]
        assert [len(replies) for replies in await asyncio.gather(*calls)] == [1, 0]
    async with organism_of(tmp_path, **changes) as organism:
        senders = [event.sender for event in await events(organism, "security")]
    assert senders == ["\ud800"]


async def test_a_member_s_steps_change_nothing_for_another(start: Start) -> None:
    organism = await start(member("google"), member("bing"), listener("boss", peers=["search"]))
    google = organism._registry.get("search.google")
    assert google is not None

    def change(state: MessageState) -> None:
        assert state.payload_tree is not None
        state.payload_tree[0].text = "changed"

    google.pipeline.insert(0, change)
    replies = await organism.call(tell("boss", SEARCH), "ext")
    assert [b"changed" in reply for reply in replies] == [False, True]
