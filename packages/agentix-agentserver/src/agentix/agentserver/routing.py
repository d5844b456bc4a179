"""Routing: where an element goes that a handler emitted, by its tag alone."""

from enum import Enum

from agentix.agentserver.core import PRIVILEGED_NAMESPACE, Primitive, primitive
from agentix.agentserver.registry import Listener, by_prefix

__all__ = ["Route", "Way", "route"]


class Way(Enum):
    """Where else an element can go."""

    UP = "to the parent"
    """To the parent of the emitter, from the emitter."""
    DROP = "nowhere"
    """A privileged root."""
    REFUSE = "nowhere, and the emitter is told so"
    """A root tag of nobody, or of a listener that is no peer: one cannot tell which."""


Route = tuple[Listener, ...] | Primitive | Way
"""A declared peer, the members of a declared group or the emitter itself; or another way."""

PRIVILEGED = f"{{{PRIVILEGED_NAMESPACE}}}"


def route(emitter: Listener, tag: str) -> Route:
    """Tells where an element of a tag goes that a listener emitted.

    The look-ups are the same for a root tag that does not exist and for one of a listener that is
    no peer, so neither the answer nor its time tells them apart.
    """
    listeners = emitter.routes.get(tag)
    if listeners is not None:
        return listeners
    own = primitive(tag)
    if own is not None:
        return own
    if tag.startswith(PRIVILEGED):
        return Way.DROP
    if "." not in tag.rpartition("}")[2]:
        return Way.UP
    found = by_prefix(emitter.prefixes, tag)
    return found or Way.REFUSE
