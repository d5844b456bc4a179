"""The files of one namespace, wherever they are: a source tree, a bundle, an unpacked image."""

import ast
import re
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import packages_distributions
from pathlib import Path, PurePosixPath
from typing import Any

from agentix.manifest import NamespaceManifest
from agentix.namespace_sdk.check.rules import Breach

__all__ = ["NamespacePackage", "Tree"]


@dataclass
class Tree:
    """The manifest and the import path of a namespace.

    Args:
        manifest_file: The file `manifest.json`.
        python: The directory that holds `agentix_namespaces`.
        root: The directory that paths are shown relative to.
        shown_root: How the root itself is shown.
        bundled_modules: The modules that impls may import beside what the runtime has.
    """

    manifest_file: Path
    python: Path
    root: Path
    shown_root: str
    bundled_modules: frozenset[str]

    @classmethod
    def of_source(cls, path: Path) -> "Tree":
        """Return the parts of a source tree."""
        return cls(path / "manifest.json", path, path, str(path), _modules_of_wheels(path))

    @classmethod
    def of_entry(cls, entry: Path, shown: str) -> "Tree":
        """Return the parts of the entry of a closure."""
        python = entry / "python"
        return cls(entry / "manifest.json", python, entry, shown, _modules_of_directory(python))

    def show(self, path: Path | str) -> str:
        """Return a path as the user knows it."""
        path = Path(path)
        for root in (self.root, self.root.resolve()):
            if path.is_relative_to(root):
                return str(Path(self.shown_root, path.relative_to(root)))
        return str(path)

    def breach(self, path: Path | str, message: str, line: int | None = None) -> Breach:
        """Return a breach in one of the files."""
        return Breach(self.show(path), message, line)

    @cached_property
    def manifest_bytes(self) -> bytes:
        """The content of the manifest.

        Raises:
            OSError: It cannot be read.
        """
        return self.manifest_file.read_bytes()

    @cached_property
    def project(self) -> dict[str, Any]:
        """The content of `pyproject.toml`; nothing where there is none.

        Raises:
            ValueError: It is malformed.
        """
        return _read_project(self.root)


@dataclass
class NamespacePackage:
    """The import package of a namespace, in its tree.

    Args:
        tree: The files.
        manifest: The manifest, which names the package.
    """

    tree: Tree
    manifest: NamespaceManifest

    @property
    def name(self) -> str:
        """The import path."""
        return self.manifest.package

    @property
    def directory(self) -> Path:
        """The directory of its modules."""
        return self.tree.python.joinpath(*self.name.split("."))

    @property
    def stubs(self) -> Path:
        """The module that callers import."""
        return self.directory / "__init__.py"

    @cached_property
    def parsed(self) -> dict[Path, ast.Module | SyntaxError | ValueError]:
        """Each module, parsed, or what is wrong with its syntax."""
        # An editor locks a file by a link to nothing.
        files = (path for path in sorted(self.directory.rglob("*.py")) if path.is_file())
        return {path: _parse(path) for path in files}

    @property
    def modules(self) -> Iterator[tuple[Path, ast.Module]]:
        """The modules whose syntax is right."""
        for path, syntax in self.parsed.items():
            if isinstance(syntax, ast.Module):
                yield path, syntax


def _parse(path: Path) -> ast.Module | SyntaxError | ValueError:
    try:
        return ast.parse(path.read_bytes(), filename=path.name)
    except (SyntaxError, ValueError) as error:  # ValueError is raised for null bytes
        return error


def _read_project(directory: Path) -> dict[str, Any]:
    try:
        return tomllib.loads((directory / "pyproject.toml").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}


def _modules_of_directory(python: Path) -> frozenset[str]:
    if not python.is_dir():
        return frozenset()
    return frozenset(path.name.partition(".")[0] for path in python.iterdir())


def _modules_of_wheels(source: Path) -> frozenset[str]:
    """Return the modules of the wheels that `[tool.agentix-namespace]` asks for.

    What is malformed has none: a rule, or the build, refuses it.
    """
    try:
        wheels = [
            str(wheel) for wheel in _read_project(source)["tool"]["agentix-namespace"]["wheels"]
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return frozenset()
    files = (source / wheel for wheel in wheels if wheel.endswith(".whl"))
    found = {module for file in files for module in _modules_of_file(file)}
    pinned = {_fold_name(wheel.partition("==")[0]) for wheel in wheels if "==" in wheel}
    for module, distributions in packages_distributions().items():
        if not pinned.isdisjoint(map(_fold_name, distributions)):
            found.add(module)
    return frozenset(found)


def _modules_of_file(wheel: Path) -> Iterator[str]:
    try:
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                yield PurePosixPath(name).parts[0].partition(".")[0]
    except (OSError, zipfile.BadZipFile):
        return


def _fold_name(distribution: str) -> str:
    """Return the normalized name of a distribution (PEP 503)."""
    return re.sub(r"[-_.]+", "-", distribution).lower()
