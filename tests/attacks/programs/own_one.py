"""Owns one sandbox in which something bad goes on, until it is killed.

    own_one.py IMPORTS EXPRESSION CONFIG ACT

`EXPRESSION` makes the deployment after `IMPORTS`; `CONFIG` is a SandboxConfig in JSON. `ACT` is
`nothing`, `fork` (the owner has a forked child, which outlives it), `stop` (the task stops the
runtime) or `block` (a call of the namespace `blocker` holds the runtime's event loop). Prints the
sandbox's id once that goes on.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

from agentix.client import RuntimeClient
from agentix.deployment import Deployment, SandboxConfig

sys.path.append(str(Path(__file__).parents[2] / "namespaces" / "blocker"))

from agentix_namespaces import blocker

STOP = "kill -STOP $PPID"
LONG = 600.0
LIFE_OF_FORK = 60


async def main(imports: str, expression: str, config: str, act: str) -> None:
    names: dict[str, object] = {}
    exec(imports, names)
    deployment = eval(expression, names)
    assert isinstance(deployment, Deployment)
    async with (
        deployment,
        deployment.session(SandboxConfig.model_validate_json(config)) as sandbox,
        RuntimeClient(sandbox.runtime_url, token=sandbox.token) as client,
    ):
        bad = asyncio.create_task(do(client, act))
        # The runtime answers no more once it is stopped or its loop is held.
        while act in ("stop", "block") and await answers(client):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        if act == "fork" and os.fork() == 0:
            os.close(sys.stdout.fileno())
            signal.alarm(LIFE_OF_FORK)
            signal.pause()
        print(sandbox.id, flush=True)
        await asyncio.Event().wait()
        bad.cancel()


async def do(client: RuntimeClient, act: str) -> None:
    match act:
        case "stop":
            await client.run(STOP)
        case "block":
            await client.remote(blocker.block, LONG)


async def answers(client: RuntimeClient) -> bool:
    try:
        async with asyncio.timeout(0.5):
            await client.health()
    except TimeoutError:
        return False
    return True


asyncio.run(main(*sys.argv[1:]))
