"""The promises of the whole repository: versions, pins, layout, the direction of dependencies."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentix.version import VERSION

ROOT = Path(__file__).resolve().parents[1]

IMPORT_NAMES = {
    "cyclonedx-python-lib": "cyclonedx",
    "packageurl-python": "packageurl",
    "python-multipart": "python_multipart",
    "pyyaml": "yaml",
    "typing-extensions": "typing_extensions",
}
"""Distributions whose import package has another name."""

BROUGHT_BY_PYDANTIC = {"pydantic_core", "typing_extensions"}
"""What pydantic is made of, and says so in its own documentation."""

PARTS = {"agentserver", "client", "docker", "local", "namespace_sdk", "oanix", "runtime"}
"""Subpackages of `agentix` that are distributions of their own; all else is core's."""


@dataclass(frozen=True)
class Distribution:
    """One distribution of this repository."""

    path: Path
    project: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.project["name"])

    @property
    def requirements(self) -> dict[str, str]:
        """Gives the required distributions with their version specifiers."""
        split = (
            re.fullmatch(r"([A-Za-z0-9._-]+)(.*)", text) for text in self.project["dependencies"]
        )
        return {match[1]: match[2] for match in split if match}

    @property
    def sources(self) -> list[Path]:
        root = self.path / "src" if (self.path / "src").is_dir() else self.path
        packages = ("agentix", "agentix_namespaces")
        return sorted(file for name in packages for file in (root / name).rglob("*.py"))


def _distributions() -> list[Distribution]:
    files = sorted(
        [*ROOT.glob("packages/*/pyproject.toml"), *ROOT.glob("namespaces/*/pyproject.toml")]
    )
    return [Distribution(file.parent, tomllib.loads(file.read_text())["project"]) for file in files]


DISTRIBUTIONS = _distributions()
OURS = {distribution.name for distribution in DISTRIBUTIONS}
each = pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=lambda item: item.name)


@each
def test_version_is_literal_and_the_same_everywhere(distribution: Distribution) -> None:
    assert distribution.project["version"] == VERSION


@each
def test_siblings_are_pinned_exactly(distribution: Distribution) -> None:
    siblings = {
        name: version for name, version in distribution.requirements.items() if name in OURS
    }
    assert siblings == dict.fromkeys(siblings, f"=={VERSION}")


@each
def test_licence_and_python_are_those_of_the_repository(distribution: Distribution) -> None:
    assert distribution.project["license"] == "MIT"
    assert distribution.project["requires-python"] == ">=3.11"


def test_core_alone_owns_the_root_package() -> None:
    owners = [
        path.relative_to(ROOT).parts[1] for path in ROOT.glob("packages/*/src/agentix/__init__.py")
    ]
    assert owners == ["agentix-core"]
    assert not list(ROOT.glob("*/*/agentix_namespaces/__init__.py"))


@each
def test_distribution_ships_one_typed_part(distribution: Distribution) -> None:
    if distribution.path.parent.name == "namespaces":
        [part] = (distribution.path / "agentix_namespaces").iterdir()
    elif distribution.name == "agentix-core":
        part = distribution.path / "src" / "agentix"
    else:
        [part] = (distribution.path / "src" / "agentix").iterdir()
        assert part.name == distribution.name.removeprefix("agentix-").replace("-", "_")
    assert (part / "py.typed").is_file()


def _imports(file: Path) -> Iterator[str]:
    """Gives the absolute names that a file imports."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module


def _required(distribution: Distribution) -> set[str]:
    """Gives the import packages that the requirements allow; for our own, the part."""
    allowed = set()
    for name in distribution.requirements:
        if name == "agentix-core":
            allowed.add("agentix")
        elif name in OURS:
            allowed.add(name.replace("agentix-", "agentix.", 1).replace("-", "_"))
        else:
            allowed.add(IMPORT_NAMES.get(name, name).replace("-", "_"))
    if "pydantic" in allowed or "agentix" in allowed:
        allowed |= BROUGHT_BY_PYDANTIC | {"pydantic"}
    if "aiodocker" in allowed:
        allowed.add("aiohttp")
    return allowed


def _imported_part(module: str) -> str:
    """Names what a module belongs to: a part of ours, or a top-level package."""
    match module.split("."):
        case ["agentix", part, *_] if part in PARTS:
            return f"agentix.{part}"
        case [top, *_]:
            return top
    raise AssertionError(module)


@each
def test_imports_are_required(distribution: Distribution) -> None:
    own = distribution.name.replace("agentix-", "agentix.", 1).replace("-", "_")
    allowed = _required(distribution) | {own, "agentix_namespaces"}
    if distribution.name == "agentix-core":
        # The names of sibling distributions are loaded on first use, and typed.
        allowed |= {"agentix", "agentix.client", "agentix.docker", "agentix.local"}
    found = {_imported_part(module) for file in distribution.sources for module in _imports(file)}
    assert found - allowed - set(sys.stdlib_module_names) == set()


@pytest.mark.parametrize(
    "distribution",
    [item for item in DISTRIBUTIONS if item.path.parent.name == "namespaces"],
    ids=lambda item: item.name,
)
def test_namespaces_import_only_what_every_runtime_has(distribution: Distribution) -> None:
    package = f"agentix_namespaces.{distribution.path.name.replace('-', '_')}"
    found = {module for file in distribution.sources for module in _imports(file)}
    foreign = {
        module
        for module in found
        if module.partition(".")[0] not in {*sys.stdlib_module_names, "pydantic"}
        and not module.startswith(package)
    }
    assert foreign <= {"agentix.dispatch", "agentix.trace"}


def test_client_and_runtime_do_not_know_each_other() -> None:
    requirements = {item.name: set(item.requirements) for item in DISTRIBUTIONS}
    assert requirements["agentix-client"] == {"agentix-core", "aiohttp", "pydantic"}
    assert "agentix-client" not in requirements["agentix-runtime"]
    assert "agentix-runtime" not in requirements["agentix-docker"]
    assert "agentix-runtime" not in requirements["agentix-local"]


def test_every_mention_of_the_version_is_known_to_bump() -> None:
    listed = subprocess.run(
        ["git", "grep", "-lF", VERSION, "--", "*.toml", "*.json", "*.py", "*.nix"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    shipped = {
        path
        for path in listed
        if path.startswith(("packages/", "namespaces/")) and "test" not in path
    }
    bumped = {
        str(path.relative_to(ROOT))
        for distribution in DISTRIBUTIONS
        for path in (
            distribution.path / "pyproject.toml",
            distribution.path / "manifest.json",
            *distribution.path.glob("agentix_namespaces/*/__init__.py"),
        )
        if path.is_file()
    } | {"packages/agentix-core/src/agentix/version.py"}
    assert shipped - bumped == set()


def test_no_tracked_file_names_a_registry_or_a_private_path() -> None:
    hosts = [
        "deb" + ".debian.org",
        "files.python" + "hosted",
        "pypi.org/" + "simple",
        "registry.npm" + "js",
    ]
    paths = ["/wo" + "rk/", "/ro" + "ot/", "/ho" + "me/runner"]
    patterns = [argument for text in [*hosts, *paths] for argument in ("-e", text)]
    found = subprocess.run(
        ["git", "grep", "-nIF", *patterns], cwd=ROOT, capture_output=True, text=True
    )
    assert found.stdout == ""
    assert found.returncode == 1
