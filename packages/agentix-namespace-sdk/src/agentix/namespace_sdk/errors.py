"""The errors of the namespace SDK, beside those of `agentix.errors`, in one tree.

AgentixError
└── BuildError              a program, an engine or a registry that a build needs failed
    └── RegistryLoginError  the registry wants a login, or another one
"""

from agentix.errors import AgentixError

__all__ = ["BuildError", "RegistryLoginError"]


class BuildError(AgentixError):
    """A program, an engine or a registry that a build needs failed, or is missing."""


class RegistryLoginError(BuildError):
    """The registry wants a login, or another one."""
