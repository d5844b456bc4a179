"""`agentix-namespace check` of source trees: what the pages do not show, and the formats."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from agentix.namespace_sdk.check.rules import Finding
from agentix.namespace_sdk.check.source import check_source as check_at
from agentix.namespace_sdk.command import main
from tests.runtime.serving import is_alive, wait_until
from tests.sdk.conftest import KINDS, Command
from tests.sdk.namespaces import IMPLS, PACKAGE, REGISTER, STUBS, write_namespace

NAMESPACES = Path(__file__).resolve().parents[2] / "namespaces"


def check_source(path: Path, time_limit: float = 30.0) -> list[Finding]:
    """Return the findings in the order of lines."""
    return sorted(set(check_at(path, time_limit)), key=lambda item: (item.line or 0, item.code))


def codes(findings: list[Finding]) -> list[str]:
    return [finding.code for finding in findings]


@pytest.mark.parametrize("kind", KINDS)
def test_untouched_template_passes(rendered: Path, kind: str) -> None:
    assert check_source(rendered / f"my-{kind}") == []


@pytest.mark.parametrize("name", sorted(path.name for path in NAMESPACES.iterdir()))
def test_namespaces_of_the_repository_pass(name: str) -> None:
    assert check_source(NAMESPACES / name) == []


def test_several_mistakes_are_all_told(tmp_path: Path) -> None:
    write_namespace(
        tmp_path,
        stubs=STUBS + "\ndef lost() -> None:\n    raise NotImplementedError\n"
        "\ndef mixed(a: int, b: int) -> int:\n    return 0\n",
        impls=IMPLS + "\ndef mixed(b: int, a: int) -> int:\n    return 0\n",
        register=REGISTER.replace(
            "    return", "    dispatcher.bind(mixed, _impl.mixed)\n    return"
        ).replace("_impl, greet", "_impl, greet, mixed"),
    )
    found = [(finding.line, finding.code) for finding in check_source(tmp_path)]
    assert found == [(4, "AGX302"), (7, "AGX301"), (7, "AGX303")]


@pytest.mark.parametrize("body", ["...", "pass", '"""Return nothing."""'])
def test_stub_without_a_body_is_to_be_bound(tmp_path: Path, body: str) -> None:
    write_namespace(tmp_path, stubs=f"{STUBS}\ndef lost() -> None:\n    {body}\n")
    [finding] = check_source(tmp_path)
    assert (finding.code, finding.line) == ("AGX302", 4)


def test_helper_is_not_to_be_bound(tmp_path: Path) -> None:
    write_namespace(tmp_path, stubs=f"{STUBS}\ndef shout(text: str) -> str:\n    return text\n")
    assert check_source(tmp_path) == []


def test_stub_bound_to_itself_is_told(tmp_path: Path) -> None:
    write_namespace(tmp_path, register=REGISTER.replace("_impl.greet", "greet"))
    [finding] = check_source(tmp_path)
    assert (finding.code, finding.line) == ("AGX303", 1)
    assert finding.message.endswith(".greet is bound to itself, not to an impl")


@pytest.mark.parametrize(
    ("value", "change"),
    [("{}", "KNOWN['greet'] = greet"), ("[]", "KNOWN.append(greet)"), ("set()", "KNOWN.add(1)")],
)
def test_register_that_fills_a_global_is_told(tmp_path: Path, value: str, change: str) -> None:
    register = REGISTER.replace(
        "def register():", f"KNOWN = {value}\ndef register():\n    {change}"
    )
    write_namespace(tmp_path, register=register)
    [finding] = check_source(tmp_path)
    assert (finding.code, finding.message) == ("AGX405", "register() changes the global 'KNOWN'")


@pytest.mark.parametrize(
    ("target", "is_told"),
    [
        ("_impl.py", False),
        (".", False),
        ("/etc/hostname", True),
        ("missing", True),
        ("../../manifest.json", True),
        ("link", True),
    ],
)
def test_links_stay_in_the_package(tmp_path: Path, target: str, is_told: bool) -> None:
    write_namespace(tmp_path)
    link = tmp_path / PACKAGE / "link"
    link.symlink_to(target)
    found = [(finding.code, finding.file) for finding in check_source(tmp_path)]
    assert found == ([("AGX208", str(link))] if is_told else [])


def test_link_that_an_editor_locks_a_file_by_is_no_module(tmp_path: Path) -> None:
    write_namespace(tmp_path)
    (tmp_path / PACKAGE / ".#_impl.py").symlink_to("somebody@somewhere.42")
    assert check_source(tmp_path) == []


def write_hanging(directory: Path) -> Path:
    """Write a namespace whose import starts a process and hangs, and note both in `pids`."""
    hang = (
        "import os, pathlib, subprocess, sys\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"note = pathlib.Path({str(directory / 'pids')!r})\n"
        "note.with_suffix('.new').write_text(f'{os.getpid()} {child.pid}')\n"
        "note.with_suffix('.new').rename(note)\n"
        "child.wait()\n"
    )
    return write_namespace(directory / "source", impls=hang)


def still_alive(directory: Path) -> list[int]:
    """Return which of the noted processes are alive."""
    return [pid for pid in map(int, (directory / "pids").read_text().split()) if is_alive(pid)]


def test_killed_command_leaves_no_process(tmp_path: Path) -> None:
    source = write_hanging(tmp_path)
    command = [sys.executable, "-m", "agentix.namespace_sdk", "check", str(source)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        wait_until((tmp_path / "pids").exists)
        process.kill()
    wait_until(lambda: not still_alive(tmp_path))


def test_hanging_import_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    [finding] = check_source(write_hanging(tmp_path), time_limit=3)
    assert finding.code == "AGX406"
    assert finding.message.endswith("took more than 3 s")
    wait_until(lambda: not still_alive(tmp_path))


def test_crash_of_the_interpreter_is_a_finding(tmp_path: Path) -> None:
    crash = (
        "import os, sys\nprint('last words', file=sys.stderr)\nsys.stderr.flush()\nos._exit(7)\n"
    )
    [finding] = check_source(write_namespace(tmp_path, impls=crash))
    assert (finding.code, finding.message) == (
        "AGX401",
        "the interpreter ended with exit code 7: last words",
    )


def test_namespace_does_not_run_in_the_checking_process(tmp_path: Path) -> None:
    path = str(tmp_path / "pid")
    note = f"import os, pathlib\npathlib.Path({path!r}).write_text(str(os.getpid()))\n"
    assert check_source(write_namespace(tmp_path / "source", impls=note + IMPLS)) == []
    assert int((tmp_path / "pid").read_text()) != os.getpid()


def test_check_leaves_no_bytecode(tmp_path: Path) -> None:
    check_source(write_namespace(tmp_path))
    assert list(tmp_path.rglob("*.pyc")) == []


def test_value_that_cannot_be_compared_is_told(tmp_path: Path) -> None:
    stubs = (
        "from dataclasses import dataclass\n"
        "@dataclass\n"
        "class Name:\n"
        "    text: str\n"
        "    def __eq__(self, other): raise OSError('why')\n"
        "def greet(name: Name) -> str:\n"
        "    raise NotImplementedError\n"
    )
    [finding] = check_source(write_namespace(tmp_path, stubs=stubs))
    assert (finding.code, finding.line) == ("AGX305", 6)
    assert finding.message.endswith("a value raised OSError when it was compared or shown")


def test_output_of_a_namespace_does_not_reach_the_report(tmp_path: Path) -> None:
    noise = "print('noise')\nimport os\nos.system('echo noise')\n"
    assert check_source(write_namespace(tmp_path, impls=noise + IMPLS)) == []


@pytest.mark.parametrize(
    ("line", "effect"),
    [
        ("open('{tmp}/made', 'w').close()", "writes to '{tmp}/made'"),
        ("import pathlib; pathlib.Path('{tmp}/new').mkdir()", "does os.mkdir("),
        ("import subprocess; subprocess.run(['true'])", "does subprocess.Popen("),
        (
            "import threading, time; threading.Thread(target=time.sleep, args=(9,)).start()",
            "starts",
        ),
        ("import sys; sys.path.append('{tmp}')", "changes sys.path"),
        ("import os; os.chdir('{tmp}')", "changes the working directory"),
        ("global kept; kept = 1", "changes the global 'kept'"),
        ("import socket; socket.socket(socket.AF_UNIX).bind('{tmp}/socket')", "does socket.bind("),
    ],
)
def test_impure_register_is_told(tmp_path: Path, line: str, effect: str) -> None:
    body = REGISTER.replace("():\n", f"():\n    {line.format(tmp=tmp_path)}\n")
    found = check_source(write_namespace(tmp_path / "source", register=body))
    messages = [finding.message for finding in found if finding.code == "AGX405"]
    assert messages[0].startswith(f"register() {effect.format(tmp=tmp_path)}")


RAISING = """\
import time
calls = []
def register():
    calls.append(1)
    if len(calls) == {raising}:
        raise OSError("why")
    time.sleep(1.1)
