"""A pump in a process of its own, to be killed: calls a handler that never answers."""

import asyncio
import sys
from contextlib import suppress
from typing import Any

from agentix.agentserver.errors import HandlerFailed
from agentix.agentserver.worker.handlers import HandlerSource, WorkerSettings
from agentix.agentserver.worker.pool import WorkerPool


async def call(
    workers: WorkerPool, source: HandlerSource, thread: str, plain: dict[str, Any]
) -> None:
    with suppress(HandlerFailed):
        await workers.call(source, thread, 0, plain, 3600)


async def main() -> None:
    sleeper = HandlerSource("x", "plain_handlers.misbehave", ("plain_handlers.Text",))
    leaver = HandlerSource("y", "hostile_handlers.attack", ("hostile_handlers.Attack",))
    async with WorkerPool(WorkerSettings(path=(sys.argv[1],))) as workers:
        await call(workers, leaver, "left", {"name": "leave_child", "target": ""})
        sleeping = asyncio.create_task(call(workers, sleeper, "t", {"text": "sleep"}))
        await call(workers, sleeper, "u", {"text": "nothing"})
        print("ready", flush=True)
        await sleeping


asyncio.run(main())
