"""Calls of handlers: what they are given, what comes of what they return, and who shares what."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentix.agentserver.errors import FailureKind, RegistrationError
from agentix.agentserver.worker.handlers import Handlers, HandlerSource, Isolation
from agentix.agentserver.worker.inprocess import InProcessHandlers
from agentix.agentserver.worker.pool import WorkerPool
from tests.agentserver.workers import ADD, GUESTS, call, failure, settings, source, sum_of, tell


@pytest.fixture(scope="module")
async def workers() -> AsyncIterator[WorkerPool]:
    async with WorkerPool(settings()) as workers:
        yield workers


@pytest.fixture(scope="module", params=list(Isolation))
async def handlers(request: pytest.FixtureRequest) -> AsyncIterator[Handlers]:
    """Return what runs handlers, in each isolation."""
    isolation: Isolation = request.param
    kind: Any = InProcessHandlers if isolation is Isolation.INPROCESS else WorkerPool
    with pytest.MonkeyPatch.context() as patch:
        if isolation is Isolation.INPROCESS:
            patch.syspath_prepend(GUESTS)
        async with kind(settings(isolation=isolation)) as handlers:
            yield handlers


async def test_a_handler_answers(handlers: Handlers) -> None:
    assert await sum_of(handlers, 7, 35) == b"<result>42</result>"
    assert await sum_of(handlers, -1, 1) == b"<result>0</result>"


async def test_integers_are_as_wide_as_they_are(handlers: Handlers) -> None:
    wide = 10**4000
    assert await sum_of(handlers, wide, -1) == f"<result>{wide - 1}</result>".encode()
    assert await sum_of(handlers, -(2**63), -1) == f"<result>{-(2**63) - 1}</result>".encode()


async def test_a_description_is_plain_data(handlers: Handlers) -> None:
    described = await handlers.describe(ADD)
    (record,) = described.records
    assert record["name"] == "AddPayload"
    assert [field["name"] for field in record["fields"]] == ["a", "b"]


async def test_a05_a_synchronous_handler_is_refused(handlers: Handlers) -> None:
    expected = "synchronous: the handler 'plain_handlers.synchronous' is not declared with `async"
    with pytest.raises(RegistrationError, match=expected):
        await handlers.describe(source("synchronous", "AddPayload"))


@pytest.mark.parametrize("name", ["only_payload", "defaulted"])
async def test_a_handler_of_another_signature_is_refused(handlers: Handlers, name: str) -> None:
    with pytest.raises(RegistrationError, match=rf"'plain_handlers.{name}' takes \(payload: "):
        await handlers.describe(source(name, "AddPayload"))


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("no_module.handler", "ModuleNotFoundError: No module named 'no_module'"),
        ("plain_handlers.missing", "AttributeError: module 'plain_handlers' has no attribute"),
        ("broken_module.handler", "OSError: no such device"),
        ("handler", "ValueError: Empty module name"),
    ],
)
async def test_a06_an_import_error_names_the_path(
    handlers: Handlers, path: str, reason: str
) -> None:
    listener = HandlerSource("some.listener", path, ("plain_handlers.Text",))
    with pytest.raises(RegistrationError) as raised:
        await handlers.describe(listener)
    assert str(raised.value).startswith(f"some.listener: {path!r} cannot be imported: {reason}")


async def test_a_payload_class_has_to_be_a_class(handlers: Handlers) -> None:
    listener = HandlerSource("x", "plain_handlers.add", ("plain_handlers.memory",))
    with pytest.raises(RegistrationError, match=r"x: 'plain_handlers\.memory' is not a class"):
        await handlers.describe(listener)


async def test_a10_metadata_is_a_thread_id_and_no_name(handlers: Handlers) -> None:
    expected = (["own_name", "thread_id"], "T", None, "FrozenInstanceError")
    assert await tell(handlers, source("show_metadata"), thread="T") == repr(expected).encode()


async def test_a11_an_agent_is_told_its_name(handlers: Handlers) -> None:
    expected = (["own_name", "thread_id"], "T", "show_metadata", "FrozenInstanceError")
    agent = source("show_metadata", agent=True)
    assert await tell(handlers, agent, thread="T") == repr(expected).encode()


async def test_a_listener_with_other_code_gets_another_worker(workers: WorkerPool) -> None:
    listener = source("remember", "AddPayload")
    other = HandlerSource("remember", "plain_handlers.add", listener.payload_classes)
    plain = {"a": 1, "b": 2}
    assert await call(workers, listener, "code", plain) == b"{'code': [1]}"
    assert await call(workers, other, "code", plain) == b"<result>3</result>"
    assert await call(workers, listener, "code", plain) == b"{'code': [1]}"


@pytest.mark.parametrize(
    "wrong", ["None", "str", "int", "bytearray", "memoryview", "list", "subclass"]
)
async def test_a12_anything_but_exact_bytes_is_the_wrong_type(
    handlers: Handlers, wrong: str
) -> None:
    listener = source("return_wrong")
    kind, _ = await failure(tell(handlers, listener, wrong))
    assert kind is FailureKind.WRONG_TYPE
    assert await tell(handlers, listener, "bytes") == b"<right/>"


@pytest.mark.parametrize("how", ["raise", "exit-python", "cancel"])
async def test_a13_an_exception_is_a_failure_and_the_next_call_works(
    handlers: Handlers, how: str
) -> None:
    listener = source("misbehave")
    kind, detail = await failure(tell(handlers, listener, how))
    assert kind is FailureKind.RAISED
    assert detail.startswith("Traceback")
    assert await tell(handlers, listener, "nothing") == b"<fine/>"


async def test_a_handler_that_cancels_its_task_cancels_only_its_call(workers: WorkerPool) -> None:
    listener = source("misbehave")
    kind, detail = await failure(tell(workers, listener, "cancel-task"))
    assert kind is FailureKind.RAISED
    assert "CancelledError" in detail
    assert await tell(workers, listener, "nothing") == b"<fine/>"


async def test_a_large_payload_arrives_whole(handlers: Handlers) -> None:
    text = "ü" * 1_000_000
    assert await tell(handlers, source("measure"), text) == b"1000000 2000000"


async def test_a_large_answer_arrives_whole(handlers: Handlers) -> None:
    size = 1024 * 1024
    assert await tell(handlers, source("misbehave"), f"return {size}") == b"x" * size


async def test_an_answer_over_the_limit_is_oversized(handlers: Handlers) -> None:
    kind, _ = await failure(tell(handlers, source("misbehave"), f"return {1024 * 1024 + 1}"))
    assert kind is FailureKind.OVERSIZED
    assert await tell(handlers, source("misbehave"), "nothing") == b"<fine/>"


async def test_a35_memory_is_of_one_thread_until_it_is_pruned(workers: WorkerPool) -> None:
    listener = source("remember", "AddPayload")

    async def remember(thread: str, number: int) -> object:
        return eval(await call(workers, listener, thread, {"a": number}))

    assert await remember("A", 1) == {"A": [1]}
    assert await remember("A", 2) == {"A": [1, 2]}
    assert await remember("B", 3) == {"B": [3]}
    await workers.forget("remember", "A")
    assert await remember("A", 4) == {"A": [4]}
    assert await remember("B", 5) == {"B": [3, 5]}


async def test_a_listener_s_worker_is_shared_where_that_is_asked_for() -> None:
    listener = source("remember", "AddPayload")
    async with WorkerPool(settings(isolation=Isolation.LISTENER)) as workers:
        await call(workers, listener, "A", {"a": 1})
        assert await call(workers, listener, "B", {"a": 2}) == b"{'A': [1], 'B': [2]}"
        await workers.forget("remember", "A")
        assert await call(workers, listener, "B", {"a": 3}) == b"{'A': [1], 'B': [2, 3]}"


async def test_calls_of_one_thread_are_answered_in_their_order(workers: WorkerPool) -> None:
    listener = source("remember", "AddPayload")
    calls = [call(workers, listener, "order", {"a": number}) for number in range(50)]
    answers = await asyncio.gather(*calls)
    assert answers[-1] == repr({"order": list(range(50))}).encode()


async def test_background_tasks_stand_still_between_calls(workers: WorkerPool) -> None:
    listener = source("wait_in_background")
    first = eval(await tell(workers, listener, "a"))
    second = eval(await tell(workers, listener, "b"))
    assert first == ["a", "a0"]
    assert second[: len(first) + 1] == ["a", "a0", "b"]


async def test_a_worker_has_a_loop_from_the_first_step_on(workers: WorkerPool) -> None:
    found = await asyncio.gather(
        *(tell(workers, source("use_loop"), "", f"l{n}") for n in range(3))
    )
    expected = ["task", "thread", "timer", "reader", "signal", "timeout"]
    assert [eval(each) for each in found] == [expected] * 3


async def test_no_socket_is_of_two_workers(workers: WorkerPool) -> None:
    listener = source("list_sockets")
    found = [eval(await tell(workers, listener, "", thread)) for thread in "ABCD"]
    sockets = [number for each in found for number in each]
    assert [len(each) for each in found] == [3] * 4
    assert len(set(sockets)) == len(sockets)


async def test_two_hundred_threads_get_their_own_answers(workers: WorkerPool) -> None:
    answers = await asyncio.gather(*(sum_of(workers, n, n, f"thread {n % 40}") for n in range(200)))
    assert answers == [f"<result>{2 * number}</result>".encode() for number in range(200)]
