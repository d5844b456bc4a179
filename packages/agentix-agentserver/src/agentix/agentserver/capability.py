"""Capabilities: listeners as their callers know them."""

from collections.abc import Sequence
from dataclasses import dataclass

from agentix.agentserver.payload import PayloadCodec
from agentix.agentserver.registry import Listener

__all__ = ["Capability", "capability_of", "group_capability", "peer_capability"]


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
        return Capability(
            listener.name, listener.description, listener.root, b"", "", _open_prompt(listener)
        )
    return Capability(
        name=listener.name,
        description=listener.description,
        root_tag=listener.root,
        xsd=codec.xsd,
        example=codec.example(),
        prompt=codec.prompt(listener.name, listener.description),
    )


def group_capability(members: Sequence[Listener]) -> Capability:
    """Gives a broadcast group as its callers know it: by one root tag, which all members answer."""
    first = members[0]
    assert first.group is not None
    assert first.group_root is not None
    assert first.codecs[0] is not None
    codec = PayloadCodec(first.group_root, first.codecs[0].record)
    description = " ".join(member.description for member in members)
    return Capability(
        name=first.group,
        description=description,
        root_tag=codec.root,
        xsd=codec.xsd,
        example=codec.example(),
        prompt=codec.prompt(first.group, f"{description} (Answers come from {len(members)}.)"),
    )


def _open_prompt(listener: Listener) -> str:
    """Tells a model of a listener that takes several payloads: another organism's."""
    return (
        f"Tool: {listener.name}\nDescription: {listener.description}\n"
        f"Input: an element of the other side, with {listener.root!r} before its name\n"
    )


def peer_capability(name: str, found: Sequence[Listener]) -> Capability:
    """Gives the capability behind a peer: a listener, or the members of a group."""
    if found[0].group == name:
        return group_capability(found)
    return capability_of(found[0])
