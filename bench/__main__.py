"""Runs the bench: all parts, or those that are named.

python -m bench [PART ...] [--write]; `--help` lists the parts
"""

import argparse
import asyncio
import gc
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from bench import (
    agentserver,
    calls,
    commands,
    concurrency,
    files,
    memory,
    oanix,
    report,
    sdk,
    start,
    streams,
)
from bench.rows import Row, Skipped

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"

PARTS: Mapping[str, Callable[[], Awaitable[Sequence[Row | Skipped]]]] = {
    "calls": calls.measure,
    "streams": streams.measure,
    "commands": commands.measure,
    "files": files.measure,
    "start": start.measure,
    "memory": memory.measure,
    "concurrency": concurrency.measure,
    "agentserver": agentserver.measure,
    "oanix": oanix.measure,
    "sdk": sdk.measure,
}


def main() -> None:
    """Measures, prints, and writes where that is asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join(PARTS))
    parser.add_argument("--write", action="store_true", help=f"update docs/{DOCUMENT.name}")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    tables = {name: _run(name) for name in given.parts or PARTS}
    if given.write:
        report.write(DOCUMENT, tables)


def _run(name: str) -> Sequence[Row | Skipped]:
    gc.collect()
    started = time.perf_counter()
    rows = asyncio.run(_measured(PARTS[name]))
    print(f"\n{name} ({time.perf_counter() - started:.0f} s)\n{report.table(rows)}")
    sys.stdout.flush()
    return rows


async def _measured(
    part: Callable[[], Awaitable[Sequence[Row | Skipped]]],
) -> Sequence[Row | Skipped]:
    return await part()


if __name__ == "__main__":
    main()
