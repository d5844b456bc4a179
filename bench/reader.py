"""Reads a stream that never ends, in a process of its own.

python -m bench.reader URL TOKEN
"""

import asyncio
import sys

from agentix import RuntimeClient
from bench import stubs


async def main(url: str, token: str) -> None:
    """Reads until it is ended; says so at the first item."""
    async with RuntimeClient(url, token=token) as client:
        items = client.remote(stubs.forever)
        await anext(items)
        print("reading", flush=True)
        async for _ in items:
            pass


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
