"""A stub package on disk: what `pip install` takes and callers import."""

import json
import re
from pathlib import Path

from agentix.errors import UsageError
from agentix.manifest import NamespaceManifest
from agentix.namespace_sdk.stubs.classes import write_classes
from agentix.namespace_sdk.stubs.functions import write_function
from agentix.namespace_sdk.stubs.names import class_names
from agentix.namespace_sdk.stubs.target import Described
from agentix.namespace_sdk.stubs.text import docstring
from agentix.namespace_sdk.stubs.types import Types
from agentix.schema import DescribedNamespace, NamespaceSchemas
from agentix.version import VERSION

__all__ = ["write_module", "write_stubs"]

MODULES = (
    *("collections.abc", "dataclasses", "datetime", "decimal", "enum", "ipaddress", "pathlib"),
    *("typing", "typing_extensions", "uuid"),
)
"""What stubs may need, imported where they do."""

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = {name}
version = {version}
description = {description}
requires-python = ">=3.11"
dependencies = ["agentix-core~={agentix}"]

[tool.hatch.build.targets.wheel]
packages = ["agentix_namespaces"]
"""


def write_stubs(described: Described, directory: Path | None) -> list[Path]:
    """Writes a distribution with the stubs of all namespaces.

    Args:
        described: The namespaces.
        directory: Where it goes; by default `<name>-stubs` here.

    Returns:
        The directory of each package.

    Raises:
        UsageError: A namespace could not be described, or its impl is where its stubs would go.
    """
    manifests = [namespace.manifest for namespace in described.namespaces]
    modules = [_module(namespace, described.image) for namespace in described.namespaces]
    called = f"{manifests[0].name}-stubs" if len(manifests) == 1 else "agentix-stubs"
    directory = directory or Path(re.sub(r"[^\w.-]", "-", called))
    packages = [directory.joinpath(*manifest.package.split(".")) for manifest in manifests]
    for package in packages:
        if (package / "_impl.py").exists() or (package / "_register.py").exists():
            raise UsageError(f"{package} is a namespace itself: give another --output")
    for package, text in zip(packages, modules, strict=True):
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text(text, encoding="utf-8")
        (package / "py.typed").touch()
    (directory / "pyproject.toml").write_text(_project(called, manifests), encoding="utf-8")
    return packages


def _module(namespace: DescribedNamespace, image: str | None) -> str:
    if namespace.schemas is None:
        package = namespace.manifest.package
        raise UsageError(f"{package} cannot be described: {namespace.error}")
    return write_module(namespace.manifest, namespace.schemas, image)


def _project(name: str, manifests: list[NamespaceManifest]) -> str:
    described = ", ".join(manifest.package for manifest in manifests)
    return PROJECT.format(
        name=json.dumps(f"agentix-namespace-{name}"),
        version=json.dumps(manifests[0].version),
        description=json.dumps(f"Typed stubs of {described}."),
        agentix=VERSION,
    )


def write_module(manifest: NamespaceManifest, schemas: NamespaceSchemas, image: str | None) -> str:
    """Writes the module with the stubs of a namespace.

    Args:
        manifest: What the namespace says of itself.
        schemas: What can be called.
        image: The reference that callers give as the module, where there is one.
    """
    definitions = schemas.definitions
    functions = [function.name for function in schemas.functions]
    names = class_names(definitions, functions)
    types = Types(names)
    classes = write_classes(definitions, names, types)
    module = manifest.package.rpartition(".")[2]
    parts = [
        *classes.values(),
        *(write_function(each, module, types, definitions) for each in schemas.functions),
    ]
    body = "\n\n".join(parts)
    head = docstring(
        f"Stubs of {manifest.name} {manifest.version}, written by agentix-namespace.", ""
    )
    imports = [f"import {name}" for name in MODULES if re.search(rf"\b{name}\.", body)]
    public = [f"    {json.dumps(name)}," for name in sorted([*classes, *functions])]
    lines = [
        head,
        "",
        "from __future__ import annotations",
        "",
        *imports,
        "",
        "__all__ = [",
        *public,
        "]",
    ]
    if image is not None:
        lines += ["", f"__image__ = {json.dumps(image)}"]
    return "\n".join([*lines, "", "", body])
