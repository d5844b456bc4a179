"""The plan: what the pump tells its zygote at the start."""

from __future__ import annotations

from typing import TypedDict

__all__ = ["Plan"]


class Plan(TypedDict):
    """What every worker is to be like. It names no listener."""

    path: list[str]
    """Where modules are imported from."""
    preload: list[str]
    """The trusted modules that every worker has."""
    readable: list[str]
    """What workers may read beside the path and the system's libraries."""
    hidden: list[str]
    """What workers must not read, wherever it is."""
    memory: int
    """The address space, in bytes."""
    cpu: int
    """The processor time, in seconds."""
    processes: int
    """How many processes and threads."""
    open_files: int
    """How many descriptors."""
    file_size: int
    """The size of a file, and of all in the scratch directory, in bytes."""
    scratch: str
    """The directory of the scratch directories, where workers have no root of their own."""
