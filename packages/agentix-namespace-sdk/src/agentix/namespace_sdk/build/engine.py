"""The Docker engine of this machine, as far as builds need it."""

import shutil
import subprocess

from agentix.namespace_sdk.build.archive import Archive
from agentix.namespace_sdk.build.program import run

__all__ = ["engine_answers", "ensure_loaded", "load_archive", "loaded_id"]


def engine_answers() -> bool:
    """Tells whether a Docker engine can be used."""
    if shutil.which("docker") is None:
        return False
    asked = subprocess.run(["docker", "version"], capture_output=True, check=False)
    return asked.returncode == 0


def loaded_id(tag: str) -> str | None:
    """Gives the id of the image that a tag names in the engine, if there are both."""
    if shutil.which("docker") is None:
        return None
    found = subprocess.run(
        ["docker", "image", "inspect", "--format", "{{.Id}}", tag],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() or None


def ensure_loaded(archive: Archive, tag: str) -> None:
    """Loads an archive into the engine, unless its tag names that image already.

    Raises:
        BuildError: No engine answers, or it refuses the archive.
    """
    if loaded_id(tag) != archive.image_id:
        load_archive(archive)


def load_archive(archive: Archive) -> None:
    """Loads an archive into the engine.

    Raises:
        BuildError: No engine answers, or it refuses the archive.
    """
    run(["docker", "load", "--quiet", "--input", str(archive.path)])
