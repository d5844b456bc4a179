"""Handlers: where a listener's code is, how it is asked to run, and what holds it while it does."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from agentix.agentserver.errors import FailureKind
from agentix.agentserver.worker.protocol import CallOutcome

if TYPE_CHECKING:
    pass

__all__ = [
    "FAILURE_KINDS",
    "DescribedListener",
    "HandlerSource",
    "Handlers",
    "Isolation",
    "IsolationReport",
    "Mitigation",
    "WorkerSettings",
]


@dataclass(frozen=True, slots=True)
class Mitigation:
    """One way in which a worker is held."""

    name: str
    """Its name, such as `own uid` or `no network`."""
    applied: bool
    """It is in force."""
    detail: str = ""
    """How it is in force, or why it is not."""

    def __str__(self) -> str:
        state = "applied" if self.applied else "NOT APPLIED"
        return f"{self.name}: {state}" + (f" ({self.detail})" if self.detail else "")


@dataclass(frozen=True, slots=True)
class IsolationReport:
    """What holds the handlers of an organism."""

    isolation: str
    """`thread`, `listener` or `inprocess`."""
    measures: tuple[Mitigation, ...] = ()
    """All measures, in the order in which they are applied."""

    @property
    def missing(self) -> tuple[Mitigation, ...]:
        """The measures that could not be applied."""
        return tuple(measure for measure in self.measures if not measure.applied)

    def lines(self) -> list[str]:
        """Return the report as text, a line for the isolation and one for each measure."""
        return [f"isolation: {self.isolation}", *map(str, self.measures)]


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


@dataclass(frozen=True, slots=True)
class HandlerSource:
    """Where the code of a listener is."""

    name: str
    """The registered name of the listener."""
    handler: str
    """The import path of the handler, `package.module.attribute`."""
    payload_classes: tuple[str, ...]
    """The import paths of the classes that it takes: its payload class, then its reply classes."""
    agent: bool = False
    """The handler is told its own name."""


@dataclass(frozen=True, slots=True)
class DescribedListener:
    """What the code of a listener says of itself; a worker said it, so it is not to be trusted."""

    records: tuple[dict[str, Any], ...]
    """The description of each payload class as plain data, in the order of the source."""


FAILURE_KINDS = {
    CallOutcome.WRONG_TYPE: FailureKind.WRONG_TYPE,
    CallOutcome.RAISED: FailureKind.RAISED,
    CallOutcome.OVERSIZED: FailureKind.OVERSIZED,
    CallOutcome.REFUSED: FailureKind.RAISED,
}
"""What an outcome that is no value means to the pump."""


class Handlers(Protocol):
    """Runs the code of listeners: isolated in workers, or in the process of the pump."""

    async def describe(self, source: HandlerSource) -> DescribedListener:
        """Import a listener's code and describe what it takes.

        Raises:
            RegistrationError: It cannot be imported, or does not fit the contract; the message
                names the path.
        """
        ...

    async def call(
        self,
        source: HandlerSource,
        thread_id: str,
        payload_class: int,
        payload: dict[str, Any],
        deadline: float,
    ) -> bytes:
        """Return what a handler returns; calls of one listener and thread follow one another.

        Args:
            source: The listener.
            thread_id: The thread, as the handler is told it.
            payload_class: Which class of the source the payload is of.
            payload: The payload as plain values.
            deadline: How long the handler may take, in seconds, from when it is given the call.

        Raises:
            HandlerFailed: It returned no bytes, or not in time.
        """
        ...

    async def forget(self, name: str, thread_id: str) -> None:
        """End what a listener has of a thread, its memory included."""
        ...

    async def unregister(self, name: str) -> None:
        """End all that a listener has."""
        ...

    def report(self) -> IsolationReport:
        """Say what holds the handlers, and what could not be applied."""
        ...

    async def aclose(self) -> None:
        """End everything."""
        ...
