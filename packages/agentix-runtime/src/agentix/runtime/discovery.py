"""Finds the namespaces that are mounted in the sandbox, without importing them."""

import logging
import sys
from pathlib import Path

from agentix.dispatch import Registry
from agentix.errors import UsageError
from agentix.manifest import read_manifest

__all__ = ["RUNTIME_MOUNT", "discover"]

logger = logging.getLogger(__name__)

RUNTIME_MOUNT = "runtime"
"""The mount that holds the runtime itself."""


def discover(mount_root: Path) -> Registry:
    """Registers every mount that has a valid manifest and adds its Python tree to `sys.path`.

    Any other mount is skipped with one warning that says why.

    Args:
        mount_root: The directory whose entries are mounts.
    """
    registry = Registry()
    for mount in _mounts(mount_root):
        try:
            _register(registry, mount / "entry")
        except (UsageError, OSError) as error:
            logger.warning("skipped mount %s: %s", mount, error)
    return registry


def _mounts(mount_root: Path) -> list[Path]:
    if not mount_root.is_dir():
        return []
    return sorted(path for path in mount_root.iterdir() if path.name != RUNTIME_MOUNT)


def _register(registry: Registry, entry: Path) -> None:
    manifest = read_manifest(entry / "manifest.json")
    tree = entry / "python"
    package = tree.joinpath(*manifest.package.split("."))
    if not package.is_dir():
        raise UsageError(f"{package} is missing")
    if (package.parent / "__init__.py").exists():
        raise UsageError(f"{package.parent} has an __init__.py, which hides all other namespaces")
    registry.register(manifest, entry)
    sys.path.insert(0, str(tree))
    logger.info("found namespace %s %s at %s", manifest.package, manifest.version, entry)
