"""Pure-Python wheels that a namespace brings for its impls."""

import hashlib
import re
import shutil
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from agentix.errors import UsageError
from agentix.namespace_sdk.build.program import BuildError, run

__all__ = ["Wheel", "find_wheels"]

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
        """Reads what a wheel says of itself.

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
        """Unpacks what is imported, and gives the names at its top.

        Raises:
            UsageError: It holds what the runtime has itself, or a path that leads out.
        """
        directory.mkdir()
        with zipfile.ZipFile(self.path) as archive:
            for item in sorted(archive.infolist(), key=lambda item: item.filename):
                path = PurePosixPath(item.filename)
                if path.is_absolute() or ".." in path.parts:
                    raise UsageError(f"{self.path.name} holds {item.filename}, which leads out")
                place = _place(path)
                if not item.is_dir() and place is not None:
                    target = directory / place
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(archive.read(item))
        tops = sorted(path.name for path in directory.iterdir())
        taken = [name for name in tops if name.removesuffix(".py") in RESERVED]
        if taken:
            raise UsageError(f"{self.path.name} brings {taken[0]}, which the runtime has itself")
        return [name for name in tops if not name.endswith(".dist-info")]


def _place(path: PurePosixPath) -> PurePosixPath | None:
    """Gives where a file of a wheel goes, and `None` for what is not imported, such as scripts."""
    match path.parts:
        case [first, "purelib", *rest] if first.endswith(".data"):
            return PurePosixPath(*rest)
        case [first, *_] if first.endswith(".data"):
            return None
        case _:
            return path


def find_wheels(requirements: Sequence[str], source: Path, cache: Path) -> list[Wheel]:
    """Finds wheels: files of the source tree, and pinned versions, which pip downloads once.

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
        run([sys.executable, "-m", "pip", "download", *options, requirement])
        found = list(Path(making).glob("*.whl"))
        if len(found) != 1:
            raise BuildError(f"pip downloaded {len(found)} wheels for {requirement}, not one")
        directory.mkdir()
        shutil.move(found[0], directory / found[0].name)
