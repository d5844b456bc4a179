"""The record of a build: a lock of what went in, and a bill of materials in CycloneDX."""

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import NAMESPACE_URL, uuid5

from agentix.layout import shipped
from agentix.namespace_sdk.build.project import EXPRESSION, Project, Wheel
from agentix.namespace_sdk.store import Closure

if TYPE_CHECKING:
    from cyclonedx.model.component import Component

__all__ = ["LOCK", "SBOM", "BuildRecord"]

LOCK = "lock.json"
"""The file, below `/nix`, that lists what went into the build."""

SBOM = "sbom.cdx.json"
"""The file, below `/nix`, that lists what is in the closure, as CycloneDX."""

LOCK_FORMAT = 1
EPOCH = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
STORE_NAME = re.compile(r"[0-9a-z]{32}-(?P<name>.+?)(?:-(?P<version>\d[^-]*(?:-.*)?))?")


@dataclass(frozen=True)
class BuildRecord:
    """What went into one closure."""

    project: Project
    """The namespace."""
    closure: Closure
    """What came out."""
    wheels: Sequence[Wheel]
    """The wheels that the closure holds."""
    builder: str
    """What built it: `plain`, `nix` or `docker`."""
    platform: str
    """What it was built for."""

    def lock(self) -> str:
        """Return the lock as JSON: the digest of every source file and wheel, every store path."""
        manifest = self.project.manifest
        content = {
            "format": LOCK_FORMAT,
            "builder": self.builder,
            "platform": self.platform,
            "namespace": {
                "name": manifest.name,
                "version": manifest.version,
                "package": manifest.package,
            },
            "sources": _digests(self.project.source, self.builder),
            "programs": self.project.programs(),
            "wheels": [
                {
                    "name": wheel.name,
                    "version": wheel.version,
                    "file": wheel.path.name,
                    "sha256": wheel.digest,
                }
                for wheel in self.wheels
            ],
            "store": [path.name for path in self.closure.requirements],
            "entry": self.closure.entry.name,
        }
        return json.dumps(content, sort_keys=True, separators=(",", ":"))

    def sbom(self) -> str:
        """Return the bill of materials as CycloneDX 1.6 in JSON, the same for the same closure."""
        # Unchanged builds do without this library, which takes a while to import.
        from cyclonedx.model.bom import Bom
        from cyclonedx.output import make_outputter
        from cyclonedx.schema import OutputFormat, SchemaVersion

        bom = Bom(serial_number=uuid5(NAMESPACE_URL, self.lock()))
        bom.metadata.timestamp = EPOCH
        bom.metadata.component = root = _root_component(self.project, self.closure.entry)
        wheels = {f"{wheel.name}-{wheel.version}": wheel for wheel in self.wheels}
        components = [_component(path, wheels) for path in self.closure.requirements]
        bom.components.update(components)
        bom.register_dependency(root, components)
        outputter = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6)
        return json.dumps(
            json.loads(outputter.output_as_string()), sort_keys=True, separators=(",", ":")
        )


def _digests(source: Path, builder: str) -> dict[str, str]:
    """Return the SHA-256 of each file that the builder reads, by its path."""
    found = [source / "manifest.json"]
    if builder != "plain":
        found.append(source / EXPRESSION)
    for name in ("agentix_namespaces", "bin"):
        if (source / name).is_dir():
            found += _files(source / name)
    return {
        str(path.relative_to(source)): hashlib.sha256(_content(path)).hexdigest() for path in found
    }


def _content(path: Path) -> bytes:
    """Return what a file holds; of a link its target, which is all that the closure has of it."""
    return os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()


def _files(directory: Path) -> list[Path]:
    found: list[Path] = []
    for path in shipped(directory):
        if path.is_dir() and not path.is_symlink():
            found += _files(path)
        else:
            found.append(path)
    return found


def _root_component(project: Project, entry: Path) -> "Component":
    from cyclonedx.model.component import Component, ComponentType

    manifest = project.manifest
    return Component(
        name=manifest.name,
        version=manifest.version,
        description=manifest.description,
        type=ComponentType.APPLICATION,
        bom_ref=entry.name,
    )


def _component(path: Path, wheels: Mapping[str, Wheel]) -> "Component":
    """Return the component that a store path is: the wheel that it holds, or what its name says."""
    from cyclonedx.contrib.license.factories import LicenseFactory
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    called = path.name.partition("-")[2]
    wheel = wheels.get(called)
    if wheel is None:
        parts = STORE_NAME.fullmatch(path.name)
        name, version = parts.group("name", "version") if parts else (called, None)
        return Component(name=name, version=version, type=ComponentType.LIBRARY, bom_ref=path.name)
    return Component(
        name=wheel.name,
        version=wheel.version,
        type=ComponentType.LIBRARY,
        bom_ref=path.name,
        purl=PackageURL("pypi", None, wheel.name.lower(), wheel.version),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=wheel.digest)],
        licenses=[LicenseFactory().make_from_string(wheel.licence)] if wheel.licence else [],
    )
