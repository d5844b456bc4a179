"""Sandboxes as containers of a Docker engine."""

from agentix.docker.container import TASK_CAPABILITIES
from agentix.docker.deployment import DockerDeployment

__all__ = ["TASK_CAPABILITIES", "DockerDeployment"]
