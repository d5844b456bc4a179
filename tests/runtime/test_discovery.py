"""Discovery at boot and import at the first call."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentix.dispatch import Registry
from agentix.runtime.discovery import discover
from tests.runtime.serving import (
    PROBE,
    Server,
    call_body,
    count_tasks,
    get,
    manifest_of,
    mount,
    mount_probe,
    post,
    remote,
    serving,
    until,
)

STUB = "def f() -> str:\n    raise NotImplementedError\n"
REGISTER = """
from agentix.dispatch import Dispatcher
from . import f

def register():
    dispatcher = Dispatcher()
    dispatcher.bind(f, lambda: 'from {name}')
    return dispatcher
"""


def mount_simple(mounts: Path, name: str, directory: str | None = None, **more: Any) -> Path:
    """Mounts a namespace whose `f()` gives its name."""
    register = REGISTER.format(name=directory or name)
    manifest = manifest_of(name, **more)
    return mount(mounts, directory or name, manifest, __init__=STUB, _register=register)


def found(mounts: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setattr("sys.path", [])
    return discover(mounts)


def break_text(text: str) -> Callable[[Path], None]:
    def change(entry: Path) -> None:
        (entry / "manifest.json").write_text(text)

    return change


def without(field: str) -> Callable[[Path], None]:
    def change(entry: Path) -> None:
        manifest = json.loads((entry / "manifest.json").read_text())
        del manifest[field]
        (entry / "manifest.json").write_text(json.dumps(manifest))

    return change


def with_field(**fields: Any) -> Callable[[Path], None]:
    def change(entry: Path) -> None:
        manifest = json.loads((entry / "manifest.json").read_text())
        (entry / "manifest.json").write_text(json.dumps(manifest | fields))

    return change


def hide_others(entry: Path) -> None:
    (entry / "python" / "agentix_namespaces" / "__init__.py").touch()


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (with_field(abi=2), "malformed manifest {entry}/manifest.json: abi: Input should be 1"),
        (with_field(abi="1"), "malformed manifest {entry}/manifest.json: abi: Input should be 1"),
        (without("abi"), "malformed manifest {entry}/manifest.json: abi: Field required"),
        (without("name"), "malformed manifest {entry}/manifest.json: name: Field required"),
        (without("version"), "malformed manifest {entry}/manifest.json: version: Field required"),
        (without("package"), "malformed manifest {entry}/manifest.json: package: Field required"),
        (
            with_field(kind=1),
            "malformed manifest {entry}/manifest.json: kind: Input should be a valid string",
        ),
        (
            break_text("[]"),
            "malformed manifest {entry}/manifest.json: manifest: Input should be an object",
        ),
        (
            break_text(""),
            "malformed manifest {entry}/manifest.json: manifest: Invalid JSON: EOF while parsing"
            " a value at line 1 column 0",
        ),
        (
            lambda entry: (entry / "manifest.json").unlink(),
            "no manifest at {entry}/manifest.json: No such file or directory",
        ),
        (
            with_field(package="agentix_namespaces.other"),
            "{entry}/python/agentix_namespaces/other is missing",
        ),
        (
            hide_others,
            "{entry}/python/agentix_namespaces has an __init__.py, which hides all other"
            " namespaces",
        ),
    ],
)
def test_unusable_mount_is_skipped_with_one_warning_that_says_why(
    spoil: Callable[[Path], None],
    reason: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = mount_simple(tmp_path, "spoilt")
    spoil(entry)
    mount_simple(tmp_path, "sound")
    registry = found(tmp_path, monkeypatch)
    assert [item.manifest.name for item in registry] == ["sound"]
    warnings = [item.getMessage() for item in caplog.records if item.levelname == "WARNING"]
    assert warnings == [f"skipped mount {tmp_path}/spoilt: {reason.format(entry=entry)}"]


@pytest.mark.parametrize("version", ["1", "1.0", "v1.0.0", "1.0.0.0", "01.0.0", "1.0.0-"])
def test_version_that_is_not_semantic_is_refused(
    version: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mount_simple(tmp_path, "spoilt", version=version)
    assert list(found(tmp_path, monkeypatch)) == []
    assert "version: String should match pattern" in caplog.text


def test_second_mount_of_a_package_is_skipped_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = mount_simple(tmp_path, "same", "c1")
    mount_simple(tmp_path, "same", "c2")
    registry = found(tmp_path, monkeypatch)
    assert [item.entry for item in registry] == [first]
    warnings = [item.getMessage() for item in caplog.records if item.levelname == "WARNING"]
    reason = f"package agentix_namespaces.same is mounted already, at {first}"
    assert warnings == [f"skipped mount {tmp_path}/c2: {reason}"]


def test_dangling_mount_and_plain_file_are_skipped_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "file").touch()
    assert list(found(tmp_path, monkeypatch)) == []
    assert [item.getMessage() for item in caplog.records] == [
        f"skipped mount {tmp_path}/dangling: no manifest at"
        f" {tmp_path}/dangling/entry/manifest.json: No such file or directory",
        f"skipped mount {tmp_path}/file: no manifest at"
        f" {tmp_path}/file/entry/manifest.json: Not a directory",
    ]


def test_mount_of_the_runtime_is_passed_over_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runtime" / "entry").mkdir(parents=True)
    assert list(found(tmp_path, monkeypatch)) == []
    assert caplog.records == []


def test_no_mounts_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(found(tmp_path / "absent", monkeypatch)) == []


def answer_of(server: Server, request: bytes) -> Any:
    return json.loads(server.exchange(request).partition(b"\r\n\r\n")[2])


def test_namespaces_are_listed_with_their_whole_manifest(own_server: Server) -> None:
    manifest = json.loads((PROBE / "manifest.json").read_text())
    listed = {"manifest": manifest | {"kind": None}, "loaded": False, "error": None}
    assert answer_of(own_server, get("/namespaces")) == {"namespaces": [listed]}
    answer_of(own_server, post("/_remote", call_body("echo", 1)))
    assert answer_of(own_server, get("/namespaces")) == {"namespaces": [listed | {"loaded": True}]}


def test_identity_is_the_package_not_the_directory(tmp_path: Path) -> None:
    def prepare(mounts: Path) -> None:
        entry = mount_simple(mounts, "named", "cdeadbeef")
        with_field(name="for people")(entry)

    with serving(tmp_path, prepare=prepare) as server:
        body = call_body("f", package="agentix_namespaces.named")
        assert answer_of(server, post("/_remote", body))["value"] == "from cdeadbeef"


COUNTING = """
import pathlib
with open({counter!r}, "a") as file:
    file.write("imported\\n")
