"""Handlers: what the pump knows of a listener's code, and how it is asked to run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from agentix.agentserver.errors import AgentServerError
from agentix.agentserver.worker.frame import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentix.agentserver.worker.report import HardeningReport

__all__ = [
    "FAILURES",
    "Described",
    "Done",
    "FailureKind",
    "HandlerFailed",
    "HandlerSource",
    "Handlers",
    "WorkersError",
]


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
class Described:
    """What the code of a listener says of itself; a worker said it, so it is not to be trusted."""

    records: tuple[dict[str, Any], ...]
    """The description of each payload class as plain data, in the order of the source."""


class FailureKind(StrEnum):
    """How a call of a handler failed."""

    WRONG_TYPE = "wrong type"
    """The handler returned something other than `bytes`."""
    RAISED = "raised"
    """The handler, or the construction of its payload, raised an exception."""
    TIMED_OUT = "timed out"
    """The handler did not answer before its deadline; its worker is killed."""
    DIED = "died"
    """The worker ended, or broke the protocol and was killed."""
    OVERSIZED = "oversized"
    """The handler returned more bytes than it may."""


class HandlerFailed(AgentServerError):  # noqa: N818 - an outcome of a call, by the name it has in the logs
    """A call of a handler did not give bytes.

    Args:
        kind: How it failed.
        detail: What is known of it, for the log only: it may hold the handler's own words.
    """

    def __init__(self, kind: FailureKind, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}" if detail else str(kind))
        self.kind = kind
        self.detail = detail

    def __reduce__(self) -> tuple[type[HandlerFailed], tuple[FailureKind, str]]:
        """Lets the error cross process boundaries."""
        return HandlerFailed, (self.kind, self.detail)


FAILURES = {
    Outcome.WRONG_TYPE: FailureKind.WRONG_TYPE,
    Outcome.RAISED: FailureKind.RAISED,
    Outcome.OVERSIZED: FailureKind.OVERSIZED,
    Outcome.REFUSED: FailureKind.RAISED,
}
"""What an outcome that is no value means to the pump."""


Done: TypeAlias = "Callable[[bytes | HandlerFailed], None]"
"""Takes the outcome of a call: the bytes that the handler returned, or how it failed."""


class WorkersError(AgentServerError):
    """Workers can not be had: the process that forks them does not start, or is gone."""


class Handlers(Protocol):
    """Runs the code of listeners: isolated in workers, or in the process of the pump."""

    async def describe(self, source: HandlerSource) -> Described:
        """Imports a listener's code and describes what it takes.

        Raises:
            RegistrationError: It can not be imported, or does not fit the contract; the message
                names the path.
        """
        ...

    def begin(
        self,
        source: HandlerSource,
        thread_id: str,
        payload_class: int,
        payload: dict[str, Any],
        deadline: float,
        done: Done,
    ) -> None:
        """Begins one call of a handler; calls of one listener and thread follow one another.

        Args:
            source: The listener.
            thread_id: The thread, as the handler is told it.
            payload_class: Which class of the source the payload is of.
            payload: The payload as plain values.
            deadline: How long the handler may take, in seconds, from when it is given the call.
            done: Is called with the outcome, once, and not before this returns.
        """
        ...

    async def forget(self, name: str, thread_id: str) -> None:
        """Ends what a listener has of a thread, its memory included."""
        ...

    async def unregister(self, name: str) -> None:
        """Ends all that a listener has."""
        ...

    def report(self) -> HardeningReport:
        """Says what holds the handlers, and what could not be applied."""
        ...

    async def aclose(self) -> None:
        """Ends everything."""
        ...
