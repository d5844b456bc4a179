"""AgentServer: messages through a pump, beside lxml alone, and what threads and workers cost."""

import asyncio
import gc
import os
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

from lxml import etree

from agentix.agentserver import Organism, OrganismSpec, wrap
from agentix.agentserver.payload import PayloadCodec, describe_record
from agentix.agentserver.xml.envelope import open_envelope
from agentix.agentserver.xml.parser import MessageLimits
from bench.cores import on_client_core
from bench.echo import echo_times
from bench.listeners.bench_listeners import AddPayload
from bench.process_facts import forget_peak, peak_bytes, private_bytes, resident_bytes
from bench.rounds import percentile, take_turns
from bench.rows import Bound, Row, Skipped, at_least, at_most, compared, measured

__all__ = ["measure"]

LISTENERS = Path(__file__).parent / "listeners"
ROOT = "calculator.add.addpayload"
PAYLOAD = f"<{ROOT}><a>7</a><b>35</b></{ROOT}>".encode()
FLOOR_XSD = f"""<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema"><xs:element name="{ROOT}">
<xs:complexType><xs:all><xs:element minOccurs="0" name="a" type="xs:integer"/>
<xs:element minOccurs="0" name="b" type="xs:integer"/></xs:all></xs:complexType></xs:element>
</xs:schema>"""
ROUNDS = 5
BATCH = 1_280
WIDTH = 64
ONE_BY_ONE = 1_000
IDLE_THREADS = 50_000
"""Conversations, each of which has two threads: the sender's and the listener's."""
PROBES = 300
LOOP_SECONDS = 2.0
MANY = 200
"""Listeners of the organisms whose start is measured."""
MEBIBYTE = 1 << 20
MEGABYTE = 1e6


async def measure() -> Sequence[Row | Skipped]:
    """Measure messages, then threads, workers, hostile messages and starts."""
    return [
        *await _codec(),
        *await _hostile(),
        *await _in_process(),
        *await _isolated(),
        *await _beside_a_loop(),
        *await _workers(),
        *await _idle_threads(),
        *await _probes(),
        *await _start(),
    ]


def _spec(listeners: Sequence[Mapping[str, Any]] = (), **changes: Any) -> OrganismSpec:
    adder = {
        "name": "calculator.add",
        "payload_class": "bench_listeners.AddPayload",
        "handler": "bench_listeners.add",
        "description": "Adds two numbers.",
    }
    return OrganismSpec.model_validate(
        {
            "organism": {"name": "bench"},
            "packages": ["bench_listeners"],
            "import_paths": [str(LISTENERS)],
            "limits": {"concurrent_handlers": WIDTH, "concurrent_per_listener": WIDTH},
            "listeners": [adder, *listeners],
            **changes,
        }
    )


