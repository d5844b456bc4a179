"""What the tests of images share: closures built by real Nix, and their archives."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentix.namespace_sdk.build.archive import Archive, ensure_loaded
from agentix.namespace_sdk.store import Closure
from nix.closures import Builder, default_store
from nix.images import Image, ensure_image, find_image

CACHE = Path(__file__).resolve().parents[2] / ".cache"


@pytest.fixture(scope="session")
def builder() -> Builder:
    """Gives Nix on the offline package set; the test is skipped by name where Nix is missing."""
    if shutil.which("nix-build") is None:
        reason = "nix-build is not installed"
        if os.environ.get("AGENTIX_REQUIRE_DOCKER") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return Builder(CACHE, store=default_store(CACHE))


@pytest.fixture(scope="session")
def runtime_image() -> Image:
    return find_image("runtime")


@pytest.fixture(scope="session")
def namespace_image() -> Image:
    return find_image("mock-agent")


@pytest.fixture(scope="session")
def runtime_closure(builder: Builder, runtime_image: Image) -> Closure:
    return builder.build([runtime_image.expression])[0]


@pytest.fixture(scope="session")
def namespace_closure(builder: Builder, namespace_image: Image) -> Closure:
    return builder.build([namespace_image.expression])[0]


@pytest.fixture(scope="session")
def runtime_archive(runtime_image: Image, runtime_closure: Closure) -> Archive:
    return ensure_image(runtime_image, runtime_closure, CACHE / "images")


@pytest.fixture(scope="session")
def namespace_archive(namespace_image: Image, namespace_closure: Closure) -> Archive:
    return ensure_image(namespace_image, namespace_closure, CACHE / "images")


@pytest.fixture(scope="session")
def runtime_tag(docker_engine: str, runtime_image: Image, runtime_archive: Archive) -> str:
    """Gives the tag of the runtime's image, loaded into the engine."""
    ensure_loaded(runtime_archive, runtime_image.tag)
    return runtime_image.tag


@pytest.fixture(scope="session")
def namespace_tag(docker_engine: str, namespace_image: Image, namespace_archive: Archive) -> str:
    """Gives the tag of the mock agent's image, loaded into the engine."""
    ensure_loaded(namespace_archive, namespace_image.tag)
    return namespace_image.tag


@pytest.fixture(scope="session")
def runtime_volume(runtime_tag: str) -> Iterator[str]:
    """Gives a volume that Docker has filled from the runtime's image."""
    name = f"agentix-test-images-{os.getpid()}"
    create = ["docker", "create", "--name", name, "--network", "none", "-v", f"{name}:/nix"]
    subprocess.run([*create, runtime_tag, "none"], check=True, capture_output=True)
    yield name
    subprocess.run(["docker", "rm", "--force", name], check=True, capture_output=True)
    subprocess.run(["docker", "volume", "rm", name], check=True, capture_output=True)
