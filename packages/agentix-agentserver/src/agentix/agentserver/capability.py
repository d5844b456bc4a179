"""Capabilities: listeners as their callers know them."""

from dataclasses import dataclass

from agentix.agentserver.registry import Listener

__all__ = ["Capability", "capability_of"]


@dataclass(frozen=True, slots=True)
class Capability:
    """A listener, as its callers know it."""

    name: str
    """Its name."""
    description: str
    """What it is for."""
    root_tag: str
    """The root tag of its payload."""
    xsd: bytes
    """The schema of its payload; empty where it takes several."""
    example: str
    """An example of its payload."""
    prompt: str
    """What a model is told about it."""


def capability_of(listener: Listener) -> Capability:
    """Gives a listener as its callers know it."""
    codec = listener.codecs[0]
    if codec is None:
        return Capability(listener.name, listener.description, listener.root, b"", "", "")
    return Capability(
        name=listener.name,
        description=listener.description,
        root_tag=listener.root,
        xsd=codec.xsd,
        example=codec.example(),
        prompt=codec.prompt(listener.name, listener.description),
    )
