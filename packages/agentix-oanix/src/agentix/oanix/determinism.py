"""The time and the random bytes of a run: the machine's, or its own where it is deterministic."""

import os
import random
import time
from collections.abc import Callable
from contextvars import ContextVar

__all__ = [
    "CLOCK",
    "ENTROPY",
    "VIRTUAL_START",
    "VirtualClock",
    "now",
    "seeded",
]


VIRTUAL_START = 1_577_836_800_000_000_000
"""Where a virtual clock starts: 2020-01-01T00:00:00Z in nanoseconds since 1970."""

CLOCK: ContextVar[Callable[[], int]] = ContextVar("CLOCK", default=time.time_ns)
"""The clock of the calling run."""


def now() -> int:
    """Return the current run's time in nanoseconds since 1970."""
    return CLOCK.get()()


class VirtualClock:
    """A clock that moves by a fixed step each time it is asked, and by the waits of its program."""

    STEP = 1_000
    """Nanoseconds that pass between two questions."""

    def __init__(self) -> None:
        self.elapsed = 0
        """Nanoseconds since the start."""

    def realtime(self) -> int:
        """Return nanoseconds since 1970."""
        return VIRTUAL_START + self.monotonic()

    def monotonic(self) -> int:
        """Return nanoseconds since the start of the run."""
        self.elapsed += self.STEP
        return self.elapsed

    def stamp(self) -> int:
        """Return the time for a file's stamp, without letting time pass."""
        return VIRTUAL_START + self.elapsed

    def visible(self, stamp: int) -> int:
        """Hide a file's stamp that lies in the run's future, as those of the real clock do."""
        return stamp if stamp <= VIRTUAL_START + self.elapsed else VIRTUAL_START


ENTROPY: ContextVar[Callable[[int], bytes]] = ContextVar("ENTROPY", default=os.urandom)
"""Returns a number of random bytes of the calling run."""


def seeded(seed: int) -> Callable[[int], bytes]:
    """Return a source of the same bytes for the same seed; not for secrets."""
    return random.Random(seed).randbytes  # noqa: S311 - reproducible by intent
