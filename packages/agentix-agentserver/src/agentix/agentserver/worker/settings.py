"""Settings: how handlers are isolated, and how much a worker may use."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Isolation", "WorkerSettings"]

MEBIBYTE = 1024 * 1024


class Isolation(StrEnum):
    """What shares a process."""

    THREAD = "thread"
    """Each thread of each listener has a worker."""
    LISTENER = "listener"
    """All threads of a listener share a worker, and with it the memory of their handler."""
    INPROCESS = "inprocess"
    """All handlers share the process of the pump. Nothing is isolated: for development only."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How handlers are isolated, and how much a worker may use."""

    isolation: Isolation = Isolation.THREAD
    """What shares a process."""
    preload: tuple[str, ...] = ()
    """Trusted modules that every worker has from its start; handlers do not belong here."""
    path: tuple[str, ...] = ()
    """Directories that handlers are imported from, before those of the pump's own path."""
    readable: tuple[str, ...] = ()
    """Further files and directories that workers may read."""
    hidden: tuple[str, ...] = ()
    """Files and directories under readable ones that workers must not read, such as keys."""
    workers: int = 256
    """How many workers live at once; the one idle for longest makes room for the next."""
    spares: int = 2
    """How many workers are forked and held ahead of need."""
    idle: float = 600.0
    """After how many seconds without a call a worker is ended."""
    output: int = MEBIBYTE
    """How many bytes a handler may return."""
    memory: int = 1024 * MEBIBYTE
    """The address space of a worker, in bytes."""
    cpu: int = 3600
    """The processor time of a worker over its life, in seconds."""
    processes: int = 32
    """How many processes and threads a worker may have."""
    open_files: int = 64
    """How many files a worker may have open."""
    file_size: int = 16 * MEBIBYTE
    """How large a file a worker may write, in bytes, and how much its scratch directory holds."""
