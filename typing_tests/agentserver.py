# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""What a type checker knows of AgentServer's payload classes; checked, never run."""

from dataclasses import field
from typing import Annotated, assert_type

from agentix.agentserver import HandlerMetadata, Reply, xmlify


@xmlify
class AddPayload:
    """A payload class on which nothing but `@xmlify` stands."""

    a: int
    b: Annotated[int, "the second number"] = 0
    others: list[int] = field(default_factory=list[int])


async def add(payload: AddPayload, metadata: HandlerMetadata) -> bytes:
    """Uses each field as what it is, and makes an instance with what it takes."""
    assert_type(payload.a, int)
    assert_type(payload.others, list[int])
    assert_type(metadata.own_name, str | None)
    assert_type(Reply("result", "<result/>").xml, str)
    assert_type(AddPayload(1, others=[2]), AddPayload)
    AddPayload("1")  # type: ignore[arg-type]
    return str(payload.a + payload.b).encode()
