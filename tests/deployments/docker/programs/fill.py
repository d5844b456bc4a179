"""Fills the volume of an image, given as the argument, when a line comes on standard input.

Prints `waiting`, and after the fill how many files this process can read in the volume.
"""

import asyncio
import sys

from agentix.docker.engine import Engine
from agentix.docker.volumes import ClosureVolumes
from tests.deployments.docker.closure_images import files_in_volume


async def main(reference: str, busybox: str) -> None:
    engine = Engine.from_environ()
    image = await engine.image(reference)
    print("waiting", flush=True)
    sys.stdin.readline()
    volume = await ClosureVolumes(engine).ensure(image, "/nix/entry/manifest.json")
    print(files_in_volume(volume, busybox), flush=True)
    await engine.close()


asyncio.run(main(*sys.argv[1:]))
