"""A stub package: what a target is described as, written as what `pip install` takes.

A target is a runtime that serves, or an image or a bundle that a runtime is started for.
"""

import asyncio
import json
import os
import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from agentix.client import RuntimeClient
from agentix.deployment import DEFAULT_RUNTIME, Deployment, SandboxConfig
from agentix.errors import UsageError
from agentix.manifest import NamespaceManifest
from agentix.namespace_sdk.stubs.definitions import (
    MODULES,
    name_classes,
    write_classes,
    write_function,
)
from agentix.namespace_sdk.stubs.translator import docstring
from agentix.schema import DescribedNamespace, NamespaceSchemas
from agentix.version import VERSION

__all__ = ["DescribedTarget", "describe", "write_module", "write_stubs"]

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = {name}
version = {version}
description = {description}
requires-python = ">=3.11"
dependencies = ["agentix-core~={agentix}"]

[tool.hatch.build.targets.wheel]
packages = ["agentix_namespaces"]
"""


@dataclass(frozen=True)
class DescribedTarget:
    """The namespaces of one target."""

    namespaces: list[DescribedNamespace]
    """Each with its functions."""
    image: str | None = None
    """The reference that callers give for it, where the target is an image."""


async def describe(
    target: str, runtime: str | None = None, token: str | None = None
) -> DescribedTarget:
    """Ask a runtime what can be called; an image and a bundle get one for as long as that takes.

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
            return DescribedTarget(await client.namespaces(schemas=True))
    if os.path.isdir(target):  # noqa: ASYNC240, PTH112 - nothing else runs here
        async with _of_directory(Path(target)) as (deployment, config):
            return DescribedTarget(await _ask(deployment, config))
    if target.startswith(("/", ".", "~")):
        raise UsageError(f"{target}: there is no such directory")
    # The image is its own task image: nothing of that one is used.
    config = SandboxConfig(
        image=target, namespaces=[target], runtime=runtime or DEFAULT_RUNTIME, network="none"
    )
    from agentix.docker import DockerDeployment  # not needed for the others

    return DescribedTarget(await _ask(DockerDeployment(), config), image=target)


async def _ask(deployment: Deployment, config: SandboxConfig) -> list[DescribedNamespace]:
    async with (
        deployment,
        deployment.session(config) as sandbox,
        RuntimeClient(sandbox.runtime_url, token=sandbox.token) as client,
    ):
        return await client.namespaces(schemas=True)


@asynccontextmanager
async def _of_directory(directory: Path) -> AsyncIterator[tuple[Deployment, SandboxConfig]]:
    """Yield what makes a sandbox of a bundle, or of a source tree."""
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


def write_stubs(described: DescribedTarget, directory: Path | None) -> list[Path]:
    """Write a distribution with the stubs of all namespaces.

    Args:
        described: The namespaces.
        directory: Where it goes; by default `<name>-stubs` here.

    Returns:
        The directory of each package.

    Raises:
        UsageError: A namespace could not be described, or its impl is where its stubs would go.
    """
    manifests = [namespace.manifest for namespace in described.namespaces]
    modules = [_module(namespace, described.image) for namespace in described.namespaces]
    name = f"{manifests[0].name}-stubs" if len(manifests) == 1 else "agentix-stubs"
    directory = directory or Path(re.sub(r"[^\w.-]", "-", name))
    packages = [directory.joinpath(*manifest.package.split(".")) for manifest in manifests]
    for package in packages:
        if (package / "_impl.py").exists() or (package / "_register.py").exists():
            raise UsageError(f"{package} is a namespace itself: give another --output")
    for package, text in zip(packages, modules, strict=True):
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text(text, encoding="utf-8")
        (package / "py.typed").touch()
    (directory / "pyproject.toml").write_text(_project(name, manifests), encoding="utf-8")
    return packages


def _module(namespace: DescribedNamespace, image: str | None) -> str:
    if namespace.schemas is None:
        package = namespace.manifest.package
        raise UsageError(f"{package} cannot be described: {namespace.error}")
    return write_module(namespace.manifest, namespace.schemas, image)


def _project(name: str, manifests: list[NamespaceManifest]) -> str:
    described = ", ".join(manifest.package for manifest in manifests)
    return PROJECT.format(
        name=json.dumps(f"agentix-namespace-{name}"),
        version=json.dumps(manifests[0].version),
        description=json.dumps(f"Typed stubs of {described}."),
        agentix=VERSION,
    )


def write_module(manifest: NamespaceManifest, schemas: NamespaceSchemas, image: str | None) -> str:
    """Write the module with the stubs of a namespace.

    Args:
        manifest: What the namespace says of itself.
        schemas: What can be called.
        image: The reference that callers give as the module, where there is one.
    """
    functions = [function.name for function in schemas.functions]
    to_python = name_classes(schemas.definitions, functions)
    classes = write_classes(to_python)
    module = manifest.package.rpartition(".")[2]
    parts = [
        *classes.values(),
        *(write_function(each, module, to_python) for each in schemas.functions),
    ]
    body = "\n\n".join(parts)
    head = docstring(
        f"Stubs of {manifest.name} {manifest.version}, written by agentix-namespace.", ""
    )
    imports = [f"import {name}" for name in MODULES if re.search(rf"\b{name}\.", body)]
    public = [f"    {json.dumps(name)}," for name in sorted([*classes, *functions])]
    lines = [
        head,
        "",
        "from __future__ import annotations",
        "",
        *imports,
        "",
        "__all__ = [",
        *public,
        "]",
    ]
    if image is not None:
        lines += ["", f"__image__ = {json.dumps(image)}"]
    return "\n".join([*lines, "", "", body])
