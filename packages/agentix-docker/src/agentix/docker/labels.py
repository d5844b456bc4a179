"""The labels on everything that a Docker deployment makes."""

from typing import Literal

from agentix.docker.owner import Owner

__all__ = [
    "DEPLOYMENT",
    "DIGEST",
    "OWNER",
    "ROLE",
    "closure_labels",
    "keeper_labels",
    "network_labels",
    "sandbox_labels",
]

ROLE = "org.agentix.role"
"""What a thing is: `sandbox`, `keeper`, `network`, `volume`, or the `holder` of a volume."""
DEPLOYMENT = "org.agentix.deployment"
"""The deployment that made a sandbox."""
OWNER = "org.agentix.owner"
"""The process that a sandbox must not outlive."""
DIGEST = "org.agentix.digest"
"""The digest of the image that a volume was filled from."""


def sandbox_labels(deployment: str, owner: Owner) -> dict[str, str]:
    """Return the labels of a sandbox's container."""
    return {ROLE: "sandbox", DEPLOYMENT: deployment, OWNER: str(owner)}


def closure_labels(role: Literal["holder", "volume"], digest: str) -> dict[str, str]:
    """Return the labels of a closure's volume, or of the container that holds it."""
    return {ROLE: role, DIGEST: digest}


def keeper_labels() -> dict[str, str]:
    """Return the labels of the container that ends what owners leave."""
    return {ROLE: "keeper"}


def network_labels() -> dict[str, str]:
    """Return the labels of the network that sandboxes are on."""
    return {ROLE: "network"}
