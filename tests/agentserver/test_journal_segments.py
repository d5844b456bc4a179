"""Segments of the journal: a start reads the last, no crash loses one, and the oldest may go."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import pytest

from agentix.agentserver.errors import JournalError
from agentix.agentserver.journal import Journal
from agentix.agentserver.log import EventBus, EventLog, Recovered, Wanted, history, listen
from agentix.agentserver.state import ThreadRegistry
from tests.agentserver.conftest import FIXTURE, Start, events, organism_of
from tests.agentserver.fixture.journal_to_kill import steps
from tests.agentserver.messages import T, add, egress, envelope

RESULT = egress("calculator.add", '<result xmlns="">42</result>')
SMALL = 1024


def ledger_of(journal: Journal) -> tuple[EventLog, Recovered]:
    """Return a log that has the threads of the time before."""
    log = EventLog(journal, EventBus())
    recovered = log.recover()
    threads = ThreadRegistry()
    threads.restore(recovered.threads)
    log.threads = threads
    return log, recovered


def recovered_from(directory: Path) -> Recovered:
    """Return what a journal says of the time before."""
    with Journal(directory, segment_bytes=1) as journal:
        return ledger_of(journal)[1]


def written(directory: Path) -> Iterator[tuple[Path, int, Recovered]]:
    """Write a small journal, and return where it ends after each step, and what it says then."""
    with Journal(directory, segment_bytes=SMALL // 4) as journal:
        log, _ = ledger_of(journal)
        before = max(directory.iterdir())
        for _ in steps(log):
            last = max(directory.iterdir())
            copy = directory.with_name("copy")
            shutil.copytree(directory, copy)
            # A segment begins when what comes before it is whole.
            yield last, last.stat().st_size if last == before else 0, recovered_from(copy)
            shutil.rmtree(copy)
            before = last


def messages(log: EventLog, count: int) -> None:
    """Write messages that nobody has to handle, one a commit."""
    for number in range(count):
        log.event("message", T, "ext", "", b"%03d" % number * 50)
        log.commit()


def seqs(given: Iterator[Any]) -> list[tuple[str, int]]:
    return [(event.kind, event.seq) for event in given]


def numbers(directory: Path) -> list[int]:
    """Return the numbers of segments."""
    return sorted(int(file.stem) for file in directory.iterdir())


def open_files() -> dict[int, int]:
    """Return the bytes of each file that is open, by the number that the system has for it."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the listing itself
            status = os.stat(int(name))
            found[status.st_ino] = status.st_size
    return found


def test_a_start_reads_the_last_segment_and_no_other(tmp_path: Path) -> None:
    states = [state for _, _, state in written(tmp_path / "journal")]
    files = sorted((tmp_path / "journal").iterdir())
    assert len(files) >= 5
    for file in files[:-1]:
        file.write_bytes(b"x" * file.stat().st_size)
    last = recovered_from(tmp_path / "journal")
    assert last == states[-1]
    assert (len(last.threads), len(last.tokens), len(last.pending)) == (12, 2, 6)
    assert {each.started for each in last.pending.values()} == {True, False}


def test_a_journal_cut_off_at_any_byte_says_what_was_written_whole(tmp_path: Path) -> None:
    directory = tmp_path / "journal"
    ends = list(written(directory))
    files = sorted(directory.iterdir())
    for index, file in enumerate(files):
        for size in range(file.stat().st_size):
            cut = tmp_path / "cut"
            cut.mkdir()
            for each in files[max(0, index - 1) : index + 1]:
                os.link(each, cut / each.name)
            (cut / file.name).unlink()
            (cut / file.name).write_bytes(file.read_bytes()[:size])
            whole = [state for last, end, state in ends
                     if last < file or (last == file and end <= size)]  # fmt: skip
            assert recovered_from(cut) == (whole[-1] if whole else Recovered())
            shutil.rmtree(cut)


def test_a_kill_at_any_call_of_the_system_loses_nothing(tmp_path: Path) -> None:
    states = [Recovered(), *(state for _, _, state in written(tmp_path / "journal"))]
    script = FIXTURE / "journal_to_kill.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True, timeout=120)
    killed = sorted(tmp_path.glob("killed-*"))
    assert len(killed) > 3 * len(states)
    for each in killed:
        acknowledged = len((each / "acknowledged").read_bytes())
        state = recovered_from(each / "journal")
        assert state in states[acknowledged : acknowledged + 2]


