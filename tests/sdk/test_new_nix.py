"""What `new` renders for Nix and Docker works outside of this repository, on the offline set."""

import subprocess
import sys
from pathlib import Path

import pytest

from agentix.namespace_sdk.check import check
from agentix.namespace_sdk.store import Closure
from nix.closures import Builder, default_store
from tests.docs.test_writing_a_namespace import offline_package_set
from tests.docs.workbench import Workbench
from tests.sdk.conftest import KINDS

REPOSITORY = Path(__file__).resolve().parents[2]
EXPRESSION = """
import {functions} {{
  pkgs = import <nixpkgs> {{ }};
  source = {source};
}}
"""


@pytest.fixture(scope="module")
def directories(builder: Builder, rendered: Path) -> dict[str, Path]:
    return {kind: rendered / f"my-{kind}" for kind in KINDS}


def test_rendered_expression_builds_what_the_repository_would(
    builder: Builder, directories: dict[str, Path], tmp_path: Path
) -> None:
    """Guard against a drift between the template and nix/namespace.nix: the same files."""
    expressions = []
    for kind, directory in directories.items():
        text = EXPRESSION.format(functions=REPOSITORY / "nix/namespace.nix", source=directory)
        (tmp_path / f"{kind}.nix").write_text(text)
        expressions += [directory, tmp_path / f"{kind}.nix"]
    contents = [contents_of(closure) for closure in builder.build(expressions)]
    assert contents[0::2] == contents[1::2]
    assert all("manifest.json" in files for files in contents)


def contents_of(closure: Closure) -> dict[str, tuple[int, bytes]]:
    """Return mode and content of each file of an entry; bytecode names the path it was made in."""
    entry = closure.physical(closure.entry)
    files = {path: path.stat().st_mode for path in entry.rglob("*") if path.is_file()}
    return {
        str(path.relative_to(entry)): (mode, b"" if path.suffix == ".pyc" else path.read_bytes())
        for path, mode in files.items()
    }


def test_rendered_dockerfile_exports_a_closure_that_passes_the_check(
    builder: Builder, directories: dict[str, Path], tmp_path: Path
) -> None:
    """Type what the Dockerfile's builder runs, with the offline package set as nixpkgs."""
    if default_store(REPOSITORY / ".cache") is not None:
        pytest.skip("this user cannot build in the machine's Nix store")
    lines = (directories["agent"] / "Dockerfile").read_text().replace("\\\n", "").splitlines()
    command = next(line for line in lines if line.startswith("RUN ")).removeprefix("RUN ")
    bench = Workbench(directories["agent"], environment=offline_package_set())
    built = bench.run(command.replace("/export", str(tmp_path / "export")))
    assert built.returncode == 0, built.stderr
    export = tmp_path / "export"
    assert check(str(export)) == []
    program = export / "entry" / "bin" / "my-agent"
    assert program.read_text().startswith("#!/nix/store/")


def test_image_of_a_rendered_agent_passes_the_check(
    docker_engine: str, builder: Builder, directories: dict[str, Path]
) -> None:
    command = [sys.executable, "-m", "nix.images", "load", str(directories["agent"])]
    loaded = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert loaded.returncode == 0, loaded.stderr
    try:
        assert check("agentix/my-agent:0.1.0") == []
    finally:
        subprocess.run(["docker", "rmi", "agentix/my-agent:0.1.0"], check=True)