@asynccontextmanager
async def _organism(**changes: Any) -> AsyncIterator[Organism]:
    """Start an organism with a calculator, whose files are in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="agentix-bench-") as directory:
        async with Organism(_spec(**changes), Path(directory)) as organism:
            yield organism


def _message(thread: str, payload: str = PAYLOAD.decode()) -> bytes:
    return wrap(payload, "bench", thread)


def _thread() -> str:
    return str(uuid.uuid4())


async def _call(organism: Organism, message: bytes) -> None:
    replies = await organism.call(message, "bench")
    assert len(replies) == 1
    assert b">42</result>" in replies[0]


def _raw() -> Callable[[], dict[str, int]]:
    """Return the floor: lxml parses, its XSD engine validates, and `int` reads the fields."""
    schema = etree.XMLSchema(etree.fromstring(FLOOR_XSD))
    parser = etree.XMLParser(resolve_entities=False, no_network=True)

    def read() -> dict[str, int]:
        root = etree.fromstring(PAYLOAD, parser)
        assert schema.validate(root)
        return {str(child.tag): int(child.text or "") for child in root}

    return read


def _microseconds(work: Callable[[], object], count: int = BATCH) -> float:
    """Return the processor time of a piece of work, the best of some batches."""
    best = float("inf")
    for _ in range(5):
        started = time.process_time()
        for _ in range(count // 5):
            work()
        best = min(best, (time.process_time() - started) / (count // 5))
    return best * 1e6


async def _codec() -> list[Row]:
    codec = PayloadCodec(ROOT, describe_record(AddPayload))
    parser = etree.XMLParser(resolve_entities=False, no_network=True)
    message, limits = _message(_thread()), MessageLimits()

    def read_payload() -> object:
        root = etree.fromstring(PAYLOAD, parser)
        assert codec.validate(root)
        return codec.decode(root)

    def read_message() -> object:
        payload = open_envelope(message, limits).payload
        assert codec.validate(payload)
        return codec.decode(payload)

    async def opened() -> float:
        return _microseconds(lambda: open_envelope(message, limits))

    async def wrapped() -> float:
        return _microseconds(lambda: open_envelope(wrap(PAYLOAD), limits))

    async def floor() -> float:
        return _microseconds(_raw())

    async def payload() -> float:
        return _microseconds(read_payload)

    async def envelope() -> float:
        return _microseconds(read_message)

    floors, payloads, envelopes = await take_turns(ROUNDS, floor, payload, envelope)
    opens, wraps = await take_turns(ROUNDS, opened, wrapped)
    return [
        compared(
            "a message wrapped and opened; floor: opened only", "us", wraps, opens, at_most(2)
        ),
        compared("a payload read; floor: raw lxml", "us", payloads, floors, at_most(6)),
        compared("a whole message read", "us", envelopes, floors, at_most(12)),
    ]


async def _rate(organism: Organism, count: int = BATCH) -> float:
    """Return round trips a second, from many conversations at once."""
    messages = [_message(_thread()) for _ in range(WIDTH)]
    await asyncio.gather(*(_call(organism, message) for message in messages))

    async def work(message: bytes) -> None:
        for _ in range(count // WIDTH):
            await _call(organism, message)

    started = time.perf_counter()
    await asyncio.gather(*map(work, messages))
    return count // WIDTH * WIDTH / (time.perf_counter() - started)


async def _raw_rate() -> float:
    read = _raw()
    started = time.perf_counter()
    for _ in range(BATCH):
        read()
    return BATCH / (time.perf_counter() - started)


async def _in_process() -> list[Row]:
    spent: list[float] = []

    async def trips(organism: Organism) -> float:
        started = time.process_time()
        rate = await _rate(organism)
        spent.append((time.process_time() - started) * 1e6 / (BATCH + WIDTH))
        return rate

    async def raw() -> float:
        return _microseconds(_raw())

    with on_client_core():
        async with (
            _organism(isolation="inprocess") as kept,
            _organism(isolation="inprocess", journal=None) as light,
        ):
            floors, journalled, plain = await take_turns(
                ROUNDS, _raw_rate, lambda: _rate(kept), lambda: _rate(light)
            )
            raws, _ = await take_turns(ROUNDS, raw, lambda: trips(kept))
    return [
        compared(
            "processor time of a round trip in process; floor: raw lxml, for one payload",
            "us", spent[1:], raws,
        ),
        compared(
            "round trips in process, one core, with a journal; floor: raw lxml",
            "/s", journalled, floors, at_least(20_000),
        ),
        compared("round trips in process, without a journal", "/s", plain, floors),
    ]  # fmt: skip


async def _isolated() -> list[Row]:
    async with _organism() as organism:
        floors, rates = await take_turns(ROUNDS, _raw_rate, lambda: _rate(organism))
        message = _message(_thread())
        times = [await _timed(organism, message) for _ in range(ONE_BY_ONE)][100:]
    echoes = echo_times(ONE_BY_ONE, len(message))[100:]
    return [
        compared(
            "round trips by workers, two cores; floor: raw lxml", "/s", rates, floors,
            at_least(8_000),
        ),
        compared(
            "round trip by a worker, one in flight, p50; floor: an echo by a bare process", "us",
            [percentile(times, 50)], [percentile(echoes, 50)], at_most(150),
        ),
        compared(
            "round trip by a worker, one in flight, p99; floor: an echo by a bare process", "us",
            [percentile(times, 99)], [percentile(echoes, 99)], at_most(1_000),
        ),
    ]  # fmt: skip


async def _timed(organism: Organism, message: bytes) -> float:
    started = time.perf_counter()
    await _call(organism, message)
    return (time.perf_counter() - started) * 1e6


async def _beside_a_loop() -> list[Row]:
    """Measure what a handler that never waits costs the callers of others, and when it ends."""
    looper = {
        "name": "looper",
        "payload_class": "bench_listeners.AddPayload",
        "handler": "bench_listeners.loop",
        "description": "Loops.",
        "handler_seconds": LOOP_SECONDS,
    }
    async with _organism(listeners=[looper]) as organism:
        message = _message(_thread())
        await _call(organism, message)
        payload = "<looper.addpayload></looper.addpayload>"
        loop = asyncio.create_task(organism.call(_message(_thread(), payload), "bench"))
        started = time.perf_counter()
        times = []
        while not loop.done():
            times.append(await _timed(organism, message) / 1000)
        late = time.perf_counter() - started - LOOP_SECONDS
    return [
        measured("round trip beside a handler that loops, p99", "ms", [percentile(times, 99)],
                 at_most(50)),
        measured("its huh after its deadline", "s", [late], at_most(1)),
    ]  # fmt: skip


async def _workers() -> list[Row]:
    async with _organism() as organism:
        await _call(organism, _message(_thread()))
        before = _descendants()
        times = [await _timed(organism, _message(_thread())) / 1000 for _ in range(20)]
        new = _descendants() - before
        memory = [private_bytes(pid) / MEGABYTE for pid in new]
    return [
        measured("start of a thread's worker to its first answer", "ms", times, at_most(5)),
        measured("memory of a worker that no other shares", "MB", memory, at_most(3)),
    ]


def _descendants() -> set[int]:
    """Return the processes below this one."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            parents[int(entry.name)] = int(fields[1])
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {os.getpid()}


