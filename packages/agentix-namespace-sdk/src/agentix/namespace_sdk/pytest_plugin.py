"""The pytest plugin: calls into the namespace under test, in this process or in a sandbox.

| fixture | is |
|---|---|
| `namespace_source` | the source tree of the namespace: pytest's root directory |
| `mounted` | a client of a runtime in this process, which has the source tree mounted |
| `namespace_image` | the namespace as the deployment takes it, built from the source tree |
| `sandbox_config` | what the sandbox is made of |
| `sandbox_deployment` | the deployment that `--deployment` names |
| `sandbox` | a client of a sandbox of that deployment |

A namespace's `conftest.py` may override each of them: `sandbox_deployment` for a deployment of its
own, and `namespace_image` or `sandbox_config` where that takes namespaces in another form.

Tests that use `mounted` or `sandbox` are coroutines, run by the plugin of anyio, which comes with
this distribution: set `anyio_mode = "auto"` in `[tool.pytest.ini_options]`, as the templates do.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # what a test run without these fixtures need not import
    from agentix.client import RuntimeClient
    from agentix.deployment import Deployment, SandboxConfig

__all__ = [
    "mounted",
    "namespace_image",
    "namespace_source",
    "pytest_addoption",
    "sandbox",
    "sandbox_config",
    "sandbox_deployment",
]

TASK_IMAGES = {"local": "/", "docker": "debian:stable-slim"}
"""The task image of each deployment, unless `--task-image` names another one."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the fixture `sandbox`."""
    group = parser.getgroup("agentix", "Agentix namespaces")
    group.addoption(
        "--deployment",
        choices=tuple(TASK_IMAGES),
        default="local",
        help="what makes the sandbox of the fixture `sandbox`; local by default",
    )
    group.addoption(
        "--task-image",
        metavar="IMAGE",
        help="the task image of the fixture `sandbox`",
    )


@pytest.fixture(scope="session")
def namespace_source(pytestconfig: pytest.Config) -> Path:
    """Return the source tree of the namespace under test; override it where it is elsewhere."""
    return pytestconfig.rootpath


@pytest.fixture
async def mounted(namespace_source: Path) -> "AsyncIterator[RuntimeClient]":
    """Yield a client of a runtime in this process, over the real wire."""
    from agentix.client import RuntimeClient
    from agentix.namespace_sdk.testing import mounted_runtime

    with mounted_runtime(namespace_source) as url:
        async with RuntimeClient(url) as client:
            yield client


@pytest.fixture(scope="session")
def namespace_image(
    pytestconfig: pytest.Config, namespace_source: Path, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """Return the namespace as the deployment takes it: an image that is built now, or a bundle."""
    if _deployment(pytestconfig) == "docker":
        return _build_image(namespace_source)
    from agentix.local.bundle import make_namespace_bundle

    bundles = tmp_path_factory.mktemp("namespace")
    return str(make_namespace_bundle(namespace_source, bundles / "bundle"))


def _build_image(source: Path) -> str:
    """Load the image into Docker, built anew where the source has changed."""
    from agentix.namespace_sdk.build.project import Project
    from agentix.namespace_sdk.command import main

    if main(["build", str(source)]) != 0:
        pytest.fail(f"the image of {source} cannot be built")
    return Project.read(source).tag


@pytest.fixture(scope="session")
def sandbox_config(
    pytestconfig: pytest.Config, namespace_image: str, tmp_path_factory: pytest.TempPathFactory
) -> "SandboxConfig":
    """Return what the sandbox is made of; override it for limits, or for more namespaces."""
    from agentix.deployment import DEFAULT_RUNTIME, SandboxConfig

    chosen = _deployment(pytestconfig)
    runtime = DEFAULT_RUNTIME
    if chosen == "local":
        from agentix.local.bundle import make_runtime_bundle

        runtime = str(make_runtime_bundle(tmp_path_factory.mktemp("runtime") / "bundle"))
    image = pytestconfig.getoption("task_image") or TASK_IMAGES[chosen]
    return SandboxConfig(image=image, runtime=runtime, namespaces=(namespace_image,))


@pytest.fixture
def sandbox_deployment(pytestconfig: pytest.Config) -> "Deployment":
    """Return the deployment that makes the sandbox; override it for one of your own."""
    match _deployment(pytestconfig):
        case "docker":
            from agentix.docker import DockerDeployment

            return DockerDeployment()
        case _:
            from agentix.local import LocalDeployment

            return LocalDeployment()


@pytest.fixture
async def sandbox(
    sandbox_deployment: "Deployment", sandbox_config: "SandboxConfig"
) -> "AsyncIterator[RuntimeClient]":
    """Yield a client of a sandbox with the namespace, which is deleted after the test."""
    from agentix.client import RuntimeClient

    async with (
        sandbox_deployment as deployment,
        deployment.session(sandbox_config) as made,
        RuntimeClient(made.runtime_url, token=made.token) as client,
    ):
        yield client


def _deployment(config: pytest.Config) -> str:
    return str(config.getoption("deployment"))
