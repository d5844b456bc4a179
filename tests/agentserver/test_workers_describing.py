"""Describing: which listeners share a worker, and that none pays for another's code."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from agentix.agentserver.errors import RegistrationError
from agentix.agentserver.worker import pool
from agentix.agentserver.worker.handlers import DescribedListener, HandlerSource
from agentix.agentserver.worker.pool import WorkerPool
from tests.agentserver.processes import descendants, until
from tests.agentserver.workers import settings

MODULE = "described_handlers"


@pytest.fixture
async def workers() -> AsyncIterator[WorkerPool]:
    async with WorkerPool(settings(spares=0)) as workers:
        yield workers


def listener(name: str, payload_class: str = f"{MODULE}.Told") -> HandlerSource:
    return HandlerSource(name, f"{MODULE}.handle", (payload_class,))


def token(described: DescribedListener) -> str:
    """Return the import that a description is of."""
    values: list[str] = described.records[0]["fields"][0]["type"]["values"]
    return values[0]


async def outcomes(workers: WorkerPool, *sources: HandlerSource) -> list[str]:
    """Describe listeners at once, and return how each was described or why not."""
    found = await asyncio.gather(*map(workers.describe, sources), return_exceptions=True)
    return [token(each) if isinstance(each, DescribedListener) else str(each) for each in found]


async def test_listeners_of_the_same_modules_are_described_by_one_worker(
    workers: WorkerPool,
) -> None:
    found = await outcomes(workers, *(listener(f"tool{number}") for number in range(20)))
    assert len(set(found)) == 1
    again = await outcomes(workers, listener("tool"))
    assert again != found[:1]


async def test_listeners_of_other_modules_are_described_apart(workers: WorkerPool) -> None:
    told = listener("told")
    two = HandlerSource("two", told.handler, (*told.payload_classes, "plain_handlers.Text"))
    first, second, third = await outcomes(workers, told, two, listener("told.too"))
    assert first == third
    assert first != second


async def test_one_that_ends_the_worker_is_to_blame_and_no_other(workers: WorkerPool) -> None:
    bad = listener("bad", f"{MODULE}.Exiting")
    before, refused, after = await outcomes(workers, listener("a"), bad, listener("b"))
    assert refused == (
        "bad: 'described_handlers.handle': its import ended the worker: "
        "it closed its socket; it ended with exit code 4"
    )
    assert len(before) == len(after) == 16
    assert before != after


async def test_one_that_spoils_the_worker_spoils_no_other(workers: WorkerPool) -> None:
    bad = listener("bad", f"{MODULE}.Poisonous")
    described, after = await asyncio.gather(workers.describe(bad), workers.describe(listener("b")))
    assert described.records[0]["name"] == "Poisonous"
    assert len(token(after)) == 16


async def test_one_that_hangs_is_refused_in_time(
    workers: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "SECONDS", 0.5)
    bad = listener("bad", f"{MODULE}.Hanging")
    before, refused, after = await outcomes(workers, listener("a"), bad, listener("b"))
    about = "'described_handlers.handle': its import takes longer than 0.5 s"
    assert len(before) == 16
    assert refused == f"bad: {about}"
    assert after == f"b: {about}, as another's did"
    assert len((await outcomes(workers, listener("b")))[0]) == 16


async def test_a_description_that_is_given_up_leaves_no_worker(workers: WorkerPool) -> None:
    call = asyncio.create_task(workers.describe(listener("bad", f"{MODULE}.Hanging")))
    await until(lambda: len(descendants(workers.guard)) == 2)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until(lambda: len(descendants(workers.guard)) == 1)
    assert len((await outcomes(workers, listener("a")))[0]) == 16


async def test_more_modules_than_workers_are_all_described() -> None:
    async with WorkerPool(settings(spares=0, workers=2)) as workers:
        sources = [
            HandlerSource(f"tool{number}", f"{MODULE}.handle", (f"nothing{number}.Payload",))
            for number in range(12)
        ]
        for source in sources:
            with pytest.raises(RegistrationError, match=f"{source.name}: 'nothing"):
                await workers.describe(source)
        found = await outcomes(workers, *sources)
    assert [each.partition(":")[0] for each in found] == [each.name for each in sources]
