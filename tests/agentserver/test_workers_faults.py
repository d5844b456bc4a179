"""Faults: handlers that hang, die or take too much, and deaths of the fork server and the pump."""

import asyncio
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentix.agentserver.errors import FailureKind, RegistrationError, WorkersError
from agentix.agentserver.worker.handlers import HandlerSource, Isolation
from agentix.agentserver.worker.inprocess import InProcessHandlers
from agentix.agentserver.worker.pool import WorkerPool
from tests.agentserver.escape import attack
from tests.agentserver.processes import descendants, is_alive, until
from tests.agentserver.workers import GUESTS, call, failure, settings, source, sum_of, tell

MISBEHAVE = source("misbehave")


@pytest.fixture(scope="module")
async def workers() -> AsyncIterator[WorkerPool]:
    async with WorkerPool(settings(spares=0)) as workers:
        yield workers


def live(workers: WorkerPool) -> list[int]:
    """Return the processes of workers: those below the fork server, which is below its guard."""
    return descendants(workers.guard)[1:]


async def test_a14_a_handler_past_its_deadline_fails_and_its_worker_is_gone(
    workers: WorkerPool,
) -> None:
    assert await tell(workers, MISBEHAVE, "nothing") == b"<fine/>"
    before = set(live(workers))
    started = time.monotonic()
    kind, detail = await failure(tell(workers, MISBEHAVE, "sleep", deadline=0.3))
    assert 0.3 <= time.monotonic() - started < 1.3
    assert kind is FailureKind.TIMED_OUT
    assert detail == "it did not answer in time"
    assert not before.intersection(live(workers))
    assert await tell(workers, MISBEHAVE, "nothing") == b"<fine/>"


async def test_a15_others_answer_while_a_handler_spins(workers: WorkerPool) -> None:
    await sum_of(workers, 1, 1, "warm")
    spinning = asyncio.create_task(failure(tell(workers, MISBEHAVE, "spin", "spin", deadline=1)))
    started, answers = time.monotonic(), 0
    while not spinning.done():
        assert (
            await sum_of(workers, answers, 1, "warm") == f"<result>{answers + 1}</result>".encode()
        )
        answers += 1
    assert answers >= 10
    assert (await spinning)[0] is FailureKind.TIMED_OUT
    assert time.monotonic() - started < 2


@pytest.mark.parametrize(
    ("how", "kind", "detail"),
    [
        ("exit", FailureKind.DIED, "it closed its socket; it ended with exit code 1"),
        ("segfault", FailureKind.DIED, "it closed its socket; signal 11 ended it"),
        ("allocate", FailureKind.RAISED, "MemoryError"),
    ],
)
async def test_a16_a_handler_that_ends_its_process_is_a_failure(
    workers: WorkerPool, how: str, kind: FailureKind, detail: str
) -> None:
    found, text = await failure(tell(workers, MISBEHAVE, how, how))
    assert found is kind
    assert detail in text
    assert await tell(workers, MISBEHAVE, "nothing", how) == b"<fine/>"


async def test_what_a_handler_leaves_running_ends_with_its_worker(workers: WorkerPool) -> None:
    before = set(live(workers))
    assert await attack(workers, "leave_child", thread="leaver") in ("left", "refused: EPERM")
    left = set(live(workers)) - before
    assert len(left) == 2 or "process namespace" in str(workers.report().missing)
    await workers.forget("evil", "leaver")
    await until(lambda: not any(is_alive(pid) for pid in left))


async def test_a_fork_bomb_ends_at_its_deadline(workers: WorkerPool) -> None:
    before = set(live(workers))
    assert (await attack(workers, "fork_bomb", thread="bomb")).split()[1] in ("EAGAIN", "EPERM")
    bomb = set(live(workers)) - before
    await workers.forget("evil", "bomb")
    await until(lambda: not any(is_alive(pid) for pid in bomb))
    assert await sum_of(workers, 1, 2) == b"<result>3</result>"


async def test_forgetting_a_thread_fails_its_call(workers: WorkerPool) -> None:
    call = asyncio.create_task(failure(tell(workers, MISBEHAVE, "sleep", "forgotten")))
    await sum_of(workers, 1, 2)
    await workers.forget("misbehave", "forgotten")
    kind, detail = await call
    assert kind is FailureKind.DIED
    assert detail == "its thread is forgotten; signal 9 ended it"


async def test_unregistering_ends_every_worker_of_a_listener() -> None:
    async with WorkerPool(settings(spares=0)) as workers:
        for thread in "ABC":
            await tell(workers, MISBEHAVE, "nothing", thread)
        await sum_of(workers, 1, 2)
        assert len(live(workers)) == 4
        await workers.unregister("misbehave")
        assert len(live(workers)) == 1


