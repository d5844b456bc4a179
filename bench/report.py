"""Reports: rows as a table for a terminal, and as tables in docs/benchmarks.md."""

import platform
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from bench import cores
from bench.rows import Row, Skipped

__all__ = ["machine", "markdown", "table", "write"]

HEADER = ("", "value", "unit", "floor", "ratio", "target", "verdict")
LIBRARIES = (
    *("agentix-runtime", "starlette", "hypercorn", "aiohttp", "pydantic", "swe-rex"),
    *("agentix-oanix", "wasmtime"),
)


def table(rows: Sequence[Row | Skipped]) -> str:
    """Gives rows as lines of aligned columns."""
    cells = [HEADER, *map(_cells, rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEADER))]
    return "\n".join(_line(row, widths) for row in cells)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    left = {0, 2, 5, 6}
    padded = (
        cell.ljust(width) if column in left else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join(padded).rstrip()


def _cells(row: Row | Skipped) -> tuple[str, ...]:
    match row:
        case Skipped(name, reason):
            return (name, "", "", "", "", "", f"skipped: {reason}")
        case Row():
            ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
            numbers = (_number(row.value), row.unit, _number(row.floor), ratio)
            return (row.name, *numbers, row.target, row.verdict)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    digits = 0 if abs(value) >= 100 or value == int(value) else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def markdown(rows: Sequence[Row | Skipped]) -> str:
    """Gives rows as a table of Markdown."""
    lines = [HEADER, ("---", "---:", "---", "---:", "---:", "---", "---"), *map(_cells, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def machine() -> str:
    """Tells what it was measured on, and with what."""
    processor = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    libraries = ", ".join(f"{name} {_version(name)}" for name in LIBRARIES)
    return "\n".join(
        [
            f"- Date: {datetime.now(UTC):%Y-%m-%d}",
            f"- Machine: {len(cores.CORES)} cores of {processor[1] if processor else 'unknown'},"
            f" {_memory()} GiB; {cores.describe()}",
            f"- Kernel: {platform.system()} {platform.release()}",
            f"- Python {platform.python_version()}; {libraries}",
        ]
    )


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except ModuleNotFoundError:
        return "not installed"


def _memory() -> int:
    match = re.search(r"^MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    return round(int(match[1]) / 1024 / 1024) if match else 0


def write(file: Path, tables: Mapping[str, Sequence[Row | Skipped]]) -> None:
    """Puts tables, and the machine, between their marks in a file.

    Args:
        file: Holds `<!-- NAME -->` and `<!-- /NAME -->` around each table, and around `machine`.
        tables: The rows of each part that ran, by its name.
    """
    text = file.read_text(encoding="utf-8")
    contents = {"machine": machine(), **{name: markdown(rows) for name, rows in tables.items()}}
    for name, content in contents.items():
        start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        before, _, rest = text.partition(start)
        _, _, after = rest.partition(end)
        text = f"{before}{start}\n{content}\n{end}{after}"
    file.write_text(text, encoding="utf-8")
