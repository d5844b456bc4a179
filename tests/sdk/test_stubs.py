"""`agentix-namespace stubs`: what is written is clean, and can be called."""

import os
import sys
from pathlib import Path

import pytest

from agentix.local.bundle import make_namespace_bundle, make_runtime_bundle
from agentix.namespace_sdk.command import main
from agentix.version import VERSION
from tests.deployments.conftest import Target, docker_target
from tests.runtime.serving import serving
from tests.sdk.conftest import run
from tests.sdk.counter import REPOSITORY, write_counter
from tests.sdk.zoo import CALLER, write_zoo

__all__ = ["docker_target"]

MYPY = [sys.executable, "-m", "mypy", "--strict", "--explicit-package-bases", "--no-error-summary"]


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the namespace, its stubs and a caller of them."""
    directory = tmp_path_factory.mktemp("zoo")
    source = write_zoo(directory / "source")
    assert main(["stubs", str(source), "--output", str(directory / "stubs")]) == 0
    (directory / "stubs/caller.py").write_text(CALLER.replace("\\\\", "\\"))
    return directory


def test_stubs_and_their_caller_are_clean_for_mypy(zoo: Path) -> None:
    path = os.pathsep.join(str(each) for each in REPOSITORY.glob("packages/*/src"))
    cache = str(zoo / "mypy")
    checked = run([*MYPY, "--cache-dir", cache, "."], zoo / "stubs", {"MYPYPATH": path})
    assert (checked.returncode, checked.stdout) == (0, ""), checked.stdout + checked.stderr


def test_stubs_can_be_called(zoo: Path) -> None:
    """Types of every kind go both ways between the stubs and the namespace itself."""
    runtime = make_runtime_bundle(zoo / "bundles/runtime")
    bundle = make_namespace_bundle(zoo / "source", zoo / "bundles/zoo")
    command = [sys.executable, "caller.py", str(runtime), str(bundle)]
    called = run(command, zoo / "stubs", {"PYTHONPATH": str(zoo / "stubs")})
    assert (called.returncode, called.stdout) == (0, "all calls went well\n"), called.stderr


def test_stubs_are_a_distribution(zoo: Path) -> None:
    project = (zoo / "stubs/pyproject.toml").read_text()
    assert 'name = "agentix-namespace-zoo-stubs"' in project
    assert (zoo / "stubs/agentix_namespaces/zoo/py.typed").is_file()


def test_same_namespace_gives_the_same_stubs(zoo: Path) -> None:
    module = zoo / "stubs/agentix_namespaces/zoo/__init__.py"
    before = module.read_bytes()
    assert main(["stubs", str(zoo / "source"), "--output", str(zoo / "stubs")]) == 0
    assert module.read_bytes() == before


def test_stubs_of_a_running_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def prepare(mounts: Path) -> None:
        make_namespace_bundle(write_counter(tmp_path / "counter"), mounts / "c1")
        make_namespace_bundle(write_zoo(tmp_path / "zoo"), mounts / "c2")

    with serving(tmp_path / "runtime", prepare=prepare, token="secret") as server:
        monkeypatch.chdir(tmp_path)
        assert main(["stubs", server.url]) == 2
        assert "401" in capsys.readouterr().err
        monkeypatch.setenv("AGENTIX_TOKEN", "secret")
        assert main(["stubs", server.url]) == 0
    written = sorted(capsys.readouterr().out.splitlines())
    packages = [f"agentix-stubs/agentix_namespaces/{name}" for name in ("counter", "zoo")]
    assert written == packages
    text = (tmp_path / packages[0] / "__init__.py").read_text()
    assert "def words(text: str) -> collections.abc.AsyncIterator[str]:" in text
    assert "__image__" not in text


def test_stubs_of_an_image(docker_target: Target, tmp_path: Path) -> None:
    tag = f"agentix/mock-dataset:{VERSION}"
    assert main(["stubs", tag, "--output", str(tmp_path)]) == 0
    text = (tmp_path / "agentix_namespaces/mock_dataset/__init__.py").read_text()
    assert f'__image__ = "{tag}"' in text
    assert "def score(task_id: str, workdir: pathlib.Path) -> Score:" in text


def spoil(source: Path) -> Path:
    (source / "agentix_namespaces/counter/_register.py").write_text("raise OSError('broken')\n")
    return source


def test_namespace_that_cannot_be_imported_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = spoil(write_counter(tmp_path / "counter"))
    assert main(["stubs", str(source), "--output", str(tmp_path / "stubs")]) == 2
    reason = "agentix_namespaces.counter cannot be described: OSError: broken"
    assert capsys.readouterr().err == f"agentix-namespace: {reason}\n"
    assert not (tmp_path / "stubs").exists()


def test_namespace_is_not_overwritten_by_its_stubs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_counter(tmp_path / "counter")
    before = (source / "agentix_namespaces/counter/__init__.py").read_text()
    assert main(["stubs", str(source), "--output", str(source)]) == 2
    assert "is a namespace itself: give another --output" in capsys.readouterr().err
    assert (source / "agentix_namespaces/counter/__init__.py").read_text() == before


def test_directory_without_a_namespace_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stubs", str(tmp_path)]) == 2
    assert "no manifest at" in capsys.readouterr().err


def test_missing_directory_is_no_image(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "missing"
    assert main(["stubs", str(missing)]) == 2
    told = capsys.readouterr().err
    assert told == f"agentix-namespace: {missing}: there is no such directory\n"


def test_nobody_at_a_url_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stubs", f"unix:{tmp_path}/nothing"]) == 1
    assert f"unix:{tmp_path}/nothing" in capsys.readouterr().err
