"""Agentix sandboxes made by the local kernel alone, without Docker."""

from agentix.local.deployment import Isolation, LocalDeployment

__all__ = ["Isolation", "LocalDeployment"]
