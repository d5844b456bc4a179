"""Programs that a build consists of: Nix, Docker, pip."""

import subprocess
from collections.abc import Mapping, Sequence

from agentix.errors import AgentixError

__all__ = ["BuildError", "run"]


class BuildError(AgentixError):
    """A program that the build consists of failed, or is missing."""


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Runs a program, its messages going to standard error, and returns its output.

    Raises:
        BuildError: It is missing or failed.
    """
    try:
        finished = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise BuildError(f"{command[0]} is not installed") from error
    if finished.returncode != 0:
        raise BuildError(f"`{' '.join(command)}` failed with exit code {finished.returncode}")
    return finished.stdout
