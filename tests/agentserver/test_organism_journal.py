"""The journal: what was acknowledged outlives the pump, and nothing is delivered twice."""

import asyncio
import base64
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path

import pytest
import yaml

from agentix.agentserver import CallTimeoutError, Event, Organism, OrganismClosedError
from agentix.agentserver.errors import JournalError
from agentix.agentserver.journal import Journal
from tests.agentserver.conftest import (
    FIXTURE,
    Start,
    document,
    events,
    listener,
    organism_of,
    until,
)
from tests.agentserver.messages import T, add, egress, envelope
from tests.agentserver.test_pump_emissions import ADD, ask, tell

RESULT = egress("calculator.add", '<result xmlns="">42</result>')


def numbers_in(event: Event) -> list[int]:
    """Return the number that an answer is about."""
    text = event.xml
    if event.kind == "huh":
        attempt = re.search(rb"<original-attempt>(.*)</original-attempt>", text)
        assert attempt is not None
        text = base64.b64decode(attempt[1])
    return [int(number) for number in re.findall(rb"<(?:done|number)[^>]*>(\d+)<", text)]


def organism_to_kill(directory: Path, journal: Mapping[str, int]) -> None:
    """Write an organism.yaml that few handlers at a time work for."""
    given = document(import_paths=[str(FIXTURE)], isolation="inprocess", journal=dict(journal))
    given["limits"] = {"concurrent_handlers": 3}
    given["listeners"] = [
        listener("tool", payload_class="fixture_handlers.NumberPayload",
                 handler="fixture_handlers.number")
    ]  # fmt: skip
    (directory / "organism.yaml").write_text(yaml.safe_dump(given))


def killed_pump(directory: Path, first: int, environment: Mapping[str, str]) -> dict[int, str]:
    """Kill a pump after 40 acknowledgements, and return the thread of each number it wrote."""
    command = [sys.executable, str(FIXTURE / "pump_to_kill.py"), str(directory), str(first)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as pump:
        assert pump.stdout is not None
        lines = [pump.stdout.readline() for _ in range(40)]
        pump.kill()
        lines += [line for line in pump.stdout if line.endswith("\n")]
    return {int(number): thread for number, thread, _ in map(str.split, lines)}


@pytest.mark.parametrize("journal", [{}, {"segment_bytes": 1024}])
async def test_what_was_acknowledged_is_answered_once_though_the_pump_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, journal: Mapping[str, int]
) -> None:
    organism_to_kill(tmp_path, journal)
    seen = tmp_path / "seen"
    environment = os.environ | {"SEEN_NUMBERS": str(seen)}
    sent: dict[int, str] = {}
    for first in (0, 1000, 2000):
        sent |= killed_pump(tmp_path, first, environment)
    monkeypatch.setattr("sys.path", [str(FIXTURE), *sys.path])
    handlers = __import__("fixture_handlers")
    monkeypatch.setattr(handlers, "SEEN", str(seen))

    async with Organism.from_yaml(tmp_path / "organism.yaml") as organism:
        async with asyncio.timeout(60):
            await organism.wait_idle()
        answered = [event for event in await events(organism, "message", "huh")
                    if event.to == "ext"]  # fmt: skip
    about = Counter(number for event in answered for number in numbers_in(event))
    assert set(about.values()) == {1}
    assert set(sent) <= set(about)
    assert {sent[n]: [n] for n in sent}.items() <= {
        e.thread: numbers_in(e) for e in answered
    }.items()
    called = Counter(map(int, seen.read_text().split()))
    assert set(called.values()) == {1}
    done = {n for event in answered if event.kind == "message" for n in numbers_in(event)}
    assert done <= set(called)
    reported = [event for event in answered if event.kind == "huh"]
    assert 1 <= len(reported) <= 9
    assert all(b"<error>Handler failed</error>" in event.xml for event in reported)
    assert (len(os.listdir(tmp_path / "journal")) > 4) == bool(journal)


