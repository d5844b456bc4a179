"""Programs that fetching runs, and the errors it ends with."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


class FetchError(Exception):
    """A locked file could not be had, or is not the file that was locked."""


class VanishedError(FetchError):
    """The mirror has dropped the locked version of a Debian package for a newer one."""


def run(
    command: Sequence[str], cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> str:
    """Runs a program and returns its output.

    Raises:
        FetchError: It is missing, or failed; the message carries what it said.
    """
    try:
        finished = subprocess.run(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
    except FileNotFoundError as error:
        raise FetchError(
            f"{command[0]} is not installed; the offline package set is fetched on Debian and its "
            "relatives, elsewhere build by nix/Dockerfile or with --nixpkgs"
        ) from error
    if finished.returncode != 0:
        raise FetchError(f"`{' '.join(command)}` failed:\n{finished.stderr or finished.stdout}")
    return finished.stdout
