"""Namespaces: what resolves where, what is listed, and what may be changed."""

import json

import pytest

from agentix.oanix import DeviceFs, Function, FunctionFs, MapFs, MemFs, Namespace
from agentix.oanix.errors import (
    AlreadyExistsError,
    FsError,
    NamespaceError,
    NoSpaceError,
    NoSuchFileError,
    ReadOnlyError,
)
from tests.oanix.conftest import Run


def test_a01_a_longer_name_does_not_resolve_into_a_mount() -> None:
    namespace = Namespace.builder().mount("/task", MemFs({"foo": b""})).build()
    assert namespace.resolve("/taskfoo") is None
    with pytest.raises(NoSuchFileError):
        namespace.stat("/taskfoo")


def test_a02_the_longest_prefix_wins() -> None:
    outer, inner = MemFs({"cache/x": b"outer"}), MemFs({"x": b"inner"})
    namespace = Namespace.builder().mount("/w/cache", inner).mount("/w", outer).build()
    assert namespace.resolve("/w/cache/x") == (inner, "/x")
    assert namespace.resolve("/w/cached") == (outer, "/cached")
    assert namespace.read("/w/cache/x") == b"inner"


def test_a03_directories_above_mounts_are_listed(run: Run) -> None:
    namespace = (
        Namespace.builder().mount("/cap/a", MemFs()).mount("/cap/b", MemFs()).mount("/t", MemFs())
    ).build()
    assert [entry.name for entry in namespace.readdir("/")] == ["cap", "t"]
    assert run("list", "/cap", namespace=namespace).stdout == b". 1\n.. 1\na 1\nb 1\n"


def test_a04_a_program_sees_mounted_paths_only(run: Run, memory: MemFs) -> None:
    memory.write("/in", b"inside")
    assert run("cat", "/etc/passwd").stdout == b"open=No such file or directory\n"
    assert run("cat", "/tmp/../../etc/passwd").stdout != b""
    assert run("cat", "/tmp/../tmp/in").stdout == b"inside"
    assert run("cat", "../../tmp/in").exit_code == 1


def test_a05_the_specification_round_trips_with_a_stable_digest() -> None:
    namespace = (
        Namespace.builder()
        .mount("/task", MapFs({"spec.json": b"{}"}), readonly=True)
        .mount("/tmp", MemFs({"a/b": b"\xff"}, max_bytes=10))
        .mount("/dev", DeviceFs())
        .bind("/task/spec.json", "/etc/spec")
    ).build()
    text = json.dumps(namespace.spec(), sort_keys=True)
    shuffled = dict(reversed(list(json.loads(text).items())))
    again = Namespace.from_spec(shuffled)
    assert again.digest == namespace.digest
    assert again.read("/etc/spec") == b"{}"
    assert again.read("/tmp/a/b") == b"\xff"
    with pytest.raises(ReadOnlyError):
        again.write("/etc/spec", b"")


@pytest.mark.parametrize(
    "spec",
    [
        {"mounts": [{"path": "/a", "service": 0}]},
        {"services": [{"kind": "nothing"}]},
        {"services": [{"kind": "map"}]},
        {"version": 2},
        {"mounts": [{"path": "a", "service": 0}], "services": [{"kind": "device"}]},
    ],
)
def test_a_malformed_specification_is_refused(spec: dict[str, object]) -> None:
    with pytest.raises(NamespaceError):
        Namespace.from_spec(spec)


def test_functions_cannot_be_written_as_json() -> None:
    with pytest.raises(NamespaceError, match="FunctionFs"):
        Namespace.builder().mount("/f", FunctionFs({"x": Function(lambda: b"")})).build().spec()


def test_a06_binds_replace_or_go_before_or_after() -> None:
    one, two = MemFs({"a": b"1", "x": b"1"}), MemFs({"b": b"2", "x": b"2"})
    for mode, seen in (("before", b"2"), ("after", b"1")):
        united = Namespace.builder().mount("/u", one).mount("/u", two, mode=mode)  # type: ignore[arg-type]
        namespace = united.build()
        assert [entry.name for entry in namespace.readdir("/u")] == ["a", "b", "x"]
        assert namespace.read("/u/x") == seen
    replaced = Namespace.builder().mount("/u", one).mount("/u", two).build()
    assert [entry.name for entry in replaced.readdir("/u")] == ["b", "x"]


def test_a06_new_files_go_to_the_first_layer_that_takes_them() -> None:
    base, top = MemFs({"a": b"1"}), MemFs()
    namespace = (
        Namespace.builder().mount("/u", base, readonly=True).mount("/u", top, mode="after").build()
    )
    namespace.write("/u/new", b"n")
    assert top.read("/new") == b"n"
    with pytest.raises(ReadOnlyError):
        namespace.remove("/u/a")
    with pytest.raises(AlreadyExistsError):
        namespace.mkdir("/u/a")


def test_a06_a_file_can_be_bound() -> None:
    memory = MemFs({"conf/app.ini": b"[x]"})
    builder = Namespace.builder().mount("/m", memory).bind("/m/conf/app.ini", "/etc/app.ini")
    namespace = builder.build()
    assert namespace.read("/etc/app.ini") == b"[x]"
    namespace.write("/etc/app.ini", b"[y]")
    assert memory.read("/conf/app.ini") == b"[y]"
    with pytest.raises(NamespaceError, match="is a file"):
        builder.mount("/etc/app.ini/below", MemFs()).build()


def test_a07_a_readonly_mount_changes_nothing(run: Run) -> None:
    memory = MemFs({"old": b"content"})
    namespace = Namespace.builder().mount("/r", memory, readonly=True).build()
    result = run("change", "/r", namespace=namespace)
    *refused, content = result.stdout.decode().splitlines()
    names = ["create", "unlink", "rename", "mkdir", "truncate", "utimens", "symlink"]
    assert refused == [f"{name}=Read-only file system" for name in names]
    assert content == "content"


def test_a08_files_do_not_move_between_mounts(run: Run) -> None:
    namespace = Namespace.builder().mount("/a", MemFs({"f": b""})).mount("/b", MemFs()).build()
    result = run("cross", "/a/f", "/b/f", namespace=namespace)
    assert result.stdout == b"rename=Cross-device link\nlink=Cross-device link\n"
    with pytest.raises(FsError, match="BUSY"):
        namespace.rename("/a", "/c")


def test_a10_a_full_service_keeps_its_state(run: Run) -> None:
    memory = MemFs({"f": b"1234567"}, max_bytes=10)
    namespace = Namespace.builder().mount("/tmp", memory).build()
    result = run("put", "/tmp/g", "12345", namespace=namespace)
    assert result.stdout == b"write=No space left on device\n"
    assert (memory.used, memory.read("/f"), memory.read("/g")) == (7, b"1234567", b"")
    few = MemFs(max_files=2)
    few.write("/one", b"")
    with pytest.raises(NoSpaceError):
        few.mkdir("/two")
