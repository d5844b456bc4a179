"""WASI preview 1 as its own calls show it, on every service that can be written.

guests/semantics.c holds the checks: `path_open` flags, rights, rename and unlink rules, symbolic
links and loops, cookies under concurrent creation (a23), renumbering onto closed standard streams
(a24), and `poll_oneoff`.
"""

from pathlib import Path

import pytest

from agentix.oanix import CowFs, FileService, Machine, MemFs, Namespace, RunConfig, WorkspaceFs
from tests.oanix.conftest import GUESTS, compile_guest


@pytest.fixture(scope="session")
def semantics_wasm() -> bytes:
    return compile_guest(GUESTS / "semantics.c")


@pytest.fixture(params=["memory", "host", "overlay"])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> FileService:
    match request.param:
        case "memory":
            return MemFs()
        case "host":
            return WorkspaceFs(tmp_path)
        case _:
            return CowFs(WorkspaceFs(tmp_path))


def test_a23_a24_preview_1_keeps_its_rules(
    machine: Machine, semantics_wasm: bytes, service: FileService
) -> None:
    namespace = Namespace.builder().mount("/w", service).build()
    result = machine.run(semantics_wasm, namespace, RunConfig())
    assert (result.stdout.decode(), result.exit_code, result.message) == ("501 checks\n", 0, "")
    assert namespace.readdir("/w") == []
