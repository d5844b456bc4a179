"""A pump in a process of its own, to be killed: calls a handler that never answers."""

import asyncio
import sys

from agentix.agentserver.worker.handlers import HandlerSource
from agentix.agentserver.worker.pool import Workers
from agentix.agentserver.worker.settings import WorkerSettings


async def main() -> None:
    sleeper = HandlerSource("x", "plain_handlers.misbehave", ("plain_handlers.Text",))
    leaver = HandlerSource("y", "hostile_handlers.attack", ("hostile_handlers.Attack",))
    async with Workers(WorkerSettings(path=(sys.argv[1],))) as workers:
        plain = {"name": "leave_child", "target": ""}
        await workers.call(leaver, "left", 0, plain, 10)
        call = workers.call(sleeper, "t", 0, {"text": "sleep"}, 3600)
        task = asyncio.create_task(call)
        await workers.call(sleeper, "u", 0, {"text": "nothing"}, 10)
        print("ready", flush=True)
        await task


asyncio.run(main())
