"""The modules that a namespace brings for its impls, beside its own package: those of wheels."""

import re
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path, PurePosixPath
from typing import Any

__all__ = ["modules_of_entry", "modules_of_wheels"]


def modules_of_entry(python: Path) -> frozenset[str]:
    """Gives the modules at the top of a closure's import path.

    Args:
        python: The directory that holds `agentix_namespaces`.
    """
    if not python.is_dir():
        return frozenset()
    return frozenset(path.name.partition(".")[0] for path in python.iterdir())


def modules_of_wheels(source: Path) -> frozenset[str]:
    """Gives the modules of the wheels that a source tree asks for; what is malformed has none.

    Args:
        source: The directory with `pyproject.toml`, whose `[tool.agentix-namespace]` lists them.
    """
    try:
        project: Any = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))
        wheels = [str(wheel) for wheel in project["tool"]["agentix-namespace"]["wheels"]]
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError, TypeError):
        return frozenset()
    files = (source / wheel for wheel in wheels if wheel.endswith(".whl"))
    pinned = {_folded(wheel.partition("==")[0]) for wheel in wheels if "==" in wheel}
    found = {module for file in files for module in _modules_of_file(file)}
    for module, distributions in packages_distributions().items():
        if not pinned.isdisjoint(map(_folded, distributions)):
            found.add(module)
    return frozenset(found)


def _modules_of_file(wheel: Path) -> Iterator[str]:
    try:
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                yield PurePosixPath(name).parts[0].partition(".")[0]
    except (OSError, zipfile.BadZipFile):
        return


def _folded(name: str) -> str:
    """Folds the name of a distribution (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
