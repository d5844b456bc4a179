"""Calls that stand in the way of their runtime."""


async def block(seconds: float) -> None:
    """Hold the runtime's event loop."""
    raise NotImplementedError("call via RuntimeClient.remote(blocker.block, ...)")
