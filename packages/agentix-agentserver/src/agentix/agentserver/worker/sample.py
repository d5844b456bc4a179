"""A sample of what a worker is for: a spare one loads and calls it while it waits for its order.

What that takes of memory is then in the worker, where the first handler finds it.
"""

from agentix.agentserver.metadata import HandlerMetadata
from agentix.agentserver.xmlify import xmlify

__all__ = ["Sample", "handle"]


@xmlify
class Sample:
    """A number and a text."""

    number: int = 0  # the number
    text: str | None = None  # the text


async def handle(payload: Sample, metadata: HandlerMetadata) -> bytes:
    """Answers with the number."""
    return f"<result>{payload.number}</result>".encode()
