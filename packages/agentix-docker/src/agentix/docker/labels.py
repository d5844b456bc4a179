"""The labels on everything that a Docker deployment makes."""

from typing import Literal

from agentix.docker.owner import Owner

__all__ = ["DEPLOYMENT", "DIGEST", "OWNER", "ROLE", "closure_labels", "sandbox_labels"]

ROLE = "org.agentix.role"
"""What a thing is: `sandbox`, `holder` (of a volume) or `volume`."""
DEPLOYMENT = "org.agentix.deployment"
"""The deployment that made a sandbox."""
OWNER = "org.agentix.owner"
"""The process that a sandbox must not outlive."""
DIGEST = "org.agentix.digest"
"""The digest of the image that a volume was filled from."""


def sandbox_labels(deployment: str, owner: Owner) -> dict[str, str]:
    """Gives the labels of a sandbox's container."""
    return {ROLE: "sandbox", DEPLOYMENT: deployment, OWNER: str(owner)}


def closure_labels(role: Literal["holder", "volume"], digest: str) -> dict[str, str]:
    """Gives the labels of a closure's volume, or of the container that holds it."""
    return {ROLE: role, DIGEST: digest}
