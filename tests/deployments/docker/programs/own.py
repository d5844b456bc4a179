"""Owns two sandboxes until it is killed.

    own.py CONTROL_ROOT IMAGE LEASE_SECONDS

Prints the ids of the sandboxes, one a line. The owner claims another boot of the host, so that
no deployment on the engine takes its sandboxes for left behind: they end by their lease alone.
"""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

from agentix.deployment import SandboxConfig
from agentix.docker import DockerDeployment
from agentix.docker.owner import Owner


async def main(control_root: str, image: str, lease: str) -> None:
    async with DockerDeployment(control_root=Path(control_root), lease=float(lease)) as deployment:
        for _ in range(2):
            sandbox = await deployment.create(SandboxConfig(image=image))
            print(sandbox.id, flush=True)
        await asyncio.Event().wait()


elsewhere = replace(Owner.current(), boot="another-boot")
Owner.current = lambda: elsewhere  # type: ignore[method-assign]
asyncio.run(main(*sys.argv[1:]))