def test_what_was_cut_off_as_it_began_is_written_again(tmp_path: Path) -> None:
    with Journal(tmp_path, segment_bytes=SMALL) as journal:
        messages(ledger_of(journal)[0], 20)
    last = max(tmp_path.iterdir())
    last.write_bytes(last.read_bytes()[:5])
    with Journal(tmp_path, segment_bytes=SMALL) as journal:
        log, before = ledger_of(journal)
        assert not last.exists()
        messages(log, 20)
        given = seqs(log.events())
    assert given == [("message", seq) for seq in range(1, before.seq + 21)]


def test_a_journal_of_which_nothing_is_whole_is_refused(tmp_path: Path) -> None:
    with Journal(tmp_path, segment_bytes=SMALL, keep_bytes=0) as journal:
        messages(ledger_of(journal)[0], 40)
    for file in tmp_path.iterdir():
        file.write_bytes(file.read_bytes()[:5])
    for _ in range(2):
        with pytest.raises(JournalError, match="no segment of this journal is whole"):
            Journal(tmp_path).open()


def test_a_large_snapshot_is_not_written_again_for_little(tmp_path: Path) -> None:
    with Journal(tmp_path, segment_bytes=SMALL) as journal:
        log, _ = ledger_of(journal)
        assert isinstance(log.threads, ThreadRegistry)
        for number in range(200):
            log.opened(log.threads.open_root(f"{number:036}", "ext"))
        messages(log, 1)
        last = max(tmp_path.iterdir()).stat().st_size
        messages(log, last // 2 // 250)
        assert len(list(tmp_path.iterdir())) == 2
        messages(log, last // 2 // 150)
        assert len(list(tmp_path.iterdir())) == 3


def test_a_segment_that_can_not_begin_loses_nothing_that_was_taken(tmp_path: Path) -> None:
    with Journal(tmp_path, segment_bytes=SMALL) as journal:
        log, _ = ledger_of(journal)
        messages(log, 1)
        for seq in range(2, 20):
            (tmp_path / f"{seq:020}.log").mkdir()
        with pytest.raises(JournalError, match="File exists"):
            messages(log, 20)
        taken = log.seq - 1
        assert seqs(log.events()) == [("message", seq) for seq in range(1, taken + 1)]
    for seq in range(2, 20):
        (tmp_path / f"{seq:020}.log").rmdir()
    assert recovered_from(tmp_path).seq == taken


def test_the_oldest_segments_go_and_a_gap_stands_for_them(tmp_path: Path) -> None:
    with Journal(tmp_path, segment_bytes=SMALL, keep_bytes=3 * SMALL) as journal:
        log, _ = ledger_of(journal)
        messages(log, 100)
        kept = numbers(tmp_path)
        sizes = [file.stat().st_size for file in sorted(tmp_path.iterdir())]
        assert 2 * SMALL < sum(sizes[:-1]) <= 3 * SMALL
        after = [("message", seq) for seq in range(kept[0], 101)]
        assert seqs(log.events()) == [("gap", kept[0] - 1), *after]
        assert seqs(log.events(T, kept[0] - 1)) == after
        assert seqs(log.events(T, kept[0] - 2)) == [("gap", kept[0] - 1), *after]
        assert seqs(log.events(T, kept[2] - 1)) == after[kept[2] - kept[0] :]


def test_the_last_full_segment_is_kept_always(tmp_path: Path) -> None:
    with Journal(tmp_path, segment_bytes=SMALL, keep_bytes=0) as journal:
        messages(ledger_of(journal)[0], 100)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_gap_stands_for_what_goes_while_it_is_read(tmp_path: Path) -> None:
    with Journal(tmp_path, segment_bytes=SMALL, keep_bytes=3 * SMALL) as journal:
        log, _ = ledger_of(journal)
        messages(log, 12)
        _, second, _ = numbers(tmp_path)
        reading = log.events()
        given = [next(reading)]
        messages(log, 100)
        given += reading
    read = [("message", seq) for seq in range(1, second)]
    assert seqs(iter(given)) == [*read, ("gap", 12)]


async def test_listeners_and_histories_are_told_of_the_gap(tmp_path: Path) -> None:
    with Journal(tmp_path, segment_bytes=SMALL, keep_bytes=0) as journal:
        log, _ = ledger_of(journal)
        messages(log, 100)
        first = numbers(tmp_path)[0]
        wanted = Wanted(thread=T, principal="ext")
        expected = [("gap", first - 1), *(("message", seq) for seq in range(first, 101))]
        async with aclosing(history(log, wanted)) as past:
            assert [(event.kind, event.seq) async for event in past] == expected
        listening = listen(log, EventBus(), 10, wanted, 0)
        async with aclosing(listening), asyncio.timeout(10):
            given = [await anext(listening) for _ in expected]
        assert seqs(iter(given)) == expected


def test_files_without_names_are_bounded() -> None:
    before = open_files()
    with Journal(None, segment_bytes=1 << 19, keep_bytes=0) as journal:
        log, _ = ledger_of(journal)
        for _ in range(100):
            log.event("message", T, "ext", "", b"x" * (1 << 16))
            log.commit()
        taken = open_files().items() - before.items()
        assert sum(size for _, size in taken) < 1 << 21
        given = seqs(log.events())
        assert given[0][0] == "gap"
        assert given[1:] == [("message", seq) for seq in range(given[0][1] + 1, 101)]
    assert open_files() == before


async def test_with_a_disk_the_oldest_go_once_it_has_the_last(tmp_path: Path) -> None:
    with Journal(tmp_path, disk=True, segment_bytes=SMALL, keep_bytes=0) as journal:
        log, _ = ledger_of(journal)
        messages(log, 50)
        segments = numbers(tmp_path)
        assert segments[0] == 1
        await asyncio.gather(*(log.synced() for _ in range(10)))
        assert numbers(tmp_path) == segments[-2:]


async def test_nothing_is_taken_that_the_disk_does_not_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    with Journal(tmp_path, disk=True) as journal:
        log, _ = ledger_of(journal)
        messages(log, 1)
        monkeypatch.setattr("os.fdatasync", fail)
        with pytest.raises(JournalError, match="Input/output error"):
            await log.synced()
        monkeypatch.undo()
        with pytest.raises(JournalError, match="Input/output error"):
            messages(log, 1)


def test_tokens_of_a_thread_that_was_pruned_are_forgotten(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        log, _ = ledger_of(journal)
        thread = ThreadRegistry().open_root(T, "ext")
        log.opened(thread)
        log.pruned([thread])
        log.tokens_recorded(thread, 7)
        log.commit()
    assert recovered_from(tmp_path) == Recovered(seq=3)


def test_what_is_no_text_is_written_as_it_is(tmp_path: Path) -> None:
    with Journal(tmp_path, segment_bytes=SMALL) as journal:
        log, _ = ledger_of(journal)
        assert isinstance(log.threads, ThreadRegistry)
        log.opened(log.threads.open_root(T, "\udc80"))
        messages(log, 20)
        assert next(log.events()).sender == "\udc80"
    assert recovered_from(tmp_path).threads == {T: ("", "\udc80")}


def test_what_is_discarded_is_not_written(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        log, _ = ledger_of(journal)
        log.event("message", T, "ext", "", b"<a/>")
        assert log.waiting
        log.discard()
        assert not log.waiting
        messages(log, 1)
        assert seqs(log.events()) == [("message", 2)]


async def test_an_organism_goes_on_from_its_last_segment(start: Start, tmp_path: Path) -> None:
    small = {"segment_bytes": SMALL, "keep_bytes": 0}
    async with organism_of(tmp_path, isolation="inprocess", journal=small) as organism:
        for _ in range(20):
            assert await organism.call(envelope(add(7, 35)), "ext") == [RESULT]
        threads = {thread.path: thread.id for thread in organism.threads() if len(thread.path) > 1}
        last = organism.status()["last_seq"]
    assert len(list((tmp_path / "journal").iterdir())) == 2
    organism = await start(journal=small)
    assert threads.items() <= {thread.path: thread.id for thread in organism.threads()}.items()
    assert await organism.call(envelope(add(7, 35)), "ext") == [RESULT]
    gap, *told = await events(organism, "gap", "message", "listener_state", "thread_opened")
    assert gap.kind == "gap"
    assert gap.seq < min(event.seq for event in told) <= last < max(event.seq for event in told)
