"""The random bytes that a program gets: the machine's, or a run's own seeded ones."""

import os
import random
from collections.abc import Callable
from contextvars import ContextVar

__all__ = ["ENTROPY", "seeded"]

ENTROPY: ContextVar[Callable[[int], bytes]] = ContextVar("ENTROPY", default=os.urandom)
"""Returns a number of random bytes of the calling run."""


def seeded(seed: int) -> Callable[[int], bytes]:
    """Return a source of the same bytes for the same seed; not for secrets."""
    return random.Random(seed).randbytes  # noqa: S311 - reproducible by intent
