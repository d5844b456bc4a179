"""What builds keep in their cache, and for how long."""

import os
import time
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from agentix.namespace_sdk.store import remove

__all__ = ["KEPT_SECONDS", "forget_unused", "mark_used"]

KEPT_SECONDS = 30 * 24 * 3600.0
"""How long something is kept that no build uses."""

KEPT = (
    "docker/*",
    "images/**/*.json",
    "images/**/*.tar",
    "plain/.making-*",
    "plain/nix/store/*",
    "sboms/*",
    "wheels/*",
)
"""What is kept or removed as a whole, below the cache."""


def mark_used(paths: Iterable[Path]) -> None:
    """Notes that a build uses files or directories now.

    A directory gets another time of modification, as listing one changes the time of access; a
    file, which is as it was written, the latter.
    """
    now = time.time_ns()
    for path in paths:
        os.utime(path, ns=(now, now if path.is_dir() else path.stat().st_mtime_ns))


def forget_unused(cache: Path) -> None:
    """Removes what no build has made or used for `KEPT_SECONDS`; the caller holds the cache."""
    before = time.time() - KEPT_SECONDS
    for path in list(chain.from_iterable(map(cache.glob, KEPT))):
        if _last_used(path) < before:
            remove(path)


def _last_used(path: Path) -> float:
    status = path.lstat()
    return status.st_mtime if path.is_dir() else max(status.st_atime, status.st_mtime)
