"""Guest programs for the tests, compiled once for each text of their sources, and a machine."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agentix.oanix import Machine, MemFs, Namespace, RunConfig, RunResult

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "oanix"
GUESTS = Path(__file__).parent / "guests"

Run = Callable[..., RunResult]


def compile_guest(source: Path) -> bytes:
    """Compiles a C program for WASI with the C compiler of the ziglang distribution."""
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    target = CACHE / "guests" / f"{source.stem}-{digest}.wasm"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        cache = {
            name: str(CACHE / "zig") for name in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")
        }
        made = target.with_suffix(f".{os.getpid()}")
        command = [sys.executable, "-m", "ziglang", "cc", "--target=wasm32-wasi", "-O2", "-s"]
        subprocess.run([*command, str(source), "-o", str(made)], env=os.environ | cache, check=True)
        made.replace(target)
    return target.read_bytes()


@pytest.fixture(scope="session")
def files_wasm() -> bytes:
    """The program of guests/files.c."""
    return compile_guest(GUESTS / "files.c")


@pytest.fixture(scope="session", params=["fast", "public"])
def machine(request: pytest.FixtureRequest) -> Machine:
    """A machine by each of the two paths."""
    return Machine(fast=request.param == "fast")


@pytest.fixture
def memory() -> MemFs:
    """An empty memory service."""
    return MemFs()


@pytest.fixture
def run(machine: Machine, files_wasm: bytes, memory: MemFs) -> Run:
    """Runs guests/files.c with arguments, by default with memory at `/tmp`."""
    own = Namespace.builder().mount("/tmp", memory).build()

    def run(*arguments: str, namespace: Namespace = own, **config: object) -> RunResult:
        wanted = RunConfig(arguments=("files", *arguments), **config)  # type: ignore[arg-type]
        return machine.run(files_wasm, namespace, wanted)

    return run
