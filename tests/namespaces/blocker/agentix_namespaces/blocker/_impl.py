"""What the stubs do."""

import time


async def block(seconds: float) -> None:
    time.sleep(seconds)  # noqa: ASYNC251 - that is the point
