"""What a build starts from: the source tree of a namespace, and the wheels that it asks for."""

import ast
import hashlib
import re
import shutil
import sys
import tomllib
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from agentix.errors import ManifestError, UsageError
from agentix.manifest import NamespaceManifest, find_package
from agentix.namespace_sdk.build.programs import run_program
from agentix.namespace_sdk.errors import BuildError

__all__ = ["EXPRESSION", "Project", "Wheel", "find_wheels"]

EXPRESSION = "default.nix"
"""The file that says how Nix builds a namespace."""

REFERENCE = re.compile(
    r"(?P<repository>[a-z0-9][a-z0-9._-]*(?::\d+)?(?:/[a-z0-9][a-z0-9._-]*)*):(?P<tag>\w[\w.-]*)"
)
"""An image reference with a tag."""

ADDS_PACKAGES = re.compile(r"^\s*packages\s*=(?!\s*(?:with\s+\w+;\s*)?\[\s*\])", re.MULTILINE)
"""A `default.nix` that gives the namespace programs of Nix."""

ELF = b"\x7fELF"

PIN = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9][\w.!+-]*)")
PURE = re.compile(r"-py3[\w.]*-none-any\.whl$|-py2\.py3-none-any\.whl$")

RESERVED = {
    *sys.stdlib_module_names,
    *("agentix", "agentix_namespaces", "annotated_types", "anyio", "h11", "h2", "hpack"),
    *("hypercorn", "hyperframe", "idna", "multipart", "priority", "pydantic", "pydantic_core"),
    *("python_multipart", "starlette", "typing_extensions", "typing_inspection", "wsproto"),
}
"""Modules that the runtime has itself: a second one would take its place."""


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
        """Read a source tree.

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
        return cls(source, manifest, chosen, _read_wheels(source / "pyproject.toml"))

    @property
    def repository(self) -> str:
        """The image's reference without its tag."""
        return self.tag.rpartition(":")[0]

    @property
    def version(self) -> str:
        """The tag of the image's reference."""
        return self.tag.rpartition(":")[2]

    def programs(self) -> dict[str, str]:
        """Return the interpreter of each program in `bin`; an empty text for one without."""
        directory = self.source / "bin"
        paths = sorted(directory.iterdir()) if directory.is_dir() else []
        return {path.name: _interpreter(path) for path in paths if path.is_file()}

    def needs_nix(self) -> str | None:
        """Return why the namespace cannot be built without Nix; `None` where it can."""
        expression = self.source / EXPRESSION
        if expression.is_file() and ADDS_PACKAGES.search(expression.read_text()):
            return "default.nix adds packages of Nix"
        for path in sorted(self.source.glob("bin/*")):
            if path.is_file() and path.read_bytes()[:4] == ELF:
                return f"bin/{path.name} is a native program"
        return None


def _declared_image(package: Path) -> str | None:
    """Return `__image__` of a package without importing it."""
    try:
        tree = ast.parse((package / "__init__.py").read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="__image__")], value=ast.Constant(value=str(tag))):
                return tag
    return None


def _read_wheels(path: Path) -> tuple[str, ...]:
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


@dataclass(frozen=True)
class Wheel:
    """A wheel of pure Python."""

    path: Path
    """The file."""
    name: str
    """The name of its distribution."""
    version: str
    """The version of its distribution."""
    licence: str | None
    """The licence that it names, as an SPDX expression or a text."""
    digest: str
    """Its SHA-256, in hexadecimal digits."""

    @classmethod
    def read(cls, path: Path) -> "Wheel":
        """Read what a wheel says of itself.

        Raises:
            UsageError: It is no wheel, or not of pure Python.
        """
        if not PURE.search(path.name):
            raise UsageError(f"{path.name} is no wheel of pure Python: take such programs from Nix")
        try:
            with zipfile.ZipFile(path) as archive:
                member = next(
                    name for name in archive.namelist() if name.endswith(".dist-info/METADATA")
                )
                fields = HeaderParser().parsestr(archive.read(member).decode())
        except (OSError, zipfile.BadZipFile, StopIteration, UnicodeDecodeError) as error:
            raise UsageError(f"{path} is no wheel: {error or 'it has no METADATA'}") from error
        licence = fields.get("License-Expression") or fields.get("License")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return cls(path, fields["Name"], fields["Version"], licence, digest)

    def unpack(self, directory: Path) -> list[str]:
        """Unpack what is imported, and return the names at its top.

        Raises:
            UsageError: It holds what the runtime has itself, or a path that leads out.
        """
        directory.mkdir()
        with zipfile.ZipFile(self.path) as archive:
            for item in sorted(archive.infolist(), key=lambda item: item.filename):
                path = PurePosixPath(item.filename)
                if path.is_absolute() or ".." in path.parts:
                    raise UsageError(f"{self.path.name} holds {item.filename}, which leads out")
                destination = _destination(path)
                if not item.is_dir() and destination is not None:
                    target = directory / destination
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(archive.read(item))
        tops = sorted(path.name for path in directory.iterdir())
        taken = [name for name in tops if name.removesuffix(".py") in RESERVED]
        if taken:
            raise UsageError(f"{self.path.name} brings {taken[0]}, which the runtime has itself")
        return [name for name in tops if not name.endswith(".dist-info")]


def _destination(path: PurePosixPath) -> PurePosixPath | None:
    """Return where a file of a wheel goes; `None` for what is not imported, such as scripts."""
    match path.parts:
        case [first, "purelib", *rest] if first.endswith(".data"):
            return PurePosixPath(*rest)
        case [first, *_] if first.endswith(".data"):
            return None
        case _:
            return path


def find_wheels(requirements: Sequence[str], source: Path, cache: Path) -> list[Wheel]:
    """Return wheels: files of the source tree, and pinned versions, which pip downloads once.

    Args:
        requirements: `name==version`, or the path of a file relative to `source`.
        source: The directory of the namespace.
        cache: Where downloads are kept.

    Raises:
        UsageError: A requirement is neither, or its wheel is not of pure Python.
        BuildError: A wheel cannot be downloaded.
    """
    return [Wheel.read(_find(requirement, source, cache)) for requirement in requirements]


def _find(requirement: str, source: Path, cache: Path) -> Path:
    if requirement.endswith(".whl"):
        return source / requirement
    pin = PIN.fullmatch(requirement)
    if pin is None:
        raise UsageError(f"{requirement!r} is neither name==version nor the path of a wheel")
    kept = cache / "wheels" / f"{pin['name'].lower()}-{pin['version']}"
    if not kept.is_dir():
        _download(requirement, kept)
    return next(kept.iterdir())


def _download(requirement: str, directory: Path) -> None:
    directory.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=directory.parent) as making:
        options = ["--quiet", "--no-deps", "--only-binary=:all:", "--dest", making]
        run_program([sys.executable, "-m", "pip", "download", *options, requirement])
        found = list(Path(making).glob("*.whl"))
        if len(found) != 1:
            raise BuildError(f"pip downloaded {len(found)} wheels for {requirement}, not one")
        directory.mkdir()
        shutil.move(found[0], directory / found[0].name)
