"""Guest programs for the tests, compiled once for each text of their sources, and a machine."""

from collections.abc import Callable
from pathlib import Path

import pytest

from agentix.oanix import Machine, MemFs, Namespace, RunConfig, RunResult
from tests.oanix.oracle import OracleMachine
from tests.oanix.programs import CACHE, ROOT, compile_guest

__all__ = ["CACHE", "GUESTS", "ROOT", "Run", "compile_guest"]

GUESTS = Path(__file__).parent / "guests"

Run = Callable[..., RunResult]


@pytest.fixture(scope="session")
def files_wasm() -> bytes:
    """The program of guests/files.c."""
    return compile_guest(GUESTS / "files.c")


@pytest.fixture(scope="session", params=[Machine, OracleMachine])
def machine(request: pytest.FixtureRequest) -> Machine:
    """A machine, and the oracle of host calls."""
    made: Machine = request.param()
    return made


@pytest.fixture
def memory() -> MemFs:
    """An empty memory service."""
    return MemFs()


@pytest.fixture
def run(machine: Machine, files_wasm: bytes, memory: MemFs) -> Run:
    """Run guests/files.c with arguments, by default with memory at `/tmp`."""
    own = Namespace.builder().mount("/tmp", memory).build()

    def run(*arguments: str, namespace: Namespace = own, **config: object) -> RunResult:
        wanted = RunConfig(arguments=("files", *arguments), **config)  # type: ignore[arg-type]
        return machine.run(files_wasm, namespace, wanted)

    return run
