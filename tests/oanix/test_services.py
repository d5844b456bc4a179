"""Services: directories of the host, copies on write, the task and the logs."""

import io
import json
import os
import tarfile
import threading
from pathlib import Path

import pytest

from agentix.oanix import (
    Change,
    CowFs,
    DeviceFs,
    LogsFs,
    Machine,
    MemFs,
    Namespace,
    PtyFs,
    RunConfig,
    TarFs,
    TaskFs,
    TaskSpec,
    WorkspaceFs,
    profile,
)
from agentix.oanix.errors import (
    AlreadyExistsError,
    FsError,
    NamespaceError,
    NoSuchFileError,
    NotCapableError,
    PermissionDeniedError,
    ReadOnlyError,
)
from tests.oanix.conftest import Run, compile_guest


def test_a09_a_link_out_of_a_host_directory_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    root = tmp_path / "root"
    root.mkdir()
    (root / "relative").symlink_to("../secret")
    (root / "absolute").symlink_to(tmp_path / "secret")
    (root / "inside").symlink_to("file")
    (root / "file").write_text("content")
    service = WorkspaceFs(root)
    for name in ("relative", "absolute"):
        with pytest.raises(NotCapableError):
            service.read(name)
    namespace = Namespace.builder().mount("/w", service).build()
    assert run("cat", "/w/inside", namespace=namespace).stdout == b"content"
    assert run("cat", "/w/absolute", namespace=namespace).exit_code == 1
    assert run("cat", "/w/../secret", namespace=namespace).exit_code == 1


