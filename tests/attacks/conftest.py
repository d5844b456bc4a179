"""What attacks need: the deployments that the conformance suite runs against."""

from tests.deployments.conftest import (
    deployment,
    docker_target,
    host_bundles,
    local_target,
    target,
)

__all__ = ["deployment", "docker_target", "host_bundles", "local_target", "target"]
