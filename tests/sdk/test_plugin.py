"""The pytest plugin, used by child pytest processes as an author uses it."""

import shutil
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentix.client import RuntimeClient
from agentix.errors import ManifestError, UsageError
from agentix.namespace_sdk import assert_stub_matches_impl, mounted_runtime
from tests.deployments.conftest import Target
from tests.docs.blocks import read_blocks
from tests.docs.test_writing_a_namespace import remove_image
from tests.sdk.conftest import Command, Finished, run
from tests.sdk.namespaces import write_namespace

REPOSITORY = Path(__file__).resolve().parents[2]
README = REPOSITORY / "packages" / "agentix-namespace-sdk" / "README.md"

SANDBOXED = """
from pathlib import Path
from agentix import RuntimeClient
from agentix_namespaces import my_tool

async def test_call_in_a_sandbox(sandbox: RuntimeClient) -> None:
    await sandbox.run("mkdir -p /tmp/texts && echo needle >/tmp/texts/hay")
    found = await sandbox.remote(my_tool.search, "n", Path("/tmp/texts"))
    assert [item.text for item in found] == ["needle"]
    [mounted] = await sandbox.namespaces()
    assert mounted.manifest.name == "my-tool"
    print("runs on", (await sandbox.run("cat /proc/1/comm; ls /")).stdout)
"""


@pytest.fixture
def tool(rendered: Path, tmp_path: Path) -> Path:
    """Return a copy of the rendered tool, to be written to."""
    ignore = shutil.ignore_patterns("__pycache__", ".pytest_cache")
    return shutil.copytree(rendered / "my-tool", tmp_path / "my-tool", ignore=ignore)


def run_pytest(directory: Path, *arguments: str) -> Finished:
    return run([sys.executable, "-m", "pytest", "-q", *arguments], directory)


def test_sandbox_is_local_by_default(tool: Path) -> None:
    (tool / "tests" / "test_sandbox.py").write_text(SANDBOXED)
    finished = run_pytest(tool, "tests/test_sandbox.py", "-s")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "1 passed" in finished.stdout


def test_sandbox_is_a_container_where_docker_is_chosen(
    tool: Path, docker_target: Target, tmp_path: Path
) -> None:
    (tool / "tests" / "test_sandbox.py").write_text(SANDBOXED)
    options = ["--deployment", "docker", "--task-image", docker_target.config.image]
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "pytest", "-q", "tests/test_sandbox.py", *options]
    try:
        finished = run(command, tool, environment)
        assert finished.returncode == 0, finished.stdout + finished.stderr
        assert "1 passed" in finished.stdout
    finally:
        remove_image("agentix/my-tool:0.1.0")


def test_sandbox_is_of_a_deployment_of_ones_own(tool: Path, tmp_path: Path) -> None:
    (tool / "conftest.py").write_text(f"""
from pathlib import Path
import pytest
from agentix import LocalDeployment

@pytest.fixture
def sandbox_deployment():
    return LocalDeployment(isolation="none", directory=Path({str(tmp_path)!r}))
""")
    (tool / "tests" / "test_sandbox.py").write_text("""
async def test_where_it_runs(sandbox):
    print("runs below", (await sandbox.run("pwd")).stdout)
""")
    finished = run_pytest(tool, "tests/test_sandbox.py", "-s")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert f"runs below {tmp_path}/" in finished.stdout


def test_unknown_deployment_is_refused(tool: Path) -> None:
    finished = run_pytest(tool, "--deployment", "moon")
    assert finished.returncode == 4
    assert "argument --deployment: invalid choice: 'moon'" in finished.stderr


def test_example_of_the_readme(agentix_namespace: Command, tmp_path: Path) -> None:
    made = agentix_namespace("new", "my-namespace", "--kind", "tool", directory=tmp_path)
    assert made.returncode == 0
    [example] = [block.text for block in read_blocks(README) if block.language == "python"]
    (tmp_path / "my-namespace" / "tests" / "test_readme.py").write_text(example)
    finished = run_pytest(tmp_path / "my-namespace", "tests/test_readme.py")
    assert "2 passed" in finished.stdout, finished.stdout


def test_monkeypatch_reaches_the_impls_of_a_mounted_namespace(tool: Path) -> None:
    (tool / "tests" / "test_patched.py").write_text(
        "from pathlib import Path\n"
        "from agentix_namespaces import my_tool\n"
        "from agentix_namespaces.my_tool import _impl\n"
        "async def test_patched(mounted, monkeypatch, tmp_path):\n"
        "    found = [my_tool.Match(Path('x'), 1, 'patched')]\n"
        "    monkeypatch.setattr(_impl, '_matches', lambda pattern, directory: iter(found))\n"
        "    assert await mounted.remote(my_tool.search, 'x', tmp_path) == found\n"
    )
    finished = run_pytest(tool, "tests/test_patched.py")
    assert "1 passed" in finished.stdout, finished.stdout


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[RuntimeClient]:
    source = write_namespace(tmp_path / "source")
    with mounted_runtime(source) as url:
        async with RuntimeClient(url) as client:
            yield client


async def test_runtime_in_this_process_serves_everything(client: RuntimeClient) -> None:
    [mounted] = await client.namespaces()
    assert (mounted.manifest.name, mounted.loaded) == ("greeter", False)
    assert (await client.run("echo out")).stdout == "out\n"
    await client.upload(b"text", "note")
    assert await client.read_file("note") == b"text"


def test_runtime_leaves_no_thread_and_no_path(tmp_path: Path) -> None:
    path = list(sys.path)
    with mounted_runtime(write_namespace(tmp_path / "one")) as url:
        assert "agentix-runtime" in {thread.name for thread in threading.enumerate()}
        directory = Path(url.removeprefix("unix:")).parent
        assert directory.is_dir()
    assert "agentix-runtime" not in {thread.name for thread in threading.enumerate()}
    assert sys.path == path
    assert not directory.exists()


def test_runtime_that_cannot_start_tells_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create_app(*_: object, **__: object) -> None:
        raise UsageError("not today")

    monkeypatch.setattr("agentix.runtime.app.create_app", create_app)
    source = write_namespace(tmp_path)
    with pytest.raises(UsageError, match="not today"), mounted_runtime(source):
        pass
    assert "agentix-runtime" not in {thread.name for thread in threading.enumerate()}


def test_source_without_a_manifest_cannot_be_mounted(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="no manifest at"), mounted_runtime(tmp_path):
        pass


def stub(name: str, count: int = 1) -> str:
    raise NotImplementedError


def test_matching_impl_passes() -> None:
    def impl(name, count=1):  # type: ignore[no-untyped-def]
        return name * count

    assert_stub_matches_impl(stub, impl)


def test_other_default_fails_with_the_names_of_function_and_parameter() -> None:
    def impl(name: str, count: int = 2) -> str:
        return name * count

    with pytest.raises(AssertionError, match=r"test_plugin\.stub: the parameter 'count' is"):
        assert_stub_matches_impl(stub, impl)


def test_generator_behind_a_stub_that_does_not_stream_fails() -> None:
    async def impl(name: str, count: int = 1) -> AsyncIterator[str]:
        yield name

    with pytest.raises(AssertionError, match="does not stream"):
        assert_stub_matches_impl(stub, impl)
