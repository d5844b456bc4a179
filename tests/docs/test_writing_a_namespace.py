"""The recipe for a namespace, followed from an empty directory to an image."""

import asyncio
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from agentix.docker import DockerDeployment
from nix.closures import Builder, default_store
from tests.deployments.conftest import Target
from tests.docs.blocks import in_sections, read_blocks
from tests.docs.workbench import Workbench

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "writing-a-namespace.md"
NIX = "An image with Nix"
DOCKERFILE = "An image with Docker alone"
OFFLINE_PIP = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}
"""pip takes hatchling from the environment; the second switch turns isolation off by 0."""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Workbench:
    """Gives the empty directory beside the clone, and a Python into which it can be installed."""
    root = tmp_path_factory.mktemp("writing")
    (root / "agentix").symlink_to(REPOSITORY)
    (root / "hello").mkdir()
    return Workbench(root / "hello", make_environment(root / "environment"), OFFLINE_PIP)


def make_environment(directory: Path) -> Path:
    """Makes a virtual environment that sees this one's packages and keeps its own apart."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    inner = sysconfig.get_path("purelib", "venv", {"base": str(directory)})
    Path(inner, "outer.pth").write_text(
        f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    )
    pip = directory / "bin" / "pip"
    pip.write_text(f'#!/bin/sh\nexec {directory}/bin/python -m pip "$@"\n')
    pip.chmod(0o755)
    return directory / "bin"


@pytest.fixture(scope="module")
def written(bench: Workbench) -> Workbench:
    """Follows the page up to its first call."""
    blocks = read_blocks(PAGE)
    bench.follow(block for block in blocks if block.section not in (NIX, DOCKERFILE))
    return bench


def test_recipe_leads_to_a_call_without_docker(written: Workbench) -> None:
    assert sorted(os.listdir(written.directory / "bundles" / "agentix")) == ["hello", "runtime"]


def test_recipe_leads_to_an_image(written: Workbench, docker_target: Target) -> None:
    try:
        written.follow(in_sections(read_blocks(PAGE), NIX))
    finally:
        remove_image("agentix/hello:0.1.0")


def remove_image(tag: str) -> None:
    """Removes an image from the engine, and the volume of its closure."""
    found = ["docker", "image", "inspect", tag]
    if subprocess.run(found, capture_output=True, check=False).returncode == 0:
        asyncio.run(remove_volume(tag))
        subprocess.run(["docker", "rmi", tag], check=True, capture_output=True)


async def remove_volume(tag: str) -> None:
    async with DockerDeployment() as deployment:
        await deployment.prune(tag)


def offline_package_set() -> dict[str, str]:
    """Gives what lets plain Nix find the offline package set in the place of nixpkgs."""
    cache = REPOSITORY / ".cache"
    return {
        "AGENTIX_OFFLINE_CACHE": str(cache / "offline"),
        "AGENTIX_OFFLINE_LOCK": str(Builder(cache).lock),
        "NIX_CONF_DIR": str(REPOSITORY / "nix" / "offline"),
        "NIX_PATH": f"nixpkgs={REPOSITORY / 'nix' / 'offline'}",
    }


def test_dockerfile_exports_the_closure(written: Workbench, docker_target: Target) -> None:
    """Types what the Dockerfile's builder runs, with the offline package set as nixpkgs."""
    if default_store(REPOSITORY / ".cache") is not None:
        pytest.skip("this user can not build in the machine's Nix store")
    dockerfile = next(block.text for block in read_blocks(PAGE) if block.title == "Dockerfile")
    command = next(line for line in dockerfile.splitlines() if line.startswith("RUN "))
    root = written.directory.parent
    for name in ("nix", "packages"):
        (root / name).symlink_to(REPOSITORY / name)
    bench = Workbench(root, environment=offline_package_set())
    built = bench.run(command.removeprefix("RUN ").replace("/export ", f"{root}/export ", 1))
    assert built.returncode == 0, built.stderr
    entry = root / "export" / "entry"
    assert json.loads((entry / "manifest.json").read_text())["name"] == "hello"
    assert (entry / "python/agentix_namespaces/hello/_register.py").is_file()
    assert (entry / "bin/hello-cli").is_file()