async def test_an_import_that_ends_the_worker_is_a_refusal(workers: WorkerPool) -> None:
    listener = HandlerSource("x", "exiting_module.handler", ("plain_handlers.Text",))
    with pytest.raises(RegistrationError) as raised:
        await workers.describe(listener)
    assert str(raised.value) == (
        "x: 'exiting_module.handler': its import ended the worker: "
        "it closed its socket; it ended with exit code 3"
    )


async def test_output_goes_to_the_log_with_its_listener(
    workers: WorkerPool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await tell(workers, MISBEHAVE, "print hello there", "printer")
    expected = ["misbehave: hello there", "misbehave: to stderr"]
    await until(lambda: [line for line in caplog.messages if "misbehave: " in line] == expected)


async def test_a_handler_s_words_move_no_cursor_of_a_log(
    workers: WorkerPool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await tell(workers, MISBEHAVE, "print \x1b[2Jgone ünd\b", "cursor")
    expected = "misbehave: \\x1b[2Jgone ünd\\x08"
    await until(lambda: expected in caplog.messages)
    _, detail = await failure(tell(workers, MISBEHAVE, "raise-words \x1b[2J", "cursor"))
    assert detail.endswith("ValueError: \\x1b[2J\n")


async def test_a_flood_of_output_is_cut_and_counted(
    workers: WorkerPool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert await tell(workers, MISBEHAVE, "flood 3000000", "flood") == b"<fine/>"
    await workers.forget("misbehave", "flood")
    logged = sum(len(line) for line in caplog.messages)
    assert logged < 200_000
    dropped = [line for line in caplog.messages if "bytes of output are not logged" in line]
    assert sum(int(line.split()[1]) for line in dropped) > 2_500_000


async def test_idle_workers_make_room_and_then_start_afresh() -> None:
    async with WorkerPool(settings(workers=2, spares=0)) as workers:
        listener = source("remember", "AddPayload")
        for thread in ("A", "B", "C"):
            await call(workers, listener, thread, {"a": 1})
            assert len(live(workers)) <= 2
        assert await call(workers, listener, "C", {"a": 2}) == b"{'C': [1, 2]}"
        assert await call(workers, listener, "A", {"a": 2}) == b"{'A': [2]}"


async def test_calls_wait_for_room_where_every_worker_is_busy() -> None:
    async with WorkerPool(settings(workers=2, spares=0)) as workers:
        answers = await asyncio.gather(*(sum_of(workers, n, 1, f"t{n}") for n in range(12)))
        assert answers == [f"<result>{number + 1}</result>".encode() for number in range(12)]
        assert len(live(workers)) <= 2


async def test_one_who_stops_waiting_for_room_does_not_keep_it() -> None:
    async with WorkerPool(settings(workers=1, spares=0)) as workers:
        first = asyncio.create_task(failure(tell(workers, MISBEHAVE, "sleep", "A", deadline=1)))
        await until(lambda: len(live(workers)) == 1)
        second = asyncio.create_task(workers.describe(MISBEHAVE))
        third = asyncio.create_task(sum_of(workers, 1, 2, "C"))
        await asyncio.sleep(0)
        second.cancel()
        assert await third == b"<result>3</result>"
        assert (await first)[0] is FailureKind.TIMED_OUT


async def test_workers_that_idle_for_long_are_ended() -> None:
    async with WorkerPool(settings(idle=0.2, spares=0)) as workers:
        await sum_of(workers, 1, 1)
        assert len(live(workers)) == 1
        await until(lambda: live(workers) == [])
        assert await sum_of(workers, 1, 2) == b"<result>3</result>"


async def test_spare_workers_are_kept_ahead_of_need() -> None:
    async with WorkerPool(settings(spares=3)) as workers:
        await sum_of(workers, 1, 1)
        await until(lambda: len(live(workers)) == 4)
        spare = live(workers)[-1]
        os.kill(spare, signal.SIGKILL)
        await until(lambda: len(workers._supply._spares) == 2)  # the pump has heard of it
        answers = await asyncio.gather(*(sum_of(workers, n, 1, f"t{n}") for n in range(6)))
        assert answers == [f"<result>{number + 1}</result>".encode() for number in range(6)]


async def test_a_dead_zygote_fails_its_calls_and_is_replaced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with WorkerPool(settings()) as workers:
        call = asyncio.create_task(failure(tell(workers, MISBEHAVE, "sleep", "A")))
        await sum_of(workers, 1, 1)
        old = [workers.guard, *descendants(workers.guard)]
        os.kill(old[1], signal.SIGKILL)
        assert await call == (FailureKind.DIED, "the fork server is gone")
        await until(lambda: not any(is_alive(pid) for pid in old))
        answers = await asyncio.gather(*(sum_of(workers, n, 1, f"t{n}") for n in range(5)))
        assert answers == [f"<result>{number + 1}</result>".encode() for number in range(5)]
        assert workers.guard not in old
    assert "the fork server is gone, and with it" in caplog.text


async def test_a_dead_guard_takes_the_zygote_and_all_workers_with_it() -> None:
    async with WorkerPool(settings()) as workers:
        await sum_of(workers, 1, 1)
        old = [workers.guard, *descendants(workers.guard)]
        os.kill(workers.guard, signal.SIGKILL)
        await until(lambda: not any(is_alive(pid) for pid in old))
        assert await sum_of(workers, 1, 2) == b"<result>3</result>"


async def test_closing_leaves_no_process_and_no_file(caplog: pytest.LogCaptureFixture) -> None:
    async with WorkerPool(settings()) as workers:
        await sum_of(workers, 1, 1)
        await attack(workers, "leave_child")
        call = asyncio.create_task(failure(tell(workers, MISBEHAVE, "spin", "spin")))
        await sum_of(workers, 1, 1)
        processes = [workers.guard, *descendants(workers.guard)]
        descriptors = len(os.listdir("/proc/self/fd"))
    assert not any(is_alive(pid) for pid in processes)
    assert "did not end within" not in caplog.text
    assert (await call)[0] is FailureKind.DIED
    assert len(os.listdir("/proc/self/fd")) < descriptors
    with pytest.raises(WorkersError, match="the workers are closed"):
        await workers.describe(MISBEHAVE)
    assert (await failure(sum_of(workers, 1, 1)))[0] is FailureKind.DIED


async def test_a_killed_pump_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    pump = await asyncio.create_subprocess_exec(
        *(sys.executable, str(GUESTS / "pump.py"), str(GUESTS)),
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=asyncio.subprocess.PIPE,
    )
    assert pump.stdout is not None
    assert await asyncio.wait_for(pump.stdout.readline(), 30) == b"ready\n"
    processes = descendants(pump.pid)
    assert len(processes) >= 5
    assert len(os.listdir(tmp_path)) == 1
    pump.kill()
    await pump.wait()
    await until(lambda: not any(is_alive(pid) for pid in processes))
    assert os.listdir(tmp_path) == []


async def test_a_zygote_that_does_not_start_is_an_error() -> None:
    workers = WorkerPool(settings(preload=("no_such_module",)))
    with pytest.raises(WorkersError, match="the fork server ended before it was ready"):
        await workers.start()
    await workers.aclose()


async def test_a_pump_out_of_descriptors_fails_calls_and_recovers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with WorkerPool(settings(spares=0, workers=10_000)) as workers:
        assert "10000 workers need 20128 open files" in caplog.text
        await sum_of(workers, 1, 1, "first")
        open_now = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_now, before[1]))
        try:
            kind, detail = await failure(sum_of(workers, 1, 1, "second"))
            assert await sum_of(workers, 1, 2, "first") == b"<result>3</result>"
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert (kind, detail) == (FailureKind.DIED, "no worker can be had: Too many open files")
        assert await sum_of(workers, 2, 2, "second") == b"<result>4</result>"


async def test_inprocess_says_at_every_start_that_nothing_is_isolated(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(2):
        async with InProcessHandlers(settings(isolation=Isolation.INPROCESS)) as handlers:
            assert [measure.applied for measure in handlers.report().measures] == [False]
    assert caplog.text.count("isolation: inprocess: handlers run in the process of the pump") == 2


async def test_inprocess_deadlines_end_a_handler_that_waits() -> None:
    sys.path.insert(0, str(GUESTS))
    try:
        async with InProcessHandlers(settings(isolation=Isolation.INPROCESS)) as handlers:
            kind, detail = await failure(tell(handlers, MISBEHAVE, "sleep", deadline=0.1))
            assert (kind, detail) == (FailureKind.TIMED_OUT, "it did not answer within 0.1 s")
            call = asyncio.create_task(tell(handlers, MISBEHAVE, "sleep"))
            await asyncio.sleep(0)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert await tell(handlers, MISBEHAVE, "nothing") == b"<fine/>"
    finally:
        sys.path.remove(str(GUESTS))
