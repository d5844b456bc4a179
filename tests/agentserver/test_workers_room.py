"""Room: who gets a worker where there are fewer than are wanted, and what is kept of the gone."""

import asyncio
import socket

import pytest

from agentix.agentserver.errors import FailureKind, WorkersError
from agentix.agentserver.worker.forkserver_client import ForkServerClient
from agentix.agentserver.worker.handlers import Isolation
from agentix.agentserver.worker.pool import WorkerPool
from tests.agentserver.processes import until
from tests.agentserver.workers import ADD, failure, settings, source, sum_of, tell

MISBEHAVE = source("misbehave")


async def test_a_listener_with_much_to_do_keeps_no_other_waiting() -> None:
    answered: list[str] = []

    async def busy(number: int) -> None:
        await tell(workers, MISBEHAVE, "nothing", f"{number}")
        answered.append("busy")

    async def other() -> None:
        await sum_of(workers, 1, 2)
        answered.append("other")

    async with WorkerPool(settings(isolation=Isolation.LISTENER, workers=1, spares=0)) as workers:
        await asyncio.gather(*[busy(number) for number in range(50)], other())
    assert answered.index("other") < 10


async def test_a_worker_without_a_zygote_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    fork = ForkServerClient.fork

    async def lost(self: ForkServerClient, number: int) -> tuple[socket.socket, int]:
        ends = await fork(self, number)
        self._lose()
        return ends

    async with WorkerPool(settings(spares=0)) as workers:
        monkeypatch.setattr(ForkServerClient, "fork", lost)
        kind, detail = await failure(sum_of(workers, 1, 2))
        assert (kind, detail) == (FailureKind.DIED, "the fork server is gone")
        assert not workers._holders
        monkeypatch.setattr(ForkServerClient, "fork", fork)
        assert await sum_of(workers, 1, 2) == b"<result>3</result>"


async def test_room_that_could_not_be_used_is_the_next_one_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fork = ForkServerClient.fork
    tries: list[int] = []

    async def refused(self: ForkServerClient, number: int) -> tuple[socket.socket, int]:
        tries.append(number)
        if len(tries) == 1:
            raise WorkersError("no worker can be had")
        return await fork(self, number)

    async with WorkerPool(settings(workers=1, spares=0)) as workers:
        call = asyncio.ensure_future(failure(tell(workers, MISBEHAVE, "sleep", deadline=0.3)))
        await until(lambda: any(holder.worker for holder in workers._holders.values()))
        monkeypatch.setattr(ForkServerClient, "fork", refused)
        describing = [asyncio.ensure_future(workers.describe(ADD)) for _ in range(2)]
        async with asyncio.timeout(10):
            outcomes = await asyncio.gather(*describing, return_exceptions=True)
        await call
    assert [isinstance(outcome, WorkersError) for outcome in outcomes] == [True, False]


async def test_a_thread_that_is_forgotten_before_it_has_a_worker_keeps_none() -> None:
    async with WorkerPool(settings(workers=1, spares=0)) as workers:
        first = asyncio.ensure_future(failure(tell(workers, MISBEHAVE, "sleep", "A", deadline=0.2)))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(tell(workers, MISBEHAVE, "nothing", "B"))
        await asyncio.sleep(0)
        await workers.forget("misbehave", "B")
        await first
        await second
        await until(lambda: not workers._holders)