async def test_threads_and_events_go_on_after_a_restart(start: Start, tmp_path: Path) -> None:
    async with organism_of(tmp_path, isolation="inprocess") as organism:
        await organism.call(ask(ADD), "ext")
        before = {thread.path: thread.id for thread in organism.threads()}
        last = organism.status()["last_seq"]
        history = [event async for event in organism.history(T)]
    async with organism_of(tmp_path, isolation="inprocess") as organism:
        after = {thread.path: thread.id for thread in organism.threads()}
        assert after.pop(("system",)) != before.pop(("system",))
        assert after == before
        assert [event async for event in organism.history(T)] == history
        assert await organism.call(envelope(add(7, 35)), "ext") == [RESULT]
        seqs = [event.seq for event in await events(organism, "message", "listener_state")]
        assert seqs == sorted(set(seqs))
        assert max(seqs) > last


async def test_a_pruned_thread_stays_pruned_after_a_restart(tmp_path: Path) -> None:
    async with organism_of(tmp_path, isolation="inprocess") as organism:
        await organism.call(envelope(add(7, 35)), "ext")
        assert organism.close_thread(T, "ext")
    async with organism_of(tmp_path, isolation="inprocess") as organism:
        assert [thread.path for thread in organism.threads()] == [("system",)]
        assert len([event async for event in organism.history(T)]) == 2


async def test_listening_again_after_a_number_loses_nothing(start: Start) -> None:
    organism = await start()
    await organism.call(envelope(add(7, 35)), "ext")
    seen = []
    async with aclosing(organism.listen(thread=T)) as listening:
        async for event in listening:
            seen.append(event)
            if len(seen) == 2:
                break
    await organism.call(envelope(add(7, 35)), "ext")
    async with aclosing(organism.listen(thread=T, after_seq=seen[-1].seq)) as listening:
        async for event in listening:
            seen.append(event)
            if len(seen) == 5:
                break
    assert [(event.kind, event.sender) for event in seen] == [
        ("thread_opened", "ext"),
        ("message", "ext"),
        ("message", "calculator.add"),
        ("message", "ext"),
        ("message", "calculator.add"),
    ]


async def test_a_slow_subscriber_is_told_of_a_gap_and_can_fill_it(start: Start) -> None:
    organism = await start(limits={"subscriber_events": 3})
    listening = organism.listen(thread=T)
    async with aclosing(listening):
        await organism.call(envelope(add(7, 35)), "ext")
        seen = [await anext(listening) for _ in range(3)]
        for _ in range(5):
            assert await organism.call(envelope(add(7, 35)), "ext") == [RESULT]
        seen += [await anext(listening) for _ in range(4)]
    assert [event.kind for event in seen] == ["thread_opened"] + ["message"] * 5 + ["gap"]
    gap = seen[-1]
    missed = []
    async with aclosing(organism.listen(thread=T, after_seq=seen[-2].seq)) as listening:
        async for event in listening:
            missed.append(event)
            if event.seq == gap.seq:
                break
    assert len(missed) == 7
    assert all(event.kind == "message" for event in missed)


async def test_events_are_for_whom_they_concern(start: Start) -> None:
    organism = await start()
    await organism.call(ask(ADD), "ext")
    await organism.call(envelope(add(1, 2), sender="ext2", thread=None), "ext2")
    last = await organism.call(envelope(add(7, 35)), "ext")
    seen = []
    async with aclosing(organism.listen(principal="ext")) as listening:
        async for event in listening:
            seen.append(event)
            if event.xml == last[0]:
                break
    assert {event.thread for event in seen} == {T}
    assert {"ext"} == {name for event in seen for name in (event.sender, event.to)
                       if name.startswith("ext")}  # fmt: skip


def test_a_journal_is_of_one_organism(tmp_path: Path) -> None:
    with Journal(tmp_path), pytest.raises(JournalError, match="another organism uses"):
        Journal(tmp_path).open()
    with Journal(tmp_path):
        pass


