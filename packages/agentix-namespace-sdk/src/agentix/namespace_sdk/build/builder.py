"""The choice of a builder: local Nix, Docker with Nix inside, or neither."""

from dataclasses import dataclass
from typing import Literal

from agentix.errors import UsageError
from agentix.namespace_sdk.build.by_nix import EXPRESSION, nix_answers
from agentix.namespace_sdk.build.engine import engine_answers
from agentix.namespace_sdk.build.project import Project

__all__ = ["BUILDERS", "Choice", "choose_builder"]

BuilderName = Literal["plain", "nix", "docker"]
"""What builds: nothing but this library, Nix, or Docker with Nix inside."""

BUILDERS: tuple[BuilderName, ...] = ("plain", "nix", "docker")
"""Every builder."""


@dataclass(frozen=True)
class Choice:
    """A builder, and why it is the one."""

    builder: BuilderName
    """Which one."""
    reason: str
    """Why, for a person."""


def choose_builder(project: Project) -> Choice:
    """Chooses what this machine has and the namespace needs.

    Pure Python needs no Nix, and gives the same image everywhere without it. Scripts want an
    interpreter in the closure, which Nix brings; without Nix they take the task image's.

    Raises:
        UsageError: The namespace needs Nix, and here is neither Nix nor an engine.
    """
    reason = project.needs_nix()
    scripts = bool(project.programs()) and (project.source / EXPRESSION).is_file()
    if reason is None and not scripts:
        return Choice("plain", "the namespace is pure Python")
    if project.wheels:
        return Choice("plain", "the namespace brings wheels")
    if nix_answers():
        return Choice("nix", reason or "programs in bin get interpreters of their own")
    if reason is None:
        return Choice("plain", "Nix with nixpkgs is not here")
    if engine_answers():
        return Choice("docker", f"{reason}, and Nix with nixpkgs is not here")
    raise UsageError(f"{reason}: install Nix with nixpkgs, or Docker, to build {project.source}")
