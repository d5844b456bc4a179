"""A pump in a process of its own, to be killed: calls a handler that never answers."""

import asyncio
import sys
from typing import Any

from agentix.agentserver.errors import HandlerFailed
from agentix.agentserver.worker.handlers import HandlerSource, WorkerSettings
from agentix.agentserver.worker.pool import WorkerPool


def begin(
    workers: WorkerPool, source: HandlerSource, thread: str, plain: dict[str, Any]
) -> asyncio.Future[bytes | HandlerFailed]:
    outcome: asyncio.Future[bytes | HandlerFailed] = asyncio.get_running_loop().create_future()
    workers.begin(source, thread, 0, plain, 3600, outcome.set_result)
    return outcome


async def main() -> None:
    sleeper = HandlerSource("x", "plain_handlers.misbehave", ("plain_handlers.Text",))
    leaver = HandlerSource("y", "hostile_handlers.attack", ("hostile_handlers.Attack",))
    async with WorkerPool(WorkerSettings(path=(sys.argv[1],))) as workers:
        await begin(workers, leaver, "left", {"name": "leave_child", "target": ""})
        sleeping = begin(workers, sleeper, "t", {"text": "sleep"})
        await begin(workers, sleeper, "u", {"text": "nothing"})
        print("ready", flush=True)
        await sleeping


asyncio.run(main())
