"""Where a user's compiled programs and jobs are, unless the user says otherwise."""

from collections.abc import Mapping
from pathlib import Path

__all__ = ["jobs_directory", "modules_directory"]

OWN = "agentix-oanix"


def modules_directory(environ: Mapping[str, str]) -> Path:
    """Gives the directory of compiled programs: below `XDG_CACHE_HOME`, or `~/.cache`."""
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / OWN / "modules"


def jobs_directory(environ: Mapping[str, str]) -> Path:
    """Gives the directory of the queue: below `XDG_STATE_HOME`, or `~/.local/state`."""
    return Path(environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / OWN / "jobs"
