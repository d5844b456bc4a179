"""Wheels: downloaded by pip for the closure's Python, and read."""

from __future__ import annotations

import importlib.util
import re
import sys
import zipfile
from collections.abc import Sequence
from email.message import Message
from email.parser import Parser
from pathlib import Path

from nix.offline.command import run
from nix.offline.lock import LockedFile, sha256

WHEEL_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def download_wheels(arguments: Sequence[str], python: str, folder: Path, cache: Path) -> None:
    """Downloads wheels for the closure's Python, whichever Python runs this."""
    platforms = [option for platform in WHEEL_PLATFORMS for option in ("--platform", platform)]
    target = ["--only-binary=:all:", "--implementation", "cp", "--python-version", python]
    run([*pip(cache), "download", "-q", *target, *platforms, "--dest", str(folder), *arguments])


def pip(cache: Path) -> list[str]:
    """Finds a pip: this Python's, or one in an environment of our own."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    environment = cache / "pip"
    if not (environment / "bin" / "pip").exists():
        run([sys.executable, "-m", "venv", str(environment)])
    return [str(environment / "bin" / "python"), "-m", "pip"]


def locked_wheel(wheel: Path, names: set[str]) -> LockedFile:
    """Locks one wheel; requirements not downloaded belong to other platforms or extras."""
    metadata = wheel_metadata(wheel)
    required = {requirement_name(line) for line in metadata.get_all("Requires-Dist", [])}
    return LockedFile(
        version=metadata["Version"],
        file=wheel.name,
        sha256=sha256(wheel),
        requires=tuple(sorted(required & names)),
    )


def requirement_name(requirement: str) -> str:
    """Takes the name off a requirement; one that an extra asks for has none."""
    if re.search(r"extra\s*==", requirement):
        return ""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    return normalized(found.group()) if found else ""


def normalized(name: str) -> str:
    """Normalizes a distribution's name as PEP 503 does."""
    return re.sub(r"[-_.]+", "-", name).lower()


def wheel_metadata(wheel: Path) -> Message:
    """Reads a wheel's METADATA."""
    with zipfile.ZipFile(wheel) as archive:
        member = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(member).decode())


def wheel_member(wheel: Path, suffix: str) -> bytes:
    """Reads one file of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith(suffix)))