async def _idle_threads() -> list[Row]:
    async with _organism(isolation="inprocess", journal=None) as organism:
        alone = await _rate(organism)
        threads = [_thread() for _ in range(IDLE_THREADS)]
        before, blocks = _settled_memory(), sys.getallocatedblocks()
        await _open_threads(organism, threads)
        held, held_blocks = _settled_memory() - before, sys.getallocatedblocks() - blocks
        crowded = await _rate(organism)
        await _close_threads(organism, threads)
        left, left_blocks = _settled_memory() - before, sys.getallocatedblocks() - blocks
        await _open_threads(organism, threads)
        again = _settled_memory() - before - max(left, held)
    return [
        measured("100,000 idle threads, each", "bytes", [held / IDLE_THREADS / 2], at_most(1_000)),
        measured("objects of them that are left when they are pruned", "%",
                 [100 * left_blocks / held_blocks], at_most(5)),
        measured("memory that 100,000 more take after that", "%", [100 * max(0, again) / held],
                 at_most(5)),
        compared("rate beside them; floor: without them", "/s", [crowded], [alone],
                 Bound("ratio", ">=", 0.9)),
    ]  # fmt: skip


async def _open_threads(organism: Organism, threads: Sequence[str]) -> None:
    for start in range(0, len(threads), WIDTH):
        chunk = threads[start : start + WIDTH]
        await asyncio.gather(*(_call(organism, _message(thread)) for thread in chunk))


async def _close_threads(organism: Organism, threads: Sequence[str]) -> None:
    for thread in threads:
        assert organism.close_thread(thread, "bench")
    await organism.wait_idle()


def _settled_memory() -> int:
    """Return the memory in use, the collector having run."""
    gc.collect()
    return resident_bytes(os.getpid())


