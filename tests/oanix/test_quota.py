"""Quotas of mounts: what may be added, what makes room again, and what stays as it was."""

import json
from pathlib import Path

import pytest

from agentix.oanix import (
    CowFs,
    FileService,
    Function,
    FunctionFs,
    MemFs,
    Namespace,
    OpenFlags,
    Quota,
    WorkspaceFs,
)
from agentix.oanix.errors import FsError, NamespaceError, QuotaError, ReadOnlyError
from tests.oanix.conftest import Run


@pytest.fixture(params=["memory", "host", "overlay"])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> FileService:
    (tmp_path / "old").write_bytes(b"1234")
    match request.param:
        case "memory":
            return MemFs({"old": b"1234"})
        case "host":
            return WorkspaceFs(tmp_path)
        case _:
            return CowFs(WorkspaceFs(tmp_path))


def limited(service: FileService, quota: Quota) -> Namespace:
    return Namespace.builder().mount("/w", service, quota=quota).build()


def test_a10_more_bytes_than_the_quota_are_dquot_and_change_nothing(
    run: Run, service: FileService
) -> None:
    quota = Quota(max_bytes=10)
    namespace = limited(service, quota)
    assert run("put", "/w/f", "1234567", namespace=namespace).exit_code == 0
    assert quota.used_bytes == 7
    refused = run("put", "/w/g", "1234", namespace=namespace)
    assert refused.stdout == b"write=Quota exceeded\n"
    assert (namespace.read("/w/f"), namespace.read("/w/g")) == (b"1234567", b"")
    assert (quota.used_bytes, quota.used_files) == (7, 2)
    assert run("put", "/w/g", "123", namespace=namespace).exit_code == 0
    assert quota.used_bytes == 10


def test_a10_more_files_than_the_quota_are_dquot_and_change_nothing(
    run: Run, service: FileService
) -> None:
    quota = Quota(max_files=2)
    namespace = limited(service, quota)
    namespace.mkdir("/w/d")
    namespace.write("/w/d/f", b"")
    refused = run("put", "/w/g", "x", namespace=namespace)
    assert refused.stdout == b"open=Quota exceeded\n"
    with pytest.raises(QuotaError):
        namespace.mkdir("/w/e")
    assert [entry.name for entry in namespace.readdir("/w")] == ["d", "old"]
    assert quota.used_files == 2
    namespace.rename("/w/d/f", "/w/f")
    namespace.remove("/w/d")
    namespace.write("/w/g", b"")
    assert quota.used_files == 2


def test_a10_what_is_removed_or_cut_makes_room(run: Run, service: FileService) -> None:
    quota = Quota(max_bytes=10)
    namespace = limited(service, quota)
    namespace.write("/w/f", bytes(10))
    namespace.write("/w/f", bytes(4))
    assert quota.used_bytes == 4
    namespace.write("/w/g", bytes(6))
    namespace.rename("/w/g", "/w/f")
    assert (quota.used_bytes, quota.used_files) == (6, 1)
    namespace.remove("/w/f")
    assert (quota.used_bytes, quota.used_files) == (0, 0)
    namespace.remove("/w/old")
    assert (quota.used_bytes, quota.used_files) == (-4, -1)
    result = run("unlinked", "/w/u", namespace=namespace)
    assert result.stdout.startswith(b"still here")
    assert (quota.used_bytes, quota.used_files) == (-4, -1)


def test_a10_growing_past_the_quota_by_any_call_is_refused(run: Run, service: FileService) -> None:
    quota = Quota(max_bytes=12)
    namespace = limited(service, quota)
    assert run("sparse", "/w/s", namespace=namespace).stdout == b"000000000000000000780000\n"
    with namespace.open("/w/s", OpenFlags(write=True, append=True)) as file:
        with pytest.raises(QuotaError):
            file.write(b"x")
        with pytest.raises(QuotaError):
            file._handle.resize(13)
        file._handle.resize(12)
    assert (quota.used_bytes, namespace.stat("/w/s").size) == (12, 12)


def test_an_open_file_without_a_name_counts_until_it_is_closed(service: FileService) -> None:
    quota = Quota(max_bytes=10)
    namespace = limited(service, quota)
    with namespace.open("/w/f", OpenFlags(write=True, create=True)) as file:
        file.write(bytes(8))
        namespace.remove("/w/f")
        assert quota.used_bytes == 8
        with pytest.raises(QuotaError):
            namespace.write("/w/g", bytes(3))
    assert quota.used_bytes == 0


def test_a_service_that_is_full_is_nospc_and_takes_no_quota(run: Run) -> None:
    quota = Quota(max_bytes=100, max_files=100)
    namespace = limited(MemFs(max_bytes=5, max_files=3), quota)
    refused = run("put", "/w/f", "123456", namespace=namespace)
    assert refused.stdout == b"write=No space left on device\n"
    assert (quota.used_bytes, quota.used_files) == (0, 1)
    namespace.mkdir("/w/d")
    with pytest.raises(FsError, match="NOSPC"):
        namespace.mkdir("/w/e")
    assert quota.used_files == 2


def test_files_do_not_move_between_quotas() -> None:
    service = MemFs({"a/f": b"12", "b/g": b""})
    namespace = (
        Namespace.builder()
        .mount("/a", service, source="/a", quota=Quota(max_bytes=10))
        .mount("/b", service, source="/b", quota=Quota(max_bytes=1))
        .mount("/all", service)
        .build()
    )
    for old, new in (("/a/f", "/b/f"), ("/all/a/f", "/b/f"), ("/a/f", "/all/f")):
        with pytest.raises(FsError, match="XDEV"):
            namespace.rename(old, new)
    assert namespace.read("/a/f") == b"12"


def test_what_is_bound_shares_the_quota_also_through_json() -> None:
    shared = Quota(max_bytes=3, max_files=4)
    namespace = (
        Namespace.builder()
        .mount("/w", MemFs({"f": b""}), quota=shared)
        .bind("/w/f", "/f")
        .mount("/t", MemFs(), quota=shared)
        .mount("/free", MemFs(), readonly=True, quota=Quota())
        .build()
    )
    again = Namespace.from_spec(json.loads(json.dumps(namespace.spec())))
    assert again.digest == namespace.digest
    assert [quota["max_bytes"] for quota in again.spec()["quotas"]] == [3, None]
    for seen in (namespace, again):
        seen.write("/f", b"12")
        seen.write("/t/g", b"3")
        with pytest.raises(QuotaError):
            seen.write("/w/h", b"4")
        with pytest.raises(ReadOnlyError):
            seen.write("/free/x", b"")
    assert shared.used_bytes == 3


def test_control_files_take_no_quota(run: Run) -> None:
    files = FunctionFs({"ctl": Function(lambda: b"", lambda request: request.upper())})
    namespace = limited(files, Quota(max_bytes=0, max_files=0))
    assert run("ask", "/w/ctl", "hello\n", namespace=namespace).stdout == b"HELLO\n"


def test_a_malformed_quota_is_refused() -> None:
    with pytest.raises(NamespaceError, match="negative"):
        Quota(max_bytes=-1)
    spec = limited(MemFs(), Quota(max_files=1)).spec()
    spec["mounts"][0]["quota"] = 1
    with pytest.raises(NamespaceError, match="/w names quota 1 of 1"):
        Namespace.from_spec(spec)