pathlib.Path({gate!r}).read_text()
{stub}
"""


def counting(mounts: Path, root: Path) -> None:
    """Mounts a namespace that notes its import and then waits for a FIFO, beside the probe."""
    mount_probe(mounts)
    text = COUNTING.format(counter=str(root / "imports"), gate=str(root / "gate"), stub=STUB)
    manifest = manifest_of("slow")
    mount(mounts, "c2", manifest, __init__=text, _register=REGISTER.format(name="slow"))
    os.mkfifo(root / "gate")


async def test_import_happens_once_at_the_first_call_in_a_thread(tmp_path: Path) -> None:
    imports, gate = tmp_path / "imports", tmp_path / "gate"
    package = "agentix_namespaces.slow"
    values: list[Any] = []
    with serving(tmp_path, prepare=lambda mounts: counting(mounts, tmp_path)) as server:
        async with server.session() as session, session.get("/namespaces") as response:
            assert [item["loaded"] for item in (await response.json())["namespaces"]] == [False] * 2
            assert not imports.exists()

            async def call() -> None:
                values.append((await remote(session, "f", package=package))["value"])

            async with anyio.create_task_group() as group:
                # The first of all callers leaves while the import is under way.
                with server.connect() as connection:
                    connection.sendall(post("/_remote", call_body("f", package=package)))
                    await until(imports.exists)
                    for _ in range(19):
                        group.start_soon(call)
                    # Other calls are answered meanwhile, and all twenty are under way.
                    with anyio.fail_after(20):
                        while await count_tasks(session) < 20 * 2:
                            pass
                assert values == []
                await anyio.to_thread.run_sync(gate.write_text, "go on")
            await call()
    assert values == ["from slow"] * 20
    assert imports.read_text() == "imported\n"


BROKEN = {
    "raises": ("raise ValueError('no luck')", "", "ValueError", "no luck"),
    "absent": (
        "import absent_module",
        "",
        "ModuleNotFoundError",
        "No module named 'absent_module'",
    ),
    "syntax": ("def", "", "SyntaxError", "invalid syntax (__init__.py, line 1)"),
    "exits": ("raise SystemExit(4)", "", "SystemExit", "4"),
    "interrupts": ("raise KeyboardInterrupt", "", "KeyboardInterrupt", ""),
    "unspeakable": (
        "class Unspeakable(Exception):\n"
        "    def __str__(self): raise OSError\n"
        "    def __repr__(self): return '\\ud800'\n"
        "raise Unspeakable",
        "",
        "Unspeakable",
        "<Unspeakable whose text raised OSError>",
    ),
    "unregistered": (
        STUB,
        None,
        "ModuleNotFoundError",
        "No module named 'agentix_namespaces.unregistered._register'",
    ),
    "without_register": (
        STUB,
        "",
        "AttributeError",
        "module 'agentix_namespaces.without_register._register' has no attribute 'register'",
    ),
    "register_raises": (
        STUB,
        "def register(): raise OSError(5, 'why')",
        "OSError",
        "[Errno 5] why",
    ),
    "register_gives_none": (
        STUB,
        "def register(): return None",
        "TypeError",
        "agentix_namespaces.register_gives_none._register.register() gave None, not a Dispatcher",
    ),
    "stub_from_elsewhere": (
        STUB,
        "from agentix.dispatch import Dispatcher\n"
        "def g() -> None: ...\n"
        "def register():\n    d = Dispatcher()\n    d.bind(g, g)\n    return d",
        "StubError",
        "agentix_namespaces.stub_from_elsewhere._register.g is bound in"
        " agentix_namespaces.stub_from_elsewhere: a stub must be defined in the package itself",
    ),
    "mismatched": (
        STUB,
        REGISTER.replace("lambda", "lambda x").format(name=""),
        "StubError",
        "agentix_namespaces.mismatched.f: its impl has a parameter 'x' that the stub lacks",
    ),
}


def mount_broken(mounts: Path) -> None:
    mount_simple(mounts, "sound")
    for name, (init, register, *_) in BROKEN.items():
        modules = {"__init__": init} | ({} if register is None else {"_register": register})
        mount(mounts, name, manifest_of(name), **modules)


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with serving(tmp_path_factory.mktemp("broken"), prepare=mount_broken) as running:
        yield running


@pytest.mark.parametrize("name", BROKEN)
def test_broken_namespace_reports_its_own_error_on_each_call(broken: Server, name: str) -> None:
    request = post("/_remote", call_body("f", package=f"agentix_namespaces.{name}"))
    first, second = answer_of(broken, request), answer_of(broken, request)
    assert first == second
    assert first["ok"] is False
    assert (first["error"]["type"], first["error"]["message"]) == BROKEN[name][2:]
    assert "Traceback" in first["error"]["traceback"]
    listed = {
        item["manifest"]["name"]: item
        for item in answer_of(broken, get("/namespaces"))["namespaces"]
    }
    assert listed[name]["error"] == ": ".join(BROKEN[name][2:])
    assert listed[name]["loaded"] is False


@pytest.mark.parametrize("name", BROKEN)
def test_broken_namespace_harms_no_other(broken: Server, name: str) -> None:
    broken.exchange(post("/_remote", call_body("f", package=f"agentix_namespaces.{name}")))
    body = call_body("f", package="agentix_namespaces.sound")
    assert answer_of(broken, post("/_remote", body)) == {"ok": True, "value": "from sound"}