def _hostile_messages() -> dict[str, bytes]:
    attributes = " ".join(f'a{number}="1"' for number in range(100_000))
    entities = f'<!DOCTYPE a [<!ENTITY x "{"x" * 1_000}">]><a>{"&x;" * 340_000}</a>'
    return {
        "100,000 attributes": f"<a {attributes}/>".encode()[:MEBIBYTE],
        "349,000 levels, unfinished": b"<a>" * 349_000,
        "an entity, 340,000 times": entities.encode()[:MEBIBYTE],
        "250,000 elements": (b"<a>" + b"<b/>" * 262_000)[: MEBIBYTE - 4] + b"</a>",
        "a payload of text": _message(_thread(), f"<{ROOT}>{'x' * 1_040_000}</{ROOT}>"),
    }


async def _hostile() -> list[Row]:
    rows = []
    async with _organism(isolation="inprocess", journal=None) as organism:
        for name, message in _hostile_messages().items():
            times, memory = [], []
            for _ in range(5):
                gc.collect()
                forget_peak(os.getpid())
                before = resident_bytes(os.getpid())
                started = time.perf_counter()
                (reply,) = await organism.call(message, "bench")
                times.append((time.perf_counter() - started) * 1000)
                memory.append(max(0, peak_bytes(os.getpid()) - before) / MEGABYTE)
                assert b"<huh " in reply
            rows.append(measured(f"1 MiB to a huh: {name}", "ms", times, at_most(100)))
            rows.append(
                measured(f"1 MiB to a huh: {name}, memory", "MB", [max(memory)], at_most(50))
            )
    return rows


async def _probes() -> list[Row]:
    """Measure whether a listener can tell a root that does not exist from one of no peer."""
    secret = {
        "name": "calculator.secret",
        "payload_class": "bench_listeners.AddPayload",
        "handler": "bench_listeners.add",
        "description": "Nobody's peer.",
    }
    prober = {
        "name": "prober",
        "payload_class": "bench_listeners.ProbePayload",
        "handler": "bench_listeners.probe",
        "description": "Emits root tags.",
        "agent": True,
        "peers": ["calculator.add"],
    }
    async with _organism(
        listeners=[secret, prober], isolation="inprocess", journal=None
    ) as organism:
        thread = _thread()

        async def probe(root: str) -> float:
            payload = f"<prober.probepayload><root>{root}</root></prober.probepayload>"
            message = _message(thread, payload)
            started = time.perf_counter()
            (reply,) = await organism.call(message, "bench")
            assert b"Invalid payload structure" in reply
            return (time.perf_counter() - started) * 1e6

        known, unknown = await take_turns(
            PROBES,
            lambda: probe("calculator.secret.addpayload"),
            lambda: probe("calculator.nosuch.addpayload"),
        )
    ratio = median(known) / median(unknown)
    return [
        Row("a probe for a listener that is no peer; floor: for none", median(known), "us",
            median(unknown), ratio, bound=Bound("ratio", "<=", 1.1)),
    ]  # fmt: skip


async def _start() -> list[Row]:
    """Measure starts with listeners of one module, and with as many modules as listeners."""
    with tempfile.TemporaryDirectory(prefix="agentix-bench-modules-") as directory:
        source = (LISTENERS / "bench_listeners.py").read_text()
        modules = [f"bench_listeners_{number}" for number in range(MANY - 1)]
        for module in modules:
            (Path(directory) / f"{module}.py").write_text(source)
        one = [await _started(["bench_listeners"] * (MANY - 1), directory) for _ in range(3)]
        each = [await _started(modules, directory) for _ in range(3)]
    return [
        measured("start with 200 listeners of one module", "s", one, at_most(1)),
        measured("start with 200 listeners of 200 modules", "s", each, at_most(1)),
    ]


async def _started(modules: Sequence[str], directory: str) -> float:
    """Return how long a start takes with a listener of each module."""
    listeners = [
        {
            "name": f"tool{number}",
            "payload_class": f"{module}.AddPayload",
            "handler": f"{module}.add",
            "description": f"Is number {number}.",
        }
        for number, module in enumerate(modules)
    ]
    paths, packages = [str(LISTENERS), directory], ["bench_listeners", *dict.fromkeys(modules)]
    started = time.perf_counter()
    async with _organism(listeners=listeners, import_paths=paths, packages=packages):
        return time.perf_counter() - started
