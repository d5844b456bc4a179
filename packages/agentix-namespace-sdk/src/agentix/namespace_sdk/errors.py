"""The errors of the namespace SDK, beside those of `agentix.errors`, in one tree.

AgentixError
└── BuildError              a program, an engine or a registry that a build needs failed
    └── RegistryLoginError  the registry wants a login, or another one
"""

from agentix.errors import AgentixError

__all__ = ["BuildError", "RegistryLoginError"]


class BuildError(AgentixError):
    """A program, an engine or a registry that a build needs failed, or is missing.

    ```python
    from agentix.namespace_sdk.build.programs import run_program
    from agentix.namespace_sdk.errors import BuildError

    try:
        run_program(["no-such-program"])
    except BuildError as error:
        assert str(error) == "no-such-program is not installed"
    ```
    """


class RegistryLoginError(BuildError):
    """The registry wants a login, or another one."""
