"""Landlock: what a worker may open, which no later act of it can widen (landlock(7))."""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable

from agentix.agentserver.worker.kernel import KernelError, system_call

__all__ = ["Access", "restrict", "version"]

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""These numbers are the same on all machines."""

VERSION_FLAG = 1
PATH_BENEATH = 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = (1 << bit for bit in range(4))
TRUNCATE = 1 << 14
ALL_OF_FILES = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""The rights on files that each version of the interface knows."""

TCP = {4: 0b11}
"""Binding and connecting."""

SCOPES = {6: 0b11}
"""Abstract Unix sockets and signals, which then stay among the processes of one worker."""

READING = READ_FILE | READ_DIR
SCRATCH = sum(1 << bit for bit in (1, 2, 3, 4, 5, 7, 8, 12, 13, 14))
"""Reading, writing, making and removing files, directories and links; no devices, no sockets."""

FOR_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE
"""The rights that a rule on something other than a directory may have."""

Access = tuple[str, int]
"""A path, and the rights below it."""


def version() -> int:
    """Gives the version of the kernel's interface; 0 where there is none."""
    try:
        return system_call(CREATE_RULESET, "landlock_create_ruleset", None, 0, VERSION_FLAG)
    except KernelError:
        return 0


def restrict(accesses: Iterable[Access]) -> None:
    """Leaves this process only these rights on files, no TCP, and no one to signal.

    Raises:
        KernelError: The kernel has no Landlock, or refuses a rule.
    """
    known = version()
    files = _newest(ALL_OF_FILES, known)
    attributes = struct.pack("=QQQ", files, _newest(TCP, known), _newest(SCOPES, known))
    size = 24 if known >= 6 else 16 if known >= 4 else 8
    ruleset = system_call(CREATE_RULESET, "landlock_create_ruleset", attributes, size, 0)
    for path, rights in accesses:
        _allow(ruleset, path, rights & files)
    system_call(RESTRICT_SELF, "landlock_restrict_self", ruleset, 0)
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what can not be opened needs no right
    if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
        rights &= FOR_FILES
    rule = struct.pack("=Qi", rights, descriptor)
    system_call(ADD_RULE, f"landlock_add_rule({path})", ruleset, PATH_BENEATH, rule, 0)
    os.close(descriptor)


def _newest(table: dict[int, int], known: int) -> int:
    """Gives the value of the newest version that the kernel has."""
    return table.get(max((number for number in table if number <= known), default=0), 0)
