"""What stubs are made from: a runtime that serves, or one started for an image or a bundle."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from agentix.client import RuntimeClient
from agentix.deployment import DEFAULT_RUNTIME, Deployment, SandboxConfig
from agentix.errors import UsageError
from agentix.schema import DescribedNamespace

__all__ = ["Described", "describe"]


@dataclass(frozen=True)
class Described:
    """The namespaces of one target."""

    namespaces: list[DescribedNamespace]
    """Each with its functions."""
    image: str | None = None
    """The reference that callers give for it, where the target is an image."""


async def describe(target: str, runtime: str | None = None, token: str | None = None) -> Described:
    """Asks a runtime what can be called; an image and a bundle get one for as long as that takes.

    Args:
        target: The URL of a runtime, the path of a bundle or of a source tree, or an image.
        runtime: The runtime image for an image; by default that of this release.
        token: The token of a runtime at a URL.

    Raises:
        UsageError: The target is none of these.
        DeploymentError: A sandbox cannot be made of it.
        SandboxGoneError: Nothing answers at the URL.
    """
    if target.startswith(("http://", "https://", "unix:")):
        async with RuntimeClient(target, token=token) as client:
            return Described(await client.namespaces(schemas=True))
    if os.path.isdir(target):  # noqa: ASYNC240, PTH112 - nothing else runs here
        async with _of_directory(Path(target)) as (deployment, config):
            return Described(await _ask(deployment, config))
    if target.startswith(("/", ".", "~")):
        raise UsageError(f"{target}: there is no such directory")
    # The image is its own task image: nothing of that one is used.
    config = SandboxConfig(
        image=target, namespaces=[target], runtime=runtime or DEFAULT_RUNTIME, network="none"
    )
    from agentix.docker import DockerDeployment  # not needed for the others

    return Described(await _ask(DockerDeployment(), config), image=target)


async def _ask(deployment: Deployment, config: SandboxConfig) -> list[DescribedNamespace]:
    async with (
        deployment,
        deployment.session(config) as sandbox,
        RuntimeClient(sandbox.runtime_url, token=sandbox.token) as client,
    ):
        return await client.namespaces(schemas=True)


@asynccontextmanager
async def _of_directory(directory: Path) -> AsyncIterator[tuple[Deployment, SandboxConfig]]:
    """Gives what makes a sandbox of a bundle, or of a source tree."""
    from agentix.local import LocalDeployment
    from agentix.local.bundle import make_namespace_bundle, make_runtime_bundle

    def lay_out(temporary: Path) -> tuple[Path, Path]:
        runtime = make_runtime_bundle(temporary / "runtime")
        if (directory / "entry").is_dir():
            return runtime, directory.absolute()
        return runtime, make_namespace_bundle(directory, temporary / "namespace")

    with tempfile.TemporaryDirectory(prefix="agentix-stubs-") as temporary:
        runtime, bundle = await asyncio.to_thread(lay_out, Path(temporary))
        yield (
            LocalDeployment(),
            SandboxConfig(
                image="/", runtime=str(runtime), namespaces=[str(bundle)], network="none"
            ),
        )
