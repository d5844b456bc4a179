"""Agentix: call an agent inside a sandbox as if it were a function."""

import importlib
import pkgutil
from typing import TYPE_CHECKING

__path__ = pkgutil.extend_path(__path__, __name__)

from agentix.deployment import Deployment, Sandbox, SandboxConfig, SandboxInfo
from agentix.dispatch import Dispatcher
from agentix.errors import (
    AgentixError,
    DeploymentError,
    RemoteCallError,
    SandboxGoneError,
    UsageError,
)
from agentix.manifest import AGENTIX_CLOSURE_ABI, NamespaceManifest

if TYPE_CHECKING:
    from agentix.client import RuntimeClient
    from agentix.docker import DockerDeployment
    from agentix.local import LocalDeployment
else:
    _SIBLINGS = {
        "DockerDeployment": ("agentix.docker", "agentix-docker"),
        "LocalDeployment": ("agentix.local", "agentix-local"),
        "RuntimeClient": ("agentix.client", "agentix-client"),
    }

    def __getattr__(name):
        """Loads a name of a sibling distribution on first use."""
        if name not in _SIBLINGS:
            raise AttributeError(f"module 'agentix' has no attribute {name!r}")
        module, distribution = _SIBLINGS[name]
        try:
            value = getattr(importlib.import_module(module), name)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
            raise ImportError(f"agentix.{name} needs: pip install {distribution}") from error
        globals()[name] = value
        return value


__all__ = [
    "AGENTIX_CLOSURE_ABI",
    "AgentixError",
    "Deployment",
    "DeploymentError",
    "Dispatcher",
    "DockerDeployment",
    "LocalDeployment",
    "NamespaceManifest",
    "RemoteCallError",
    "RuntimeClient",
    "Sandbox",
    "SandboxConfig",
    "SandboxGoneError",
    "SandboxInfo",
    "UsageError",
]
