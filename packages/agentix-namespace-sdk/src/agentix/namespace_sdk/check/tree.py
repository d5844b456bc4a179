"""The files of one namespace, wherever they are: a source tree, a bundle, an unpacked image."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from agentix.namespace_sdk.check.brought import modules_of_entry, modules_of_wheels
from agentix.namespace_sdk.check.finding import Finding

__all__ = ["Module", "Tree"]


@dataclass(frozen=True)
class Module:
    """A module of the package, parsed."""

    path: Path
    """Its file."""
    syntax: ast.Module
    """What it says."""


@dataclass
class Tree:
    """The manifest and the package of a namespace.

    Args:
        manifest: The file `manifest.json`.
        python: The directory that holds `agentix_namespaces`.
        root: What paths are shown relative to.
        shown_root: How the root itself is shown.
        brought: The modules that impls may import beside what the runtime has.
    """

    manifest: Path
    python: Path
    root: Path
    shown_root: str
    brought: frozenset[str]

    @classmethod
    def of_source(cls, path: Path) -> "Tree":
        """Finds the parts of a source tree."""
        return cls(path / "manifest.json", path, path, str(path), modules_of_wheels(path))

    @classmethod
    def of_entry(cls, entry: Path, shown: str) -> "Tree":
        """Finds the parts of the entry of a closure."""
        python = entry / "python"
        return cls(entry / "manifest.json", python, entry, shown, modules_of_entry(python))

    def show(self, path: Path | str) -> str:
        """Gives a path as the user knows it."""
        path = Path(path)
        for root in (self.root, self.root.resolve()):
            if path.is_relative_to(root):
                shown = Path(self.shown_root, path.relative_to(root))
                return str(shown)
        return str(path)

    def finding(
        self, code: str, path: Path | str, message: str, line: int | None = None
    ) -> Finding:
        """Makes a finding in one of the files."""
        return Finding(self.show(path), line, code, message)

    def package_directory(self, package: str) -> Path:
        """Gives where a package of that name is."""
        return self.python.joinpath(*package.split("."))

    @cached_property
    def parsed(self) -> dict[Path, ast.Module]:
        """The modules that were parsed already."""
        return {}

    def modules(self, package: str) -> Iterator[Module]:
        """Gives the modules of the package that have a right syntax."""
        for path in sorted(self.package_directory(package).rglob("*.py")):
            if (syntax := self.parsed.get(path)) is not None:
                yield Module(path, syntax)