def test_a09_a_directory_swapped_for_a_link_leads_nowhere(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    (root / "dir").mkdir(parents=True)
    outside.mkdir()
    (outside / "file").write_text("secret")
    (root / "dir" / "file").write_text("public")
    (root / "link").symlink_to(outside)
    service, stop = WorkspaceFs(root), threading.Event()

    def swap() -> None:
        while not stop.is_set():
            os.rename(root / "dir", root / "kept")
            os.rename(root / "link", root / "dir")
            os.rename(root / "dir", root / "link")
            os.rename(root / "kept", root / "dir")

    swapping = threading.Thread(target=swap)
    swapping.start()
    seen = set()
    for _ in range(2000):
        try:
            seen.add(service.read("dir/file"))
        except FsError as error:
            seen.add(error.code.name.encode())
    stop.set()
    swapping.join()
    assert b"public" in seen
    assert b"secret" not in seen


def test_a_host_directory_is_changed_as_asked(run: Run, tmp_path: Path) -> None:
    namespace = Namespace.builder().mount("/w", WorkspaceFs(tmp_path)).build()
    assert run("put", "/w/new", "text", namespace=namespace).files_written == ("/w/new",)
    assert (tmp_path / "new").read_text() == "text"
    assert run("sparse", "/w/s", namespace=namespace).stdout == b"000000000000000000780000\n"
    assert run("append", "/w/a", namespace=namespace).stdout == b"abcd"
    assert run("unlinked", "/w/u", namespace=namespace).stdout.startswith(b"still here")
    namespace.mkdir("/w/d")
    namespace.rename("/w/new", "/w/d/moved")
    assert sorted(os.listdir(tmp_path)) == ["a", "d", "s"]
    assert namespace.read("/w/d/moved") == b"text"
    with pytest.raises(NamespaceError, match="no directory to mount"):
        WorkspaceFs(tmp_path / "missing")


MOVED = """
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

int main(void) {
    struct stat found;
    int file = open("/w/f", O_RDWR | O_CREAT, 0644);
    int directory = open("/w/d", O_RDONLY | O_DIRECTORY);
    rename("/w/f", "/w/g"), rename("/w/d", "/w/e");
    write(file, "text", 4);
    struct timespec times[2] = {{1, 0}, {2, 0}};
    printf("%d", futimens(file, times));
    printf(" %d %lld", fstat(file, &found), (long long)found.st_size);
    printf(" %lld", (long long)found.st_mtim.tv_sec);
    unlink("/w/g");
    printf(" %d %d", fstat(file, &found), (int)found.st_nlink);
    printf(" %d", openat(directory, "inside", O_WRONLY | O_CREAT, 0644) > 0);
    printf(" %d", openat(directory, "../e/inside", O_RDONLY) > 0);
    return 0;
}
"""


@pytest.mark.parametrize("kind", ["memory", "host", "overlay", "read-only parent"])
def test_an_open_file_is_the_same_one_when_it_is_renamed(
    machine: Machine, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "moved.c").write_text(MOVED)
    (tmp_path / "root").mkdir()
    host = WorkspaceFs(tmp_path / "root")
    service = {"memory": MemFs(), "overlay": CowFs(host)}.get(kind, host)
    service.mkdir("/d")
    builder = Namespace.builder()
    if kind == "read-only parent":
        builder.mount("/", MemFs(), readonly=True)
    result = machine.run(
        compile_guest(tmp_path / "moved.c"), builder.mount("/w", service).build(), RunConfig()
    )
    assert result.stdout == b"0 0 4 2 0 0 1 0"
    assert [entry.name for entry in service.readdir("/e")] == ["inside"]


def test_a_fifo_of_the_host_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(PermissionDeniedError):
        WorkspaceFs(tmp_path).read("fifo")


def test_a42_copies_hide_remove_and_recreate() -> None:
    base = MemFs({"a": b"1", "d/x": b"x", "d/y": b"y"})
    copy = CowFs(base)
    assert copy.diff() == []
    copy.write("/a", b"2")
    copy.remove("/d/x")
    copy.write("/d/z", b"z")
    assert [entry.name for entry in copy.readdir("/d")] == ["y", "z"]
    with pytest.raises(NoSuchFileError):
        copy.read("/d/x")
    assert base.read("/a") == b"1"
    expected = [Change("changed", "/a"), Change("removed", "/d/x"), Change("added", "/d/z")]
    assert copy.diff() == expected
    copy.write("/d/x", b"again")
    assert copy.diff()[1] == Change("changed", "/d/x")


def test_a42_a_commit_writes_files_whole(tmp_path: Path) -> None:
    for name in ("keep", "gone", "old/inner"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    copy = CowFs(WorkspaceFs(tmp_path))
    copy.remove("/gone")
    copy.rename("/old", "/renamed")
    copy.write("/keep", b"new")
    changes = copy.commit()
    assert [(change.kind, change.path) for change in changes] == [
        ("removed", "/gone"),
        ("changed", "/keep"),
        ("removed", "/old"),
        ("removed", "/old/inner"),
        ("added", "/renamed"),
        ("added", "/renamed/inner"),
    ]
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert found == {"keep", "renamed", "renamed/inner"}
    assert (tmp_path / "keep").read_text() == "new"
    assert copy.diff() == []


def test_a43_a_copy_keeps_a_workspace_as_it_is(run: Run, tmp_path: Path) -> None:
    (tmp_path / "old").write_text("content")
    copy = CowFs(WorkspaceFs(tmp_path))
    namespace = Namespace.builder().mount("/w", copy).build()
    assert run("put", "/w/old", "changed", namespace=namespace).exit_code == 0
    assert run("cat", "/w/old", namespace=namespace).stdout == b"changed"
    assert (tmp_path / "old").read_text() == "content"


def test_a38_a_task_shows_its_state_and_takes_a_result(run: Run) -> None:
    task = TaskFs(TaskSpec(id="t1", description="count", input={"n": 3}))
    namespace = Namespace.builder().mount("/task", task).build()
    assert json.loads(namespace.read("/task/spec.json"))["input"] == {"n": 3}
    assert [entry.name for entry in namespace.readdir("/task")] == [
        "meta.json",
        "spec.json",
        "status",
    ]
    task.status = "running"
    shown = run("cat", "/task/status", namespace=namespace).stdout
    assert json.loads(shown) == {"status": "running"}
    refused = run("put", "/task/spec.json", "{}", namespace=namespace)
    assert refused.stdout == b"open=Read-only file system\n"
    written = run("put", "/task/result.json", '{"n": 6}', namespace=namespace)
    assert (written.exit_code, written.task_result) == (0, {"n": 6})
    assert task.result == {"n": 6}
    malformed = run("put", "/task/result.json", "no json", namespace=namespace)
    assert (malformed.task_result, malformed.files_written) == (None, ())
    assert task.result == {"n": 6}
    assert run("cat", "/task/result.json", namespace=namespace).task_result is None
    assert run("cat", "/task/result.json", namespace=namespace).stdout == b'{"n": 6}'
    with pytest.raises(PermissionDeniedError):
        namespace.mkdir("/task/more")
    with pytest.raises(AlreadyExistsError):
        namespace.mkdir("/task/status")


def test_a39_logs_only_grow_and_events_are_checked(run: Run) -> None:
    logs = LogsFs()
    namespace = Namespace.builder().mount("/logs", logs).build()
    assert run("append", "/logs/stdout.log", namespace=namespace).stdout == b"abcd"
    refused = run("put", "/logs/stdout.log", "x", namespace=namespace)
    assert refused.stdout == b"open=Permission denied\n"
    good = run("ask", "/logs/events.jsonl", '{"message": "m", "level": "warn"}\n',
               namespace=namespace)  # fmt: skip
    assert good.exit_code == 0
    bad = run("ask", "/logs/events.jsonl", "not json\n", namespace=namespace)
    assert bad.stdout == b"write=Invalid argument\n"
    (line,) = namespace.read("/logs/events.jsonl").splitlines()
    assert json.loads(line)["level"] == "warn"
    namespace.write("/logs/atif/trajectory.json", b"{}")
    assert logs.trajectories.read("/trajectory.json") == b"{}"


def test_a41_metrics_add_up_what_runs_used(machine: Machine, files_wasm: bytes) -> None:
    logs = LogsFs()
    namespace = Namespace.builder().mount("/logs", logs).build()
    result = machine.run(files_wasm, namespace, RunConfig(arguments=("files", "show")))
    logs.record(result)
    logs.record(result)
    metrics = json.loads(namespace.read("/logs/metrics.json"))
    assert metrics["runs"] == 2
    assert metrics["fuel"] == 2 * result.fuel
    assert metrics["host_calls"] == 2 * result.host_calls
    assert metrics["bytes_written"] == 2 * len(result.stdout)
    assert metrics["wall_seconds"] > 0


def archive(*members: tuple[str, bytes, str]) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz") as files:
        for name, kind, content in members:
            member = tarfile.TarInfo(name)
            member.type = kind
            member.linkname = content if kind != tarfile.REGTYPE else ""
            member.size = len(content) if kind == tarfile.REGTYPE else 0
            files.addfile(member, io.BytesIO(content.encode()))
    return written.getvalue()


def test_an_archive_is_read(run: Run) -> None:
    content = archive(
        ("./d/file", tarfile.REGTYPE, "content"),
        ("link", tarfile.SYMTYPE, "d/file"),
        ("hard", tarfile.LNKTYPE, "d/file"),
        ("empty", tarfile.DIRTYPE, ""),
        ("null", tarfile.CHRTYPE, ""),
    )
    namespace = Namespace.builder().mount("/a", TarFs(content)).build()
    assert [entry.name for entry in namespace.readdir("/a")] == ["d", "empty", "hard", "link"]
    assert run("cat", "/a/link", namespace=namespace).stdout == b"content"
    assert Namespace.from_spec(namespace.spec()).read("/a/hard") == b"content"
    with pytest.raises(ReadOnlyError):
        namespace.write("/a/new", b"")


def test_an_archive_that_leads_out_is_refused() -> None:
    with pytest.raises(NamespaceError, match="leads out"):
        TarFs(archive(("d/../../x", tarfile.REGTYPE, "")))
    with pytest.raises(NamespaceError, match="not a tar archive"):
        TarFs(b"text")


def test_profiles_hold_what_they_say(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("content")
    assert [e.name for e in profile.minimal().build().readdir("/")] == ["dev", "tmp"]
    judged = profile.terminalbench(TaskSpec(id="t"), tmp_path).build()
    assert [e.name for e in judged.readdir("/")] == ["dev", "logs", "task", "tmp", "workspace"]
    judged.write("/workspace/f", b"changed")
    assert (tmp_path / "f").read_text() == "content"
    assert Namespace.from_spec(judged.spec()).read("/workspace/f") == b"content"
    assert Namespace.from_spec(judged.spec()).digest == judged.digest
    developed = profile.sandbox_dev(tmp_path).build()
    developed.write("/workspace/f", b"changed")
    assert (tmp_path / "f").read_text() == "changed"


def test_devices_do_what_programs_expect(run: Run) -> None:
    namespace = Namespace.builder().mount("/dev", DeviceFs()).build()
    assert run("put", "/dev/null", "gone", namespace=namespace).exit_code == 0
    assert run("cat", "/dev/null", namespace=namespace).stdout == b""
    with namespace.open("/dev/zero") as zero:
        assert zero.read(4) == b"\0\0\0\0"
    with namespace.open("/dev/random") as random:
        assert random.read(16) != random.read(16)


def test_a_terminal_has_its_other_end_at_the_host(run: Run) -> None:
    pty = PtyFs()
    namespace = Namespace.builder().mount("/pty", pty).build()
    pty.input.send(b"typed\n")
    pty.input.finish()
    assert run("cat", "/pty/tty", namespace=namespace).stdout == b"typed\n"
    assert run("put", "/pty/tty", "shown", namespace=namespace).exit_code == 0
    assert pty.output.receive(timeout=10) == b"shown"
    assert run("cat", "/pty/size", namespace=namespace).stdout == b"24 80\n"
    assert run("ask", "/pty/size", "40 100\n", namespace=namespace).exit_code == 0
    assert pty.size == (40, 100)
    refused = run("ask", "/pty/size", "0 x\n", namespace=namespace)
    assert (refused.stdout, pty.size) == (b"write=Invalid argument\n", (40, 100))


def test_a_program_waits_for_what_is_typed(run: Run) -> None:
    pty = PtyFs()

    def type_and_end() -> None:
        assert pty.output.receive(timeout=30) == b"prompt"
        pty.input.send(b"answer\n")
        pty.input.finish()

    typing = threading.Thread(target=type_and_end)
    typing.start()
    namespace = Namespace.builder().mount("/pty", pty).build()
    assert run("put", "/pty/tty", "prompt", namespace=namespace).exit_code == 0
    result = run("copy", stdin=pty.handle(), namespace=namespace)
    typing.join()
    assert result.stdout == b"answer\n"
