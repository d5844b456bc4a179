"""Where the task image and the bundles of a sandbox are: from references to directories."""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from agentix.errors import DeploymentError, UsageError

__all__ = ["HOST_MARKER", "Bundle", "find_bundle", "find_image"]

HOST_MARKER = "host.json"
"""The file of a bundle that needs parts of the host; `{"paths": [...]}` lists them."""

IMAGE_REFERENCE = re.compile(
    r"(?P<name>[A-Za-z0-9][\w.-]*(?::\d+)?(?:/[A-Za-z0-9][\w.-]*)*?)(?::(?P<tag>\w[\w.-]*))?"
)


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle directory: `entry`, and `store` where Nix built it."""

    path: Path
    """The directory, links resolved."""
    mount: str
    """The name of its mount, `c<digest>`; the same for the same content of the same place."""
    host_paths: tuple[str, ...] | None = None
    """What of the host it needs where it runs on the host's interpreter; otherwise `None`."""


def find_bundle(reference: str, bundles: Path | None) -> Bundle:
    """Find the bundle that a reference means.

    Args:
        reference: An absolute path, one that starts with `./` or `../`, or an image reference
            such as `agentix/mock-agent:1.2.3`, which is the directory `agentix/mock-agent/1.2.3`.
        bundles: The directory below which image references are looked up.

    Raises:
        UsageError: The reference is neither.
        DeploymentError: There is no such bundle.
    """
    path = _bundle_path(reference, bundles)
    entry = path / "entry"
    if not entry.is_dir():
        raise DeploymentError(
            f"no bundle {reference!r}: {entry} is not there. Make it with"
            " `python -m agentix.local.bundle`, or with `nox -s images`"
        )
    path = path.resolve()
    identity = f"{path}\0{entry.resolve().name}"
    digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
    return Bundle(path, f"c{digest}", _host_paths(path / HOST_MARKER))


def _bundle_path(reference: str, bundles: Path | None) -> Path:
    if reference.startswith(("/", "./", "../")):
        return Path(reference)
    match = IMAGE_REFERENCE.fullmatch(reference)
    if match is None:
        raise UsageError(f"{reference!r} is neither the path of a bundle nor an image reference")
    if bundles is None:
        raise DeploymentError(
            f"no bundle {reference!r}: this deployment was given no directory of bundles."
            " Use LocalDeployment(bundles=...), or refer to the bundle by its path"
        )
    return bundles / match["name"] / (match["tag"] or "latest")


def _host_paths(marker: Path) -> tuple[str, ...] | None:
    try:
        text = marker.read_text()
    except FileNotFoundError:
        return None
    return tuple(json.loads(text)["paths"])


def find_image(reference: str) -> Path:
    """Find the directory that is the task image.

    Args:
        reference: `/` for the host's own root, or the path of a root filesystem directory.

    Raises:
        DeploymentError: There is no such directory.
    """
    if reference.startswith(("/", "./", "../")) and Path(reference).is_dir():
        return Path(reference).resolve()
    raise DeploymentError(
        f"no task image {reference!r}: a local sandbox takes the path of a root filesystem"
        " directory, or / for the host's own; unpack an image with"
        " `docker export $(docker create IMAGE) | tar -x -C DIRECTORY`"
    )
