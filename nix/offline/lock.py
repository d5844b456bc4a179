"""The lock: which files the offline package set is made of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from nix.offline.command import FetchError


@dataclass(frozen=True)
class LockedFile:
    """One file of the package set."""

    version: str
    file: str
    sha256: str
    requires: tuple[str, ...]
    """Names of other locked files of the same kind that this one needs."""


@dataclass(frozen=True)
class Lock:
    """Everything the offline package set is made of."""

    suite: str
    python: str
    debian: Mapping[str, LockedFile]
    wheels: Mapping[str, LockedFile]

    @classmethod
    def read(cls, path: Path) -> Lock:
        """Reads a lock file."""
        content = json.loads(path.read_text())
        return cls(
            suite=content["suite"],
            python=content["python"],
            debian={name: read_locked_file(entry) for name, entry in content["debian"].items()},
            wheels={name: read_locked_file(entry) for name, entry in content["wheels"].items()},
        )

    def write(self, path: Path) -> None:
        """Writes the lock with names in order, so that a refresh shows only what changed."""
        path.write_text(json.dumps(asdict(self), indent=2, sort_keys=True) + "\n")


def read_locked_file(entry: Mapping[str, str | list[str]]) -> LockedFile:
    """Reads one entry of a lock file."""
    return LockedFile(
        version=str(entry["version"]),
        file=str(entry["file"]),
        sha256=str(entry["sha256"]),
        requires=tuple(entry["requires"]),
    )


def lacking(files: Mapping[str, LockedFile], folder: Path) -> list[str]:
    """Names the locked files that the folder does not hold."""
    return [name for name, entry in files.items() if not matches(entry, folder)]


def matches(entry: LockedFile, folder: Path) -> bool:
    """Tells whether the folder holds the locked file, unchanged."""
    path = folder / entry.file
    return path.is_file() and sha256(path) == entry.sha256


def verify(files: Mapping[str, LockedFile], names: Iterable[str], folder: Path) -> None:
    """Checks downloads against the lock."""
    for name in names:
        if not matches(files[name], folder):
            raise FetchError(
                f"{files[name].file} is missing from {folder} after its download, or is not the "
                "file that was locked; see nix/offline/lock.json"
            )


def sha256(path: Path) -> str:
    """Digests a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
