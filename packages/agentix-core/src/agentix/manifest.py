"""The manifest that marks a mount as an Agentix namespace (protocol: Manifest)."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)

from agentix.errors import ManifestError

__all__ = [
    "AGENTIX_CLOSURE_ABI",
    "NAMESPACE_PARENT",
    "NamespaceManifest",
    "find_package",
    "read_manifest",
]

AGENTIX_CLOSURE_ABI = 1
"""The version of the layout that a closure has under `/nix`."""

NAMESPACE_PARENT = "agentix_namespaces"
"""The import package that all namespaces live in."""

SEMANTIC_VERSION = (
    r"^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$"
)


def _not_a_truth_value(value: object) -> object:
    """Refuses `true`, which Python takes for 1."""
    if isinstance(value, bool):
        raise ValueError("Input should be 1")
    return value


class NamespaceManifest(BaseModel):
    """What `/nix/entry/manifest.json` says of a namespace; fields beyond these are preserved."""

    model_config = ConfigDict(extra="allow", frozen=True)

    abi: Annotated[Literal[1], BeforeValidator(_not_a_truth_value)]
    """Must equal `AGENTIX_CLOSURE_ABI`."""
    name: Annotated[str, StringConstraints(min_length=1)]
    """The name for people and logs."""
    version: Annotated[str, StringConstraints(pattern=SEMANTIC_VERSION)]
    """The semantic version of the namespace."""
    package: Annotated[
        str, StringConstraints(pattern=rf"^{NAMESPACE_PARENT}\.[A-Za-z_][A-Za-z0-9_]*$")
    ]
    """The import path, and the routing key: `agentix_namespaces.<name>`."""
    description: str | None = None
    """A short description."""
    kind: str | None = Field(default=None)
    """A free tag for tools; the runtime ignores it."""


def find_package(source: Path) -> tuple[NamespaceManifest, Path]:
    """Reads the manifest of a source tree and finds the package that it names.

    Raises:
        ManifestError: The manifest is missing or malformed, or its package is not there.
    """
    manifest = read_manifest(source / "manifest.json")
    package = source.joinpath(*manifest.package.split("."))
    if not package.is_dir():
        raise ManifestError(f"{source} has no package {manifest.package}: {package} is not there")
    return manifest, package


def read_manifest(path: Path) -> NamespaceManifest:
    """Reads the manifest at `path`.

    Raises:
        ManifestError: The file is missing, is not a manifest, or has another ABI.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ManifestError(f"no manifest at {path}: {error.strerror}") from error
    try:
        return NamespaceManifest.model_validate_json(text, strict=True)
    except ValidationError as error:
        reasons = "; ".join(
            f"{'.'.join(map(str, item['loc'])) or 'manifest'}: {item['msg']}"
            for item in error.errors(include_url=False)
        )
        raise ManifestError(f"malformed manifest {path}: {reasons}") from error
