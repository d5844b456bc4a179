"""The pytest plugin: calls into the namespace under test, in this process or in a sandbox.

| fixture | gives |
|---|---|
| `namespace_source` | the source tree of the namespace: pytest's root directory |
| `mounted` | a client of a runtime in this process, which has the source tree mounted |
| `sandbox_config` | what the sandbox is made of |
| `sandbox` | a client of a sandbox, of the deployment that `--deployment` names |

The fixtures are asynchronous and run by anyio's plugin, which comes with this distribution.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # what a test run without these fixtures need not import
    from agentix.client import RuntimeClient
    from agentix.deployment import Deployment, SandboxConfig

__all__ = [
    "mounted",
    "namespace_bundles",
    "namespace_source",
    "pytest_addoption",
    "sandbox",
    "sandbox_config",
]

TASK_IMAGES = {"local": "/", "docker": "debian:stable-slim"}
"""The task image of each deployment, unless `--task-image` names another one."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options of the fixture `sandbox`."""
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
    """Gives the source tree of the namespace under test; override it where it is elsewhere."""
    return pytestconfig.rootpath


@pytest.fixture
async def mounted(namespace_source: Path) -> "AsyncIterator[RuntimeClient]":
    """Gives a client of a runtime in this process, over the real wire."""
    from agentix.client import RuntimeClient
    from agentix.namespace_sdk.testing import mounted_runtime

    with mounted_runtime(namespace_source) as url:
        async with RuntimeClient(url) as client:
            yield client


@pytest.fixture(scope="session")
def namespace_bundles(namespace_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gives a directory with bundles of the runtime and of the namespace, made without Nix."""
    from agentix.deployment import DEFAULT_RUNTIME
    from agentix.local.bundle import make_namespace_bundle, make_runtime_bundle
    from agentix.namespace_sdk.testing import image_of

    bundles = tmp_path_factory.mktemp("bundles")
    make_runtime_bundle(bundles / DEFAULT_RUNTIME.replace(":", "/"))
    make_namespace_bundle(namespace_source, bundles / image_of(namespace_source).replace(":", "/"))
    return bundles


@pytest.fixture(scope="session")
def sandbox_config(pytestconfig: pytest.Config, namespace_source: Path) -> "SandboxConfig":
    """Gives what the sandbox is made of; override it for limits, or for more namespaces."""
    from agentix.deployment import SandboxConfig
    from agentix.namespace_sdk.testing import image_of

    image = pytestconfig.getoption("task_image") or TASK_IMAGES[_deployment(pytestconfig)]
    return SandboxConfig(image=image, namespaces=(image_of(namespace_source),))


@pytest.fixture
async def sandbox(
    request: pytest.FixtureRequest, sandbox_config: "SandboxConfig"
) -> "AsyncIterator[RuntimeClient]":
    """Gives a client of a sandbox with the namespace, which is deleted after the test."""
    from agentix.client import RuntimeClient

    async with AsyncExitStack() as stack:
        deployment = await stack.enter_async_context(_make_deployment(request))
        made = await stack.enter_async_context(deployment.session(sandbox_config))
        client = RuntimeClient(made.runtime_url, token=made.token)
        yield await stack.enter_async_context(client)


def _deployment(config: pytest.Config) -> str:
    return str(config.getoption("deployment"))


def _make_deployment(request: pytest.FixtureRequest) -> "Deployment":
    """Makes the deployment; the image for Docker was built before, by `agentix-namespace build`."""
    match _deployment(request.config):
        case "docker":
            from agentix.docker import DockerDeployment

            return DockerDeployment(pull=False)
        case _:
            from agentix.local import LocalDeployment

            return LocalDeployment(bundles=request.getfixturevalue("namespace_bundles"))
