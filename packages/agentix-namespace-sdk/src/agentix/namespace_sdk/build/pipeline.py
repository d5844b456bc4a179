"""From a source tree to an image, an archive or a bundle, doing nothing twice."""

import hashlib
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TextIO

from agentix.errors import UsageError
from agentix.namespace_sdk.build.archive import Archive, Contents, ensure_archive, load_archive
from agentix.namespace_sdk.build.builders import (
    BuilderChoice,
    BuilderName,
    build_closure,
    choose_builder,
)
from agentix.namespace_sdk.build.programs import engine_answers, loaded_id
from agentix.namespace_sdk.build.project import Project, find_wheels
from agentix.namespace_sdk.build.record import LOCK, SBOM, BuildRecord
from agentix.namespace_sdk.store import Closure, exclusive, remove, write_bundle

__all__ = ["Build", "BuildResult", "Progress", "default_cache"]

CLEAR_LINE = "\r\x1b[2K"
KEPT_SECONDS = 30 * 24 * 3600.0
"""How long something is kept that no build uses."""

KEPT = (
    "docker/*",
    "images/**/*.json",
    "images/**/*.tar",
    "plain/.making-*",
    "plain/nix/store/*",
    "sboms/*",
    "wheels/*",
)
"""What is kept or removed as a whole, below the cache."""


def default_cache() -> Path:
    """Return the directory that builds keep what they made in."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "agentix"


@dataclass(frozen=True)
class Build:
    """What is to be built, and how."""

    project: Project
    """The namespace."""
    builder: BuilderName | None
    """What builds it; `None` where that is chosen."""
    platform: str
    """What it is built for, such as `linux/amd64`."""
    cache: Path
    """Where all that was made is kept, by its content."""
    nix_image: str
    """The image with Nix that the Docker builder builds in."""
    progress: "Progress"
    """What shows the steps."""

    @contextmanager
    def run(self) -> Iterator["BuildResult"]:
        """Build the closure, and hold the cache while something is made of it.

        Raises:
            UsageError: The namespace cannot be built by that builder, or on this machine.
            BuildError: A program that the build needs failed.
        """
        choice = self._choose()
        self.progress.note(f"builder: {choice.builder} ({choice.reason})")
        if choice.builder == "plain":
            self._warn_of_interpreters()
        with exclusive(self.cache):
            with self.progress.step(f"building {self.project.manifest.name}"):
                record = self._build(choice.builder)
            yield BuildResult(self, record)
            remove_unused(self.cache)

    def _choose(self) -> BuilderChoice:
        if self.builder is None:
            return choose_builder(self.project)
        if self.builder != "plain" and self.project.wheels:
            raise UsageError(f"the {self.builder} builder takes wheels from default.nix only")
        return BuilderChoice(self.builder, "as asked for")

    def _warn_of_interpreters(self) -> None:
        for name, interpreter in self.project.programs().items():
            if interpreter:
                self.progress.note(
                    f"bin/{name} runs where the task image has its interpreter: {interpreter}"
                )

    def _build(self, builder: BuilderName) -> BuildRecord:
        wheels = find_wheels(self.project.wheels, self.project.source, self.cache)
        closure = build_closure(
            self.project,
            builder,
            wheels,
            platform=self.platform,
            plain_root=self.cache / "plain",
            docker_cache=self.cache / "docker",
            nix_image=self.nix_image,
        )
        used = [wheel.path.parent for wheel in wheels] + self._kept_parts(builder, closure)
        mark_used(path for path in used if path.is_relative_to(self.cache))
        return BuildRecord(self.project, closure, wheels, builder, self.platform)

    def _kept_parts(self, builder: BuilderName, closure: Closure) -> list[Path]:
        """Return what the cache has of a closure, which it keeps or removes as a whole."""
        return [closure.root] if builder == "docker" else [*map(closure.physical, closure.paths)]


@dataclass
class BuildResult:
    """A closure with its record, and what can be made of it."""

    build: Build
    """What was to be built."""
    record: BuildRecord
    """What went in, and what came out."""

    @property
    def tag(self) -> str:
        """The image's reference."""
        return self.build.project.tag

    @cached_property
    def files(self) -> dict[str, bytes]:
        """The lock and the bill of materials, by the names of their files."""
        lock = self.record.lock()
        kept = self.build.cache / "sboms" / f"{hashlib.sha256(lock.encode()).hexdigest()}.json"
        if not kept.exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            partial = kept.with_suffix(".partial")
            partial.write_text(self.record.sbom())
            partial.replace(kept)
        mark_used([kept])
        return {LOCK: lock.encode(), SBOM: kept.read_bytes()}

    def archive(self) -> Archive:
        """Write the image's archive into the cache, unless it is there."""
        project = self.build.project
        labels = {
            "org.opencontainers.image.title": project.manifest.name,
            "org.opencontainers.image.version": project.manifest.version,
            "org.agentix.lock": self.files[LOCK].decode(),
            "org.agentix.sbom": self.files[SBOM].decode(),
        }
        platform = self.build.platform
        contents = Contents(self.record.closure, self.tag, labels, self.files, platform)
        place = self.build.cache / "images" / project.repository
        name = f"{project.version}-{platform.replace('/', '-')}.tar"
        with self.build.progress.step("writing the image"):
            archive = ensure_archive(contents, place / name)
        mark_used([archive.path, archive.record])
        return archive

    def load(self) -> str:
        """Load the image into Docker, unless it is there, and return its id.

        Raises:
            UsageError: No engine answers.
            BuildError: The engine refuses the image.
        """
        known = loaded_id(self.tag)
        if known is None and not engine_answers():
            raise UsageError("no Docker engine answers: give --output DIRECTORY, or --push")
        archive = self.archive()
        if known != archive.image_id:
            with self.build.progress.step("loading the image into Docker"):
                load_archive(archive)
        return archive.image_id

    def save(self, path: Path) -> str:
        """Write an archive for `docker load`, and return the image's id."""
        archive = self.archive()
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.partial")
        shutil.copyfile(archive.path, partial)
        partial.replace(path)
        return archive.image_id

    def lay_out(self, bundles: Path) -> Path:
        """Write a bundle to where `LocalDeployment(bundles=...)` looks, and return its path."""
        project = self.build.project
        directory = bundles.absolute() / project.repository / project.version
        with self.build.progress.step("writing the bundle"):
            write_bundle(self.record.closure, directory)
            for name, content in self.files.items():
                path = directory / name
                if not path.exists() or path.read_bytes() != content:
                    path.write_bytes(content)
        return directory

    async def push(self) -> str:
        """Push the image to the registry that its reference names, and return its digest.

        Raises:
            BuildError: The registry cannot be reached, or refuses.
        """
        from agentix.namespace_sdk.build.registry import push  # which imports an HTTP library

        archive = self.archive()
        with self.build.progress.step(f"pushing {self.tag}"):
            return await push(archive, self.tag)


