"""Landlock: what a worker may open, which no later act of it can widen (landlock(7))."""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable

from agentix.agentserver.worker.kernel import KernelError, prepare_system_call, system_call

__all__ = ["Access", "Ruleset", "version"]

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


class Ruleset:
    """What a process may open, which holds it when it takes the rules on, and its children.

    It is made where there is time for it; a process that is forked then has it too.

    Raises:
        KernelError: The kernel has no Landlock.
    """

    def __init__(self) -> None:
        known = version()
        self._files = _newest(ALL_OF_FILES, known)
        attributes = struct.pack("=QQQ", self._files, _newest(TCP, known), _newest(SCOPES, known))
        size = 24 if known >= 6 else 16 if known >= 4 else 8
        self._descriptor = system_call(
            CREATE_RULESET, "landlock_create_ruleset", attributes, size, 0
        )

    def allow(self, path: str, rights: int) -> None:
        """Adds rights on a path and all below it.

        Raises:
            KernelError: The kernel refuses the rule.
        """
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return  # what can not be opened needs no right
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= FOR_FILES
        rule = struct.pack("=Qi", rights & self._files, descriptor)
        about = f"landlock_add_rule({path})"
        system_call(ADD_RULE, about, self._descriptor, PATH_BENEATH, rule, 0)
        os.close(descriptor)

    def prepare(self) -> Callable[[], int]:
        """Makes the call that leaves a process only these rights, no TCP, and no one to signal."""
        about = "landlock_restrict_self"
        return prepare_system_call(RESTRICT_SELF, about, self._descriptor, 0)

    def close(self) -> None:
        """Lets go of the rules; whom they hold, they go on to hold."""
        os.close(self._descriptor)


def _newest(table: dict[int, int], known: int) -> int:
    """Gives the value of the newest version that the kernel has."""
    return table.get(max((number for number in table if number <= known), default=0), 0)