def test_a_frame_that_was_not_written_whole_is_cut_off(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.write([[1, "first"]])
        journal.write([[2, "second"]])
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    for cut in (1, 5, len(whole) // 2 - 1):
        file.write_bytes(whole[:-cut])
        with Journal(tmp_path) as journal:
            assert list(journal.frames(1)) == [[[1, "first"]]]
            journal.write([[3, "third"]])
            assert list(journal.frames(1)) == [[[1, "first"]], [[3, "third"]]]
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with Journal(tmp_path) as journal:
        assert list(journal.frames(1)) == [[[1, "first"]]]


def test_a_directory_that_can_not_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="no journal can be kept here"):
        Journal(tmp_path / "file" / "journal").open()


async def test_many_wait_for_one_sync_of_the_disk(tmp_path: Path) -> None:
    with Journal(tmp_path, disk=True) as journal:
        journal.write([[1]])
        await asyncio.gather(*(journal.synced() for _ in range(100)))
        assert list(journal.frames(1)) == [[[1]]]


async def test_a_call_comes_back_with_a_journal_on_disk(start: Start) -> None:
    organism = await start(journal={"sync": "disk"})
    assert await organism.call(envelope(add(7, 35)), "ext") == [RESULT]


async def test_without_a_journal_nothing_is_written(start: Start, tmp_path: Path) -> None:
    organism = await start(journal=None)
    assert await organism.call(envelope(add(7, 35)), "ext") == [RESULT]
    assert os.listdir(tmp_path) == ["schemas"]
    assert len([event async for event in organism.history(T)]) == 2


FULL = """
import asyncio, resource, signal, sys
from pathlib import Path
from agentix.agentserver.journal import Journal, JournalError

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with Journal(Path(sys.argv[1])) as journal:
    journal.write([[1, "x" * 100]])
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
    for _ in range(2):
        try:
            journal.write([[2, "x" * 100]])
        except JournalError as error:
            print(error)
"""


def test_a_journal_that_can_not_be_written_takes_nothing_more(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    first, second = ended.stdout.splitlines()
    assert first == second
    assert "File too large" in first
    with Journal(tmp_path) as journal:
        assert list(journal.frames(1)) == [[[1, "x" * 100]]]


async def test_an_organism_that_does_not_run_takes_nothing(tmp_path: Path) -> None:
    organism = organism_of(tmp_path, isolation="inprocess")
    async with organism:
        pass
    with pytest.raises(OrganismClosedError, match="does not run"):
        await organism.post(envelope(add(7, 35)), "ext")


async def test_a_call_that_the_end_cuts_off_is_told_and_reported(tmp_path: Path) -> None:
    tool = listener("tool")
    slow = tell("tool", "<a/>").replace(b"</returns>", b"</returns><seconds>30</seconds>")
    async with organism_of(tmp_path, [tool], isolation="inprocess") as organism:
        call = asyncio.create_task(organism.call(slow, "ext"))
        async with asyncio.timeout(10), aclosing(organism.listen(thread=T)) as listening:
            assert [event.kind async for event in until(listening, "message")][-1] == "message"
    with pytest.raises(OrganismClosedError, match="while a call was under way"):
        await call
    async with organism_of(tmp_path, [tool], isolation="inprocess") as organism:
        (report,) = await events(organism, "huh")
    assert report.thread == T
    assert b"<error>Handler failed</error>" in report.xml


async def test_a_listener_that_is_gone_after_a_restart_is_reported(tmp_path: Path) -> None:
    tool = listener("tool")
    limits = {"concurrent_handlers": 1}
    slow = tell("tool", "<a/>").replace(b"</returns>", b"</returns><seconds>30</seconds>")
    async with organism_of(tmp_path, [tool], isolation="inprocess", limits=limits) as organism:
        await organism.post(slow, "ext")
        await organism.post(envelope(add(7, 35)), "ext")
        await organism.post(tell("tool", "<b/>"), "ext")
    async with organism_of(tmp_path, isolation="inprocess") as organism:
        await organism.wait_idle()
        answers = [event for event in await events(organism, "message", "huh") if event.to == "ext"]
    assert [event.kind for event in answers] == ["huh", "huh", "message"]
    assert answers[2].xml == RESULT


async def test_a_call_that_takes_too_long_is_told_with_what_came(start: Start) -> None:
    organism = await start(listener("tool"))
    slow = tell("tool", "<a/>").replace(b"</returns>", b"</returns><seconds>30</seconds>")
    with pytest.raises(CallTimeoutError, match=f"thread {T} was still busy") as raised:
        await organism.call(slow, "ext", timeout=0.05)
    assert raised.value.thread == T
    assert raised.value.replies == ()