"""


@pytest.mark.parametrize("raising", [1, 2])
def test_register_that_raises_is_not_called_slow(tmp_path: Path, raising: int) -> None:
    found = check_source(write_namespace(tmp_path, register=RAISING.format(raising=raising)))
    assert ("AGX404", "OSError: why") in [(item.code, item.message) for item in found]
    assert "AGX406" not in codes(found)


KEPT = """\
from agentix.dispatch import Dispatcher
from . import _impl, greet
kept = Dispatcher()
kept.bind(greet, _impl.greet)
def register():
    return kept
"""


def test_register_that_keeps_its_dispatcher_is_told(tmp_path: Path) -> None:
    [finding] = check_source(write_namespace(tmp_path, register=KEPT))
    assert (finding.code, finding.line) == ("AGX405", 5)
    assert finding.message == "the second call of register() returns another result"


def test_foreign_package_that_stubs_bring_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "path" / "heavy_library").mkdir(parents=True)
    (tmp_path / "path" / "heavy_library" / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    source = write_namespace(tmp_path / "source", stubs="import heavy_library\n" + STUBS)
    found = [(finding.code, finding.message) for finding in check_source(source)]
    assert ("AGX402", "importing agentix_namespaces.greeter imports heavy_library") in found
    assert codes(check_source(source)) == ["AGX402", "AGX403"]


@pytest.mark.parametrize(
    "text",
    [
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import numpy\n",
        "try:\n    import numpy\nexcept ImportError:\n    numpy = None\n",
        "import agentix.trace, pydantic, json\nfrom agentix import Dispatcher\n",
        "from agentix_namespaces.greeter import greet\nfrom . import greet as again\n",
    ],
)
def test_imports_that_the_runtime_can_do_are_no_finding(tmp_path: Path, text: str) -> None:
    assert check_source(write_namespace(tmp_path, impls=text + IMPLS)) == []


@pytest.mark.parametrize(
    "text", ["import agentix.client\n", "import agentix_namespaces.mock_agent\n"]
)
def test_imports_of_other_distributions_are_found(tmp_path: Path, text: str) -> None:
    assert codes(check_source(write_namespace(tmp_path, impls=text + IMPLS))) == ["AGX403"]


@pytest.mark.parametrize("wheel", ["attrs==1.0", "wheels/some_wheel-1.0-py3-none-any.whl"])
def test_imports_of_wheels_that_the_namespace_brings_are_no_finding(
    tmp_path: Path, wheel: str
) -> None:
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / "wheels" / "some_wheel-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("attr/__init__.py", "")
    write_namespace(tmp_path, impls="import attr\n" + IMPLS)
    assert codes(check_source(tmp_path)) == ["AGX403"]
    (tmp_path / "pyproject.toml").write_text(f"[tool.agentix-namespace]\nwheels = ['{wheel}']\n")
    assert check_source(tmp_path) == []


def test_json_tells_all_of_a_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_namespace(tmp_path, version="1")
    assert main(["check", str(tmp_path), "-o", "json"]) == 1
    assert json.loads(capsys.readouterr().out) == {
        "target": str(tmp_path),
        "findings": [
            {
                "code": "AGX105",
                "title": "the version is not a semantic version",
                "message": 'version: "1" is not a semantic version',
                "file": f"{tmp_path}/manifest.json",
                "line": 1,
                "fix": "write three numbers, such as `1.0.0`",
                "page": "sdk/checks/AGX105.md",
            }
        ],
    }


def test_github_gets_an_annotation_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_namespace(tmp_path / "100%, really", impls="raise OSError('50%')\n")
    monkeypatch.chdir(tmp_path)
    assert main(["check", "100%, really", "-o", "github"]) == 1
    assert capsys.readouterr().out == (
        f"::error file=100%25%2C really/{PACKAGE}/_impl.py,"
        "title=AGX401 the package cannot be imported,line=1"
        "::OSError: 50%25; fix what the import raises\n"
    )


def test_github_gets_nothing_where_nothing_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(write_namespace(tmp_path)), "-o", "github"]) == 0
    assert capsys.readouterr().out == ""


def test_missing_path_is_exit_code_2(agentix_namespace: Command, tmp_path: Path) -> None:
    refused = agentix_namespace("check", tmp_path / "missing")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == (
        f"agentix-namespace: {tmp_path}/missing: there is no such directory\n"
    )
