"""The README's example and those on the pages of the distributions, run as they stand."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from agentix import Deployment, LocalDeployment, RuntimeClient, SandboxConfig
from agentix.wire import READY_PREFIX
from agentix_namespaces import mock_agent
from tests.docs.blocks import read_blocks
from tests.docs.workbench import Workbench

REPOSITORY = Path(__file__).resolve().parents[2]


def test_example_prints_what_it_shows(clone: Workbench, host_bundles: Path) -> None:
    (clone.directory / ".cache").mkdir()
    (clone.directory / ".cache" / "host-bundles").symlink_to(host_bundles)
    clone.follow(read_blocks(REPOSITORY / "README.md"))


def load(distribution: str, directory: Path) -> ModuleType:
    """Imports the Python example of a distribution's page."""
    page = REPOSITORY / "packages" / distribution / "README.md"
    (block,) = [block for block in read_blocks(page) if block.language == "python"]
    path = directory / "example.py"
    path.write_text(block.text)
    spec = importlib.util.spec_from_file_location("example", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_example_of_the_client(
    host_bundles: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deployment: Deployment = LocalDeployment(bundles=host_bundles)
    config = SandboxConfig(image="/", namespaces=[mock_agent])
    async with deployment, deployment.session(config) as sandbox:
        await load("agentix-client", tmp_path).call(sandbox.runtime_url, sandbox.token)
    assert capsys.readouterr().out == "0\nhello\n"


async def test_example_of_the_local_deployment(
    host_bundles: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await load("agentix-local", tmp_path).call(host_bundles)
    assert capsys.readouterr().out.startswith("RunResult(exit_code=0, patch=")


def test_example_of_the_core_is_a_register_function(tmp_path: Path) -> None:
    page = REPOSITORY / "packages" / "agentix-core" / "README.md"
    (block,) = read_blocks(page)
    package = tmp_path / "example_package"
    package.mkdir()
    (package / "__init__.py").write_text("def run() -> int:\n    raise NotImplementedError\n")
    (package / "_impl.py").write_text("def run() -> int:\n    return 7\n")
    (package / "_register.py").write_text(block.text)
    command = "python -c 'from example_package._register import register; print(len(register()))'"
    assert Workbench(tmp_path).run(command).stdout == "1\n"


async def test_runtime_starts_by_hand(tmp_path: Path) -> None:
    (block,) = read_blocks(REPOSITORY / "packages" / "agentix-runtime" / "README.md")
    command = block.text.strip().replace("8000", "0").replace("/tmp/workspace", f"{tmp_path}/work")
    with Workbench(tmp_path).started(f"exec env {command}") as process:
        assert process.stdout is not None
        url = process.stdout.readline().removeprefix(READY_PREFIX).strip()
        async with RuntimeClient(url) as client:
            assert (await client.health()).status == "ok"
