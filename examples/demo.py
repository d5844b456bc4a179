"""The whole of Agentix in one run: a sandbox, typed calls, a stream, a command, two files.

    python examples/demo.py local --bundles DIRECTORY
    python examples/demo.py docker --image TASK_IMAGE

`make demo` prepares what either needs.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

from agentix import (
    Deployment,
    DockerDeployment,
    LocalDeployment,
    RuntimeClient,
    SandboxConfig,
)
from agentix_namespaces import mock_agent, mock_dataset

T = TypeVar("T")


async def timed(step: str, work: Awaitable[T]) -> T:
    """Waits for a step and prints how long it took."""
    started = time.perf_counter()
    result = await work
    print(f"{(time.perf_counter() - started) * 1000:8.1f} ms  {step}")
    return result


async def main(deployment: Deployment, image: str) -> None:
    """Boots a sandbox with both mock namespaces and uses all that a client offers."""
    config = SandboxConfig(image=image, namespaces=[mock_agent, mock_dataset])
    async with deployment:
        sandbox = await timed("create a sandbox", deployment.create(config))
        async with RuntimeClient(sandbox.runtime_url, token=sandbox.token) as client:
            await solve_a_task(client)
            await stream_an_answer(client)
            await move_a_file(client)
        await timed("delete the sandbox", deployment.delete(sandbox.id))


async def solve_a_task(client: RuntimeClient) -> None:
    """Calls two namespaces and the shell between them, as an evaluation does."""
    workdir = Path("/workspace/task")
    task = await timed(
        "mock_dataset.setup: the first call imports the namespace",
        client.remote(mock_dataset.setup, "greet", workdir=workdir),
    )
    result = await timed(
        "mock_agent.run", client.remote(mock_agent.run, task.instruction, workdir=str(workdir))
    )
    print(f"{'':13}{result}")
    command = await timed("a shell command", client.run("echo hello > ANSWER", cwd=str(workdir)))
    print(f"{'':13}exit code {command.exit_code}")
    score = await timed("mock_dataset.score", client.remote(mock_dataset.score, "greet", workdir))
    print(f"{'':13}{score}")


async def stream_an_answer(client: RuntimeClient) -> None:
    """Iterates over a streaming stub."""
    started = time.perf_counter()
    prompt = "a stream is iterated, token by token"
    tokens = [token.text async for token in client.remote(mock_agent.chat, prompt)]
    print(f"{(time.perf_counter() - started) * 1000:8.1f} ms  mock_agent.chat: {tokens}")


async def move_a_file(client: RuntimeClient) -> None:
    """Uploads a file and downloads it again."""
    content = b"x" * 1024 * 1024
    with tempfile.TemporaryDirectory() as directory:
        target = Path(directory) / "copy"
        await timed("upload 1 MiB", client.upload(content, "data/file"))
        await timed("download it", client.download("data/file", target))
        print(f"{'':13}{'the same' if target.read_bytes() == content else 'DIFFERENT'}")


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("deployment", choices=["local", "docker"])
    parser.add_argument("--bundles", type=Path, help="where bundles lie (local)")
    parser.add_argument("--image", default="/", help="the task image (/ is this machine's root)")
    return parser.parse_args()


if __name__ == "__main__":
    arguments = parse_arguments()
    if arguments.deployment == "docker":
        asyncio.run(main(DockerDeployment(), arguments.image))
    else:
        asyncio.run(main(LocalDeployment(bundles=arguments.bundles), arguments.image))
