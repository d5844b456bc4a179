"""The source tree of a namespace, as a build sees it."""

import ast
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentix.errors import ManifestError, UsageError
from agentix.manifest import NamespaceManifest, find_package

__all__ = ["Project"]

REFERENCE = re.compile(
    r"(?P<repository>[a-z0-9][a-z0-9._-]*(?::\d+)?(?:/[a-z0-9][a-z0-9._-]*)*):(?P<tag>\w[\w.-]*)"
)
"""An image reference with a tag."""

ADDS_PACKAGES = re.compile(r"^\s*packages\s*=(?!\s*(?:with\s+\w+;\s*)?\[\s*\])", re.MULTILINE)
"""A `default.nix` that gives the namespace programs of Nix."""

ELF = b"\x7fELF"


@dataclass(frozen=True)
class Project:
    """A namespace to build."""

    source: Path
    """Its directory, links resolved."""
    manifest: NamespaceManifest
    """What it says of itself."""
    tag: str
    """The reference of its image, with a tag."""
    wheels: tuple[str, ...]
    """The wheels that go into its closure: `name==version`, or the path of a file."""

    @classmethod
    def read(cls, source: Path, tag: str | None = None) -> "Project":
        """Reads a source tree.

        Args:
            source: Its directory.
            tag: The reference of the image; by default the package's `__image__`, or else
                `agentix/<name>:<version>`.

        Raises:
            ManifestError: The manifest is missing or malformed, or its package is not there.
            UsageError: The reference is none, or the project's own settings are malformed.
        """
        source = source.resolve()
        if not source.is_dir():
            raise ManifestError(f"{source} is no directory: give that of a namespace")
        manifest, package = find_package(source)
        version = manifest.version.replace("+", "_")  # which no tag has
        chosen = tag or _declared_image(package) or f"agentix/{manifest.name}:{version}"
        if REFERENCE.fullmatch(chosen) is None:
            raise UsageError(f"{chosen!r} is no image reference such as agentix/hello:1.0.0")
        return cls(source, manifest, chosen, _wheels(source / "pyproject.toml"))

    @property
    def repository(self) -> str:
        """The image's reference without its tag."""
        return self.tag.rpartition(":")[0]

    @property
    def version(self) -> str:
        """The tag of the image's reference."""
        return self.tag.rpartition(":")[2]

    def programs(self) -> dict[str, str]:
        """Gives the interpreter of each program in `bin`; an empty text for one without."""
        directory = self.source / "bin"
        paths = sorted(directory.iterdir()) if directory.is_dir() else []
        return {path.name: _interpreter(path) for path in paths if path.is_file()}

    def needs_nix(self) -> str | None:
        """Tells why the namespace cannot be built without Nix; `None` where it can."""
        expression = self.source / "default.nix"
        if expression.is_file() and ADDS_PACKAGES.search(expression.read_text()):
            return "default.nix adds packages of Nix"
        for path in sorted(self.source.glob("bin/*")):
            if path.is_file() and path.read_bytes()[:4] == ELF:
                return f"bin/{path.name} is a native program"
        return None


def _declared_image(package: Path) -> str | None:
    """Finds `__image__ = "..."` in a package without importing it."""
    try:
        tree = ast.parse((package / "__init__.py").read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="__image__")], value=ast.Constant(value=str(tag))):
                return tag
    return None


def _wheels(path: Path) -> tuple[str, ...]:
    try:
        settings: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ()
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"malformed {path}: {error}") from error
    wheels = settings.get("tool", {}).get("agentix-namespace", {}).get("wheels", [])
    if not isinstance(wheels, list) or not all(isinstance(wheel, str) for wheel in wheels):
        raise UsageError(f"malformed {path}: [tool.agentix-namespace] wheels is no list of texts")
    return tuple(wheels)


def _interpreter(program: Path) -> str:
    with program.open("rb") as file:
        line = file.readline(256)
    return line[2:].decode("utf-8", "replace").strip() if line.startswith(b"#!") else ""
