"""`agentix-namespace new`: what it makes works as it stands, and bad names are refused."""

import json
import os
import pty
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from agentix.manifest import read_manifest
from agentix.namespace_sdk.command import main
from agentix.namespace_sdk.new import NewNamespace
from tests.sdk.conftest import KINDS, Command, run

PROTOCOL_FILES = {
    ".dockerignore",
    ".github/workflows/ci.yml",
    ".gitignore",
    "Dockerfile",
    "README.md",
    "agentix_namespaces/{module}/__init__.py",
    "agentix_namespaces/{module}/_impl.py",
    "agentix_namespaces/{module}/_register.py",
    "agentix_namespaces/{module}/py.typed",
    "default.nix",
    "manifest.json",
    "pyproject.toml",
    "tests/test_{module}.py",
}
MORE_FILES = {
    "agent": {"bin/my-agent"},
    "dataset": {"agentix_namespaces/my_dataset/tasks.json"},
    "tool": set[str](),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def files_of(directory: Path) -> set[str]:
    """Return the files of a namespace, without what running its tests leaves there."""
    caches = {"__pycache__", ".pytest_cache"}
    paths = (path.relative_to(directory) for path in directory.rglob("*") if path.is_file())
    return {str(path) for path in paths if caches.isdisjoint(path.parts)}


@each_kind
def test_result_is_the_minimal_recipe(rendered: Path, kind: str) -> None:
    expected = {name.format(module=f"my_{kind}") for name in PROTOCOL_FILES} | MORE_FILES[kind]
    assert files_of(rendered / f"my-{kind}") == expected


@each_kind
def test_manifest_says_what_was_asked_for(rendered: Path, kind: str) -> None:
    manifest = read_manifest(rendered / f"my-{kind}" / "manifest.json")
    assert (manifest.name, manifest.version) == (f"my-{kind}", "0.1.0")
    assert (manifest.package, manifest.kind) == (f"agentix_namespaces.my_{kind}", kind)


@each_kind
def test_result_passes_its_own_tests(rendered: Path, kind: str) -> None:
    finished = run([sys.executable, "-m", "pytest", "-q"], rendered / f"my-{kind}")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert " passed" in finished.stdout
    assert " skipped" not in finished.stdout


def test_results_pass_strict_mypy(rendered: Path, tmp_path: Path) -> None:
    for kind in KINDS:
        command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path)]
        finished = run(command, rendered / f"my-{kind}")
        assert finished.stdout == "Success: no issues found in 4 source files\n", finished.stdout


def test_program_of_an_agent_may_be_run(rendered: Path) -> None:
    assert os.access(rendered / "my-agent" / "bin" / "my-agent", os.X_OK)


def test_answers_are_asked_for_on_a_terminal(tmp_path: Path) -> None:
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "agentix.namespace_sdk", "new"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdin=terminal, stdout=subprocess.PIPE, text=True
    ) as process:
        os.write(controller, b'greeter\ndataset\nGreets "all" of C:\\temp.\n')
        output, _ = process.communicate(timeout=60)
    os.close(controller)
    os.close(terminal)
    assert process.returncode == 0
    assert output.startswith("name: kind (agent, dataset or tool) [tool]: description [")
    manifest = json.loads((tmp_path / "greeter" / "manifest.json").read_text())
    assert manifest["kind"] == "dataset"
    description = 'Greets "all" of C:\\temp.'
    assert manifest["description"] == description
    project = tomllib.loads((tmp_path / "greeter" / "pyproject.toml").read_text())
    assert project["project"]["description"] == description
    stubs = (tmp_path / "greeter" / "agentix_namespaces" / "greeter" / "__init__.py").read_text()
    documented: dict[str, str] = {}
    exec(stubs, documented)
    assert documented["__doc__"] == description


def test_nothing_is_asked_without_a_terminal(agentix_namespace: Command, tmp_path: Path) -> None:
    made = agentix_namespace("new", "quiet", directory=tmp_path)
    assert made.returncode == 0
    assert read_manifest(tmp_path / "quiet" / "manifest.json").kind == "tool"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("2fast", "'2fast' cannot be the name of a Python package"),
        ("my-näme", "'my-näme' cannot be the name of a Python package"),
        ("my/name", "'my/name' cannot be the name of a Python package"),
        ("..", "'..' cannot be the name of a Python package"),
        ("_private", "'_private' cannot be the name of a Python package"),
        ("class", "the name 'class' is reserved"),
        ("Match", "the name 'Match' is reserved"),
        ("runtime", "the name 'runtime' is reserved"),
        ("a" * 101, "the name is too long: it may have 100 characters"),
        ("taken", "{directory}/taken is there already"),
        ("dangling", "{directory}/dangling is there already"),
    ],
)
def test_bad_name_gets_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, reason: str
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "dangling").symlink_to("nowhere")
    before = sorted(tmp_path.rglob("*"))
    assert main(["new", name, "--into", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    [line] = printed.err.splitlines()
    assert line.startswith(f"agentix-namespace: {reason.format(directory=tmp_path)}")
    assert printed.out == ""
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("into", ["file", "file/below"])
def test_place_that_is_no_directory_gets_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], into: str
) -> None:
    (tmp_path / "file").touch()
    assert main(["new", "hello", "--into", str(tmp_path / into)]) == 2
    reason = f"{tmp_path / into} is no directory, nor can one be made there"
    assert capsys.readouterr().err == f"agentix-namespace: {reason}\n"


def test_name_is_needed(agentix_namespace: Command, tmp_path: Path) -> None:
    refused = agentix_namespace("new", directory=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.startswith("agentix-namespace: a name is needed")


@pytest.mark.parametrize("name", ["my-name", "My Name", "my_name", "my.name", "my--name"])
def test_names_fold_to_one(name: str) -> None:
    assert NewNamespace.named(name) == NewNamespace("my-name", "my_name")


def test_interrupted_rendering_leaves_nothing(tmp_path: Path) -> None:
    """Render into a directory in which the template's last step cannot be done."""
    script = (
        "import sys, pathlib\n"
        "from agentix.namespace_sdk import new\n"
        "def fail(directory): raise KeyboardInterrupt\n"
        "new._take_off_suffixes = fail\n"
        "from agentix.namespace_sdk.command import main\n"
        "sys.exit(main(['new', 'half']))\n"
    )
    finished = run([sys.executable, "-c", script], tmp_path)
    assert finished.returncode == 130
    assert list(tmp_path.iterdir()) == []
