"""The listeners that the bench of organisms calls."""

from agentix.agentserver import HandlerMetadata, Reply, xmlify


@xmlify
class AddPayload:
    """Two numbers."""

    a: int = 0  # the first number
    b: int = 0  # the second number


@xmlify
class ProbePayload:
    """The root tag that is to be emitted."""

    root: str


async def add(payload: AddPayload, metadata: HandlerMetadata) -> bytes:
    """Adds, as the contract's example does."""
    result = payload.a + payload.b
    return f"<result>{result}</result>".encode()


async def probe(payload: ProbePayload | Reply, metadata: HandlerMetadata) -> bytes:
    """Emits a root tag, and tells what came of it."""
    if isinstance(payload, Reply):
        return payload.xml.encode()
    return f"<{payload.root}/>".encode()


async def loop(payload: AddPayload, metadata: HandlerMetadata) -> bytes:
    """Never ends by itself."""
    while True:
        pass
