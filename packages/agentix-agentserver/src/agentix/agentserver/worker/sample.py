"""A sample of what a worker is for: the fork server loads and calls it before it forks.

What Python writes down the first times, workers then find written.
"""

from agentix.agentserver.payload.types import HandlerMetadata, xmlify

__all__ = ["Sample", "handle"]


@xmlify
class Sample:
    """A number and a text."""

    number: int = 0  # the number
    text: str | None = None  # the text


async def handle(payload: Sample, metadata: HandlerMetadata) -> bytes:
    """Answer with the number."""
    return f"<result>{payload.number}</result>".encode()
