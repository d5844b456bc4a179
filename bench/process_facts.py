"""What the kernel tells of a process: its processor time and its memory."""

import re
import time
from pathlib import Path

__all__ = ["cpu_seconds", "forget_peak", "peak_bytes", "private_bytes", "resident_bytes"]


def cpu_seconds(pid: int) -> float:
    """Gives the processor time that a process has used, all its threads and no children."""
    # The clock of another process, as clock_getcpuclockid(3) makes it.
    return time.clock_gettime((~pid << 3) | 2)


def resident_bytes(pid: int) -> int:
    """Gives the memory that is in use now (VmRSS)."""
    return _kibibytes(Path(f"/proc/{pid}/status"), "VmRSS") * 1024


def peak_bytes(pid: int) -> int:
    """Gives the most memory that was in use since `forget_peak` (VmHWM)."""
    return _kibibytes(Path(f"/proc/{pid}/status"), "VmHWM") * 1024


def private_bytes(pid: int) -> int:
    """Gives the memory that this process shares with no other."""
    rollup = Path(f"/proc/{pid}/smaps_rollup")
    return (_kibibytes(rollup, "Private_Dirty") + _kibibytes(rollup, "Private_Clean")) * 1024


def forget_peak(pid: int) -> None:
    """Lets the peak start again at what is in use now (proc(5), clear_refs)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _kibibytes(file: Path, name: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+) kB$", file.read_text(), re.MULTILINE)
    assert match is not None
    return int(match[1])
