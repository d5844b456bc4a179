"""SDK: the commands of `agentix-namespace`, each as a whole process, from its start to its end."""

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from pathlib import Path

from bench import engine
from bench.rounds import take_turns
from bench.rows import Row, Skipped, at_most, compared

__all__ = ["measure"]

ROUNDS = 9
LIMIT = 1.0
"""Seconds that an author may wait for `new`, for `check` of a source tree, for a rebuild."""

BUILD_LIMIT = 5.0
"""Seconds that an author may wait for a namespace of pure Python, built for the first time."""

KINDS = ("agent", "dataset", "tool")
NAMESPACE = Path(__file__).resolve().parents[1] / "namespaces" / "mock-dataset"


async def measure() -> list[Row | Skipped]:
    """Measure the making, the checking and the building of namespaces."""
    with tempfile.TemporaryDirectory(prefix="agentix-bench-") as directory:
        place = Path(directory)
        return [
            *await _new(place),
            *await _check(),
            *await _build(place),
            await _build_into_docker(place),
        ]


async def _new(directory: Path) -> list[Row]:
    """Render each kind, into a new directory each time."""
    numbers = count()

    def rendering(kind: str) -> Callable[[], Awaitable[float]]:
        return lambda: _command("new", f"{kind}-{next(numbers)}", "--kind", kind, *into)

    into = ("--into", str(directory))
    return [await _beside_floor(f"new --kind {kind}", rendering(kind)) for kind in KINDS]


async def _check() -> list[Row]:
    """Check a namespace with three functions, which the check imports in a second process."""

    async def check() -> float:
        return await _command("check", str(NAMESPACE))

    return [await _beside_floor("check of a source tree", check)]


async def _build(directory: Path) -> list[Row]:
    """Build an archive and a bundle: with an empty cache each time, and where nothing changed."""
    numbers = count()

    async def built(output: Path, cache: Path) -> float:
        return await _command(
            *("build", str(NAMESPACE), "--builder", "plain"),
            *("--output", str(output), "--cache", str(cache)),
        )

    def anew(output: str) -> Callable[[], Awaitable[float]]:
        return lambda: built(directory / f"{next(numbers)}{output}", directory / f"{next(numbers)}")

    def again(output: str) -> Callable[[], Awaitable[float]]:
        return lambda: built(directory / f"kept{output}", directory / "cache")

    rows = []
    for kind, output in (("an image archive", ".tar"), ("a bundle", "")):
        await again(output)()
        rows.append(await _beside_floor(f"build of {kind} without Nix", anew(output), BUILD_LIMIT))
        rows.append(await _beside_floor(f"rebuild of {kind}, unchanged", again(output)))
    return rows


async def _build_into_docker(directory: Path) -> Row | Skipped:
    """Build what the engine has already."""
    name, tag = "rebuild of an image in Docker, unchanged", "agentix-bench/mock-dataset:1"
    if (reason := engine.obstacle()) is not None:
        return Skipped(name, reason)

    async def again() -> float:
        words = ("build", str(NAMESPACE), "--builder", "plain", "--tag", tag)
        return await _command(*words, "--cache", str(directory / "cache"))

    await again()
    try:
        return await _beside_floor(name, again)
    finally:
        await engine.docker("rmi", tag)


async def _beside_floor(
    name: str, run: Callable[[], Awaitable[float]], limit: float = LIMIT
) -> Row:
    floors, values = await take_turns(ROUNDS, _bare, run)
    return compared(
        f"{name}; floor: a process that imports agentix", "s", values, floors, at_most(limit)
    )


async def _bare() -> float:
    return await _process(["-c", "import agentix"])


async def _command(*arguments: str) -> float:
    return await _process(["-m", "agentix.namespace_sdk", *arguments])


async def _process(arguments: Sequence[str]) -> float:
    """Return the seconds of a Python process from its start to its end."""
    started = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    seconds = time.perf_counter() - started
    if process.returncode != 0:
        raise RuntimeError(f"{arguments} failed: {output.decode()}")
    return seconds
