"""A namespace that tests of builds, stubs and development write, and calls of it."""

import json
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentix import LocalDeployment, RuntimeClient, SandboxConfig
from agentix.local.bundle import make_runtime_bundle
from agentix.version import VERSION

REPOSITORY = Path(__file__).resolve().parents[2]

STUBS = '''"""Count words."""

from collections.abc import AsyncIterator

__image__ = "agentix-test/counter:1.0.0"


def count(text: str) -> int:
    """Count the words of a text."""
    raise NotImplementedError


def words(text: str) -> AsyncIterator[str]:
    """Yield the words of a text."""
    raise NotImplementedError


def fail(reason: str) -> None:
    """Fails."""
    raise NotImplementedError
'''

IMPL = '''"""The impls of the counter."""

from collections.abc import AsyncIterator


def count(text: str) -> int:
    return len(text.split())


async def words(text: str) -> AsyncIterator[str]:
    for word in text.split():
        yield word


def fail(reason: str) -> None:
    raise ValueError(reason)
'''

REGISTER = '''"""Bind the impls to their stubs."""

from agentix.dispatch import Dispatcher

from . import _impl, count, fail, words


def register() -> Dispatcher:
    dispatcher = Dispatcher()
    dispatcher.bind(count, _impl.count)
    dispatcher.bind(words, _impl.words)
    dispatcher.bind(fail, _impl.fail)
    return dispatcher
'''

MANIFEST = {
    "abi": 1,
    "name": "counter",
    "version": "1.0.0",
    "package": "agentix_namespaces.counter",
    "description": "Counts words.",
}


def write_counter(source: Path) -> Path:
    """Write a namespace of pure Python, and return its directory."""
    package = source / "agentix_namespaces" / "counter"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(STUBS)
    (package / "_impl.py").write_text(IMPL)
    (package / "_register.py").write_text(REGISTER)
    (source / "manifest.json").write_text(json.dumps(MANIFEST))
    return source


def copy_namespace(name: str, target: Path) -> Path:
    """Copy a namespace of this repository, without what tools left in it."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    return Path(shutil.copytree(REPOSITORY / "namespaces" / name, target, ignore=ignored))


def write_wheel(
    directory: Path, name: str, modules: Mapping[str, str], tag: str = "py3-none-any"
) -> Path:
    """Write a wheel of version 1.2.3, as a build backend does."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}-1.2.3-{tag}.whl"
    information = f"{name}-1.2.3.dist-info"
    metadata = f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.2.3\nLicense-Expression: MIT\n"
    wheel = f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n"
    files = {f"{information}/METADATA": metadata, f"{information}/WHEEL": wheel, **modules}
    record = "".join(f"{file},,\n" for file in [*files, f"{information}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in {**files, f"{information}/RECORD": record}.items():
            archive.writestr(zipfile.ZipInfo(file), text)
    return path


async def call_in_sandbox(bundles: Path, reference: str, function: Any, **arguments: Any) -> Any:
    """Call a function of a bundle in a sandbox of this machine."""
    runtime = make_runtime_bundle(bundles / "agentix" / "runtime" / VERSION)
    config = SandboxConfig(image="/", runtime=str(runtime), namespaces=[reference])
    async with (
        LocalDeployment(bundles=bundles) as deployment,
        deployment.session(config) as sandbox,
        RuntimeClient(sandbox.runtime_url, token=sandbox.token) as client,
    ):
        return await client.remote(function, **arguments)
