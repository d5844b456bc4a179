"""From a source tree to an image, an archive or a bundle, doing nothing twice."""

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from agentix.errors import UsageError
from agentix.namespace_sdk.build.archive import Archive, Contents, ensure_archive
from agentix.namespace_sdk.build.builder import BuilderName, Choice, choose_builder
from agentix.namespace_sdk.build.by_docker import build_by_docker
from agentix.namespace_sdk.build.by_nix import build_by_nix
from agentix.namespace_sdk.build.engine import engine_answers, load_archive, loaded_id
from agentix.namespace_sdk.build.kept import forget_unused, mark_used
from agentix.namespace_sdk.build.plain import build_plain
from agentix.namespace_sdk.build.progress import Progress
from agentix.namespace_sdk.build.project import Project
from agentix.namespace_sdk.build.record import LOCK, SBOM, Record
from agentix.namespace_sdk.build.wheels import find_wheels
from agentix.namespace_sdk.store import exclusive, write_bundle

__all__ = ["Build", "Built", "default_cache"]


def default_cache() -> Path:
    """Gives the directory that builds keep what they made in."""
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
    progress: Progress
    """Who is told about the steps."""

    @contextmanager
    def made(self) -> Iterator["Built"]:
        """Builds the closure, and holds the cache while something is made of it.

        Raises:
            UsageError: The namespace cannot be built by that builder, or on this machine.
            BuildError: A program that the build needs failed.
        """
        choice = self._choice()
        self.progress.note(f"builder: {choice.builder} ({choice.reason})")
        if choice.builder == "plain":
            self._warn_of_interpreters()
        with exclusive(self.cache):
            with self.progress.step(f"building {self.project.manifest.name}"):
                record = self._record(choice.builder)
            yield Built(self, record)
            forget_unused(self.cache)

    def _choice(self) -> Choice:
        if self.builder is None:
            return choose_builder(self.project)
        if self.builder != "plain" and self.project.wheels:
            raise UsageError(f"the {self.builder} builder takes wheels from default.nix only")
        return Choice(self.builder, "as asked for")

    def _warn_of_interpreters(self) -> None:
        for name, interpreter in self.project.programs().items():
            if interpreter:
                self.progress.note(
                    f"bin/{name} runs where the task image has its interpreter: {interpreter}"
                )

    def _record(self, builder: BuilderName) -> Record:
        wheels = find_wheels(self.project.wheels, self.project.source, self.cache)
        mark_used(wheel.path.parent for wheel in wheels if self._keeps(wheel.path))
        match builder:
            case "plain":
                closure = build_plain(self.project, wheels, self.cache / "plain")
                mark_used(map(closure.physical, closure.paths))
            case "nix":
                closure = build_by_nix(self.project, self.platform)
            case "docker":
                place = self.cache / "docker"
                closure = build_by_docker(self.project, self.platform, self.nix_image, place)
                mark_used([closure.root])
        return Record(self.project, closure, wheels, builder, self.platform)

    def _keeps(self, path: Path) -> bool:
        return path.is_relative_to(self.cache)


@dataclass
class Built:
    """A closure with its record, and what can be made of it."""

    build: Build
    """What was asked for."""
    record: Record
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
        """Writes the image's archive into the cache, unless it is there."""
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
        """Loads the image into Docker, unless it is there, and gives its id.

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
        """Writes an archive for `docker load`, and gives the image's id."""
        archive = self.archive()
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.partial")
        shutil.copyfile(archive.path, partial)
        partial.replace(path)
        return archive.image_id

    def lay_out(self, bundles: Path) -> Path:
        """Writes a bundle to where `LocalDeployment(bundles=...)` looks, and gives its path."""
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
        """Pushes the image to the registry that its reference names, and gives its digest.

        Raises:
            BuildError: The registry cannot be reached, or refuses.
        """
        from agentix.namespace_sdk.build.push import push  # the HTTP library takes a while

        archive = self.archive()
        with self.build.progress.step(f"pushing {self.tag}"):
            return await push(archive, self.tag)
