"""Owns two sandboxes until it is killed.

    own.py CONTROL_ROOT IMAGE LEASE_SECONDS

Prints the ids of the sandboxes, one a line.
"""

import asyncio
import sys
from pathlib import Path

from agentix.deployment import SandboxConfig
from agentix.docker import DockerDeployment


async def main(control_root: str, image: str, lease: str) -> None:
    async with DockerDeployment(control_root=Path(control_root), lease=float(lease)) as deployment:
        for _ in range(2):
            sandbox = await deployment.create(SandboxConfig(image=image))
            print(sandbox.id, flush=True)
        await asyncio.Event().wait()


asyncio.run(main(*sys.argv[1:]))
