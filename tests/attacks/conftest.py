"""What attacks need: the deployments that the conformance suite runs against."""

from tests.deployments.conftest import (
    deployment,
    docker_target,
    host_bundles,
    local_target,
    target,
)
from tests.deployments.local.conftest import control, shell_runtime

__all__ = [
    "control",
    "deployment",
    "docker_target",
    "host_bundles",
    "local_target",
    "shell_runtime",
    "target",
]