def mark_used(paths: Iterable[Path]) -> None:
    """Note that a build uses files or directories now.

    A file gets a new time of access; a directory one of modification, because listing it changes
    the time of access.
    """
    now = time.time_ns()
    for path in paths:
        os.utime(path, ns=(now, now if path.is_dir() else path.stat().st_mtime_ns))


def remove_unused(cache: Path) -> None:
    """Remove what no build has made or used for `KEPT_SECONDS`; the caller holds the cache."""
    before = time.time() - KEPT_SECONDS
    for path in list(chain.from_iterable(map(cache.glob, KEPT))):
        if _last_used(path) < before:
            remove(path)


def _last_used(path: Path) -> float:
    status = path.lstat()
    return status.st_mtime if path.is_dir() else max(status.st_atime, status.st_mtime)


class Progress:
    """A line for each step of a build, which on a terminal ends with its time.

    Args:
        stream: Where to; standard error by default.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._terminal = self._stream.isatty()

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Show a step while the block lasts."""
        started = time.monotonic()
        if self._terminal:
            self._write(f"{text} ...")
        else:
            self._write(f"{text}\n")
        try:
            yield
        finally:
            if self._terminal:
                self._write(f"{CLEAR_LINE}{text} ({time.monotonic() - started:.1f} s)\n")

    def note(self, text: str) -> None:
        """Show a line that stays."""
        self._write(f"{text}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
