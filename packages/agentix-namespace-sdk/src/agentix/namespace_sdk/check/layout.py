"""The rules about the package's layout (protocol: Package)."""

import ast
import os
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agentix.layout import shipped
from agentix.manifest import NAMESPACE_PARENT, NamespaceManifest
from agentix.namespace_sdk.check.finding import Finding
from agentix.namespace_sdk.check.tree import Tree

__all__ = ["check_layout", "check_links", "check_project"]

MODULES = ("__init__.py", "_impl.py", "_register.py")


def check_layout(tree: Tree, manifest: NamespaceManifest) -> Iterator[Finding]:
    """Checks that the files of the package are there, and parses its modules."""
    package = tree.package_directory(manifest.package)
    parent = tree.python / NAMESPACE_PARENT
    if (parent / "__init__.py").exists():
        reason = "all namespaces share this import package, so it has no __init__.py"
        yield tree.finding("AGX202", parent / "__init__.py", reason, 1)
    if not package.is_dir():
        yield tree.finding("AGX201", tree.manifest, f"{tree.show(package)} is not a directory")
        return
    for name in MODULES:
        # An impl may be a package of several modules.
        if not (package / name).is_file() and not (package / Path(name).stem).is_dir():
            yield tree.finding("AGX203", package / name, f"{name} is missing")
    if not (package / "py.typed").is_file():
        yield tree.finding("AGX204", package / "py.typed", "py.typed is missing")
    yield from _parse(tree, package)


def _parse(tree: Tree, package: Path) -> Iterator[Finding]:
    for path in sorted(package.rglob("*.py")):
        if not path.is_file():  # such as the link that an editor locks a file by
            continue
        try:
            tree.parsed[path] = ast.parse(path.read_bytes(), filename=path.name)
        except SyntaxError as error:
            yield tree.finding("AGX205", path, error.msg, error.lineno)
        except ValueError as error:
            yield tree.finding("AGX205", path, str(error))


def check_links(tree: Tree, manifest: NamespaceManifest) -> Iterator[Finding]:
    """Checks that the links of a source tree lead to what is built with them, as it is built."""
    for root in (tree.package_directory(manifest.package), tree.root / "bin"):
        real = Path(os.path.realpath(root))
        for link in _links(root) if root.is_dir() else ():
            target, end = link.readlink(), Path(os.path.realpath(link))
            if target.is_absolute() or not end.is_relative_to(real) or not end.exists():
                reason = f"it leads to {target}, which is not shipped below {tree.show(root)}"
                yield tree.finding("AGX208", link, reason)


def _links(directory: Path) -> Iterator[Path]:
    for path in shipped(directory):
        if path.is_symlink():
            yield path
        elif path.is_dir():
            yield from _links(path)


def check_project(tree: Tree, manifest: NamespaceManifest) -> Iterator[Finding]:
    """Checks the `pyproject.toml` of a source tree, where there is one."""
    path = tree.root / "pyproject.toml"
    try:
        project = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        yield tree.finding("AGX206", path, str(error))
        return
    packages = _at(project, ("tool", "hatch", "build", "targets", "wheel", "packages"))
    if isinstance(packages, list) and packages != [NAMESPACE_PARENT]:
        reason = f"packages = {packages} ships {packages[-1].rpartition('/')[2]!r} as a top package"
        line = _line_of("packages", path)
        yield tree.finding("AGX206", path, reason, line)
    version = _at(project, ("project", "version"))
    if isinstance(version, str) and version != manifest.version:
        reason = f"version {version}, and the manifest's is {manifest.version}"
        yield tree.finding("AGX207", path, reason, _line_of("version", path))


def _at(value: Any, keys: Sequence[str]) -> Any:
    """Gives what lies in nested tables, or `None`."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _line_of(key: str, path: Path) -> int | None:
    lines = path.read_text(encoding="utf-8").splitlines()
    return next(
        (number for number, line in enumerate(lines, 1) if line.partition("=")[0].strip() == key),
        None,
    )
