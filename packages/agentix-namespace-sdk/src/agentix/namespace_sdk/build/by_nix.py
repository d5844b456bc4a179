"""The builder that is this machine's own Nix."""

import shutil
import subprocess
from pathlib import Path

from agentix.errors import UsageError
from agentix.namespace_sdk.build.program import run
from agentix.namespace_sdk.build.project import Project
from agentix.namespace_sdk.store import Closure

__all__ = ["EXPRESSION", "build_by_nix", "nix_answers", "require_expression"]

EXPRESSION = "default.nix"
"""The file that says how Nix builds a namespace."""

SYSTEMS = {"linux/amd64": "x86_64-linux", "linux/arm64": "aarch64-linux"}
"""What Nix calls the platforms that it builds for."""


def nix_answers() -> bool:
    """Tells whether Nix is here and knows a package set by the name `nixpkgs`."""
    if shutil.which("nix-build") is None:
        return False
    command = ["nix-instantiate", "--find-file", "nixpkgs"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def build_by_nix(project: Project, platform: str) -> Closure:
    """Builds the `default.nix` of a namespace, with Nix as the environment sets it up.

    Raises:
        UsageError: There is no `default.nix`, or Nix builds nothing for the platform.
        BuildError: Nix is missing, or fails.
    """
    require_expression(project)
    if platform not in SYSTEMS:
        raise UsageError(f"Nix builds for {' and '.join(SYSTEMS)}, not for {platform}")
    options = ["--no-out-link", "--option", "system", SYSTEMS[platform]]
    entry = run(["nix-build", *options, str(project.source)]).strip()
    requisites = run(["nix-store", "--query", "--requisites", entry])
    return Closure.of(Path(entry), requisites, Path("/"))


def require_expression(project: Project) -> None:
    """Makes sure that Nix can be told what to build.

    Raises:
        UsageError: There is no `default.nix`.
    """
    if not (project.source / EXPRESSION).is_file():
        raise UsageError(f"{project.source} has no {EXPRESSION}, which Nix builds from")
