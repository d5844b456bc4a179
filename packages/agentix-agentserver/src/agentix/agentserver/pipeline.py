"""Pipelines: the ordered steps that a message goes through, which can be replaced."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from agentix.agentserver.xml.huh import CannedText

if TYPE_CHECKING:
    from lxml.etree import _Element

    from agentix.agentserver.exchange import Exchange
    from agentix.agentserver.payload import PayloadCodec
    from agentix.agentserver.principal import Principal
    from agentix.agentserver.scheduler import Target
    from agentix.agentserver.threads import Thread

__all__ = ["Failure", "MessageState", "Pipeline", "Step", "from_outside"]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a message goes no further."""

    text: CannedText | None
    """The canned text that its sender is told; `None` where it is told nothing."""
    detail: str
    """The reason for the log, which never travels."""
    security: bool = False
    """Whether it is recorded as a security event."""


class MessageState:
    """One message on its way; each step reads it and fills in what it finds.

    Args:
        raw_bytes: The envelope, as it came or as the pump built it.
        exchange: What is under way for the external message that this one follows from.
        from_id: Who sent it, as the pump knows.
    """

    composed: bool = False
    """Whether the pump composed it, so that its envelope and its way are known already."""
    principal: "Principal | None" = None
    """The external sender; `None` for what a listener or the pump sends."""
    emitter: "Thread | None" = None
    """The thread whose handler emitted it; `None` for what comes from outside or from core."""
    attempt: "_Element | bytes | None" = None
    """What a `<huh>` about it quotes, where that is not all of `raw_bytes`."""
    is_huh: bool = False
    """Whether it is a `<huh>` of the pump; about such a one no other is sent."""
    envelope_tree: "_Element | None" = None
    """The envelope, parsed; `None` for what the pump built, of which only the payload is a tree."""
    payload_tree: "_Element | None" = None
    """The payload element."""
    to: str | None = None
    """The `<to>` of the envelope."""
    canonical: bytes = b""
    """The canonical bytes of the envelope, which the audit log keeps."""
    repairs: tuple[str, ...] = ()
    """What was repaired on the way in."""
    payload: dict[str, Any] | None = None
    """The fields of the payload as plain values, for the target whose pipeline it is in."""
    claimed: str = ""
    """The `<from>` of the envelope, by which nothing is proved."""
    thread_id: str = ""
    """The UUID of the thread in the envelope."""
    thread: "Thread | None" = None
    """That thread."""
    target_listeners: "tuple[Target, ...]" = ()
    """Where it goes; empty for what leaves the organism."""
    target: "Target | None" = None
    """The one of them whose pipeline it is in."""
    codec: "PayloadCodec | None" = None
    """What reads the payload for that one; `None` where it takes any element."""
    system: bool = False
    """Whether it is for the system pipeline, not for a listener."""
    error: Failure | None = None
    """Why it goes no further."""

    def __init__(self, raw_bytes: bytes, exchange: "Exchange", from_id: str) -> None:
        self.raw_bytes = raw_bytes
        """The envelope, as it came or as the pump built it."""
        self.exchange = exchange
        """What is under way for the external message that this one follows from."""
        self.from_id = from_id
        """Who sent it, as the pump knows."""

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """What steps tell each other."""
        return {}


Step = Callable[[MessageState], Awaitable[None] | None]
"""One step: it reads the state, and sets `error` to stop the message. It may be `async def`."""


_S = TypeVar("_S", bound=Callable[..., object])


def from_outside(step: _S) -> _S:
    """Marks a step that has nothing to do for a message that the pump composed itself."""
    step.__dict__["from_outside"] = True
    return step


class Pipeline:
    """An ordered list of steps; the first that sets an error, or raises, is the last.

    Args:
        steps: The steps; a step is found again by the name of its function.
    """

    def __init__(self, steps: Iterable[Step]) -> None:
        self._set(steps)

    def _set(self, steps: Iterable[Step]) -> None:
        self._steps = tuple(steps)
        self._within = tuple(
            step for step in self._steps if not getattr(step, "from_outside", False)
        )

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
        self._set((*self._steps[:index], *steps, *self._steps[index + 1 :]))

    def insert(self, index: int, step: Step) -> None:
        """Puts a step before the one at an index; messages under way keep the steps they had."""
        self._set((*self._steps[:index], step, *self._steps[index:]))

    def run(self, state: MessageState) -> Awaitable[None] | None:
        """Takes a message through the steps; one that has failed before goes through them all.

        Returns:
            What is left to be awaited; `None` where no step waits for anything.
        """
        before = state.error
        steps = iter(self._within if state.composed else self._steps)
        for step in steps:
            waiting = step(state)
            if waiting is not None:
                return _go_on(state, before, waiting, steps)
            if state.error is not before:
                break
        return None


async def _go_on(
    state: MessageState, before: Failure | None, waiting: Awaitable[None], steps: Iterator[Step]
) -> None:
    """Awaits one step, and takes the message through those after it."""
    # A task of its own: what runs here may be no task, or not stay the one that it begins in.
    await asyncio.ensure_future(waiting)
    for step in steps if state.error is before else ():
        following = step(state)
        if following is not None:
            await asyncio.ensure_future(following)
        if state.error is not before:
            break


def _name_of(step: Step) -> str:
    return getattr(step, "__name__", type(step).__name__)
