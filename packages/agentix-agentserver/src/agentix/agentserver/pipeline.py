"""Pipelines: the ordered steps that a message goes through, which can be replaced."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentix.agentserver.xml.huh import CannedText

if TYPE_CHECKING:
    from lxml.etree import _Element

    from agentix.agentserver.principal import Principal
    from agentix.agentserver.scheduler import Exchange, Target
    from agentix.agentserver.threads import Thread

__all__ = ["Failure", "MessageState", "Pipeline", "Step"]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a message goes no further."""

    text: CannedText | None
    """The canned text that its sender is told; `None` where it is told nothing."""
    detail: str
    """The reason for the log, which never travels."""
    security: bool = False
    """Whether it is recorded as a security event."""


@dataclass(slots=True)
class MessageState:
    """One message on its way; each step reads it and fills in what it finds."""

    raw_bytes: bytes
    """The envelope, as it came or as the pump built it."""
    exchange: "Exchange"
    """What is under way for the external message that this one follows from."""
    principal: "Principal | None" = None
    """The external sender; `None` for what a listener or the pump sends."""
    emitter: "Thread | None" = None
    """The thread whose handler emitted it; `None` for what comes from outside or from core."""
    attempt: "_Element | bytes | None" = None
    """What a `<huh>` about it quotes, where that is not all of `raw_bytes`."""
    is_huh: bool = False
    """Whether it is a `<huh>` of the pump; about such a one no other is sent."""
    from_id: str = ""
    """Who sent it, as the pump knows; set by the pump for what it sends itself."""
    envelope_tree: "_Element | None" = None
    """The envelope, parsed."""
    payload_tree: "_Element | None" = None
    """The payload element."""
    to: str | None = None
    """The `<to>` of the envelope."""
    canonical: bytes = b""
    """The canonical bytes of the envelope, which the audit log keeps."""
    repairs: tuple[str, ...] = ()
    """What was repaired on the way in."""
    payload: dict[str, Any] | None = None
    """The fields of the payload as plain values."""
    thread_id: str = ""
    """The UUID of the thread in the envelope."""
    thread: "Thread | None" = None
    """That thread."""
    target_listeners: "tuple[Target, ...]" = ()
    """Where it goes; empty for what leaves the organism."""
    target: "Target | None" = None
    """The one of them whose pipeline it is in."""
    system: bool = False
    """Whether it is for the system pipeline, not for a listener."""
    error: Failure | None = None
    """Why it goes no further."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """What steps tell each other."""


Step = Callable[[MessageState], Awaitable[None]]
"""One step: it reads the state, and sets `error` to stop the message."""


class Pipeline:
    """An ordered list of steps; the first that sets an error, or raises, is the last.

    Args:
        steps: The steps; a step is found again by the name of its function.
    """

    def __init__(self, steps: Iterable[Step]) -> None:
        self._steps = tuple(steps)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the steps, in their order."""
        return tuple(map(_name_of, self._steps))

    def replace(self, name: str, *steps: Step) -> None:
        """Puts other steps in the place of one; none removes it.

        Raises:
            KeyError: There is no step of that name.
        """
        if name not in self.names:
            raise KeyError(name)
        index = self.names.index(name)
        self._steps = (*self._steps[:index], *steps, *self._steps[index + 1 :])

    def insert(self, index: int, step: Step) -> None:
        """Puts a step before the one at an index; messages under way keep the steps they had."""
        self._steps = (*self._steps[:index], step, *self._steps[index:])

    async def run(self, state: MessageState) -> None:
        """Takes a message through the steps; one that has failed before goes through them all."""
        before = state.error
        for step in self._steps:
            await step(state)
            if state.error is not before:
                return


def _name_of(step: Step) -> str:
    return getattr(step, "__name__", type(step).__name__)
