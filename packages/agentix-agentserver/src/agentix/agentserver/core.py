"""The pump's own vocabulary: its namespaces, its primitives, and the reply that agents receive."""

from enum import Enum
from typing import Final

from agentix.agentserver.xmlify import xmlify

__all__ = [
    "CORE_NAMESPACE",
    "ENVELOPE_NAMESPACE",
    "META_NAMESPACE",
    "PRIVILEGED_NAMESPACE",
    "Primitive",
    "Reply",
    "primitive",
]

ENVELOPE_NAMESPACE: Final = "https://xml-pipeline.org/ns/envelope/v1"
CORE_NAMESPACE: Final = "https://xml-pipeline.org/ns/core/v1"
META_NAMESPACE: Final = "https://xml-pipeline.org/ns/meta/v1"
PRIVILEGED_NAMESPACE: Final = "https://xml-pipeline.org/privileged-msg"


class Primitive(Enum):
    """The elements by which a handler speaks to the pump, with or without the core namespace."""

    TODO_UNTIL = "todo-until"
    """Comes back to its emitter."""
    RETURN = "return"
    """Goes to the parent and ends what is below the emitter."""
    HALT = "halt"
    """Goes to the parent and ends the emitter too."""


PRIMITIVES: Final = {
    tag: kind for kind in Primitive for tag in (kind.value, f"{{{CORE_NAMESPACE}}}{kind.value}")
}


def primitive(tag: str) -> Primitive | None:
    """Gives the primitive that a tag in Clark notation names; None for any other tag."""
    return PRIMITIVES.get(tag)


@xmlify
class Reply:
    """What an agent without a `reply_class` receives when one that it called answers."""

    tag: str
    """The tag of the answer."""
    xml: str
    """The answer as canonical XML."""
