"""The limits of a local sandbox."""

import logging
import os
import tempfile
from pathlib import Path

import pytest

from agentix.client import RuntimeClient
from agentix.deployment import DEFAULT_PIDS, SandboxConfig
from agentix.errors import UsageError
from agentix.local import LocalDeployment
from agentix.local.limits import (
    Groups,
    Hierarchy,
    Limits,
    hierarchies,
    host_memory,
    lasting_memory,
    make_groups,
    remove_groups,
)

MEBIBYTE = 1024 * 1024
QUOTAS = ("cpu.max", "cpu.cfs_quota_us")
PAGE = os.sysconf("SC_PAGE_SIZE")
V1_MOUNTS = """\
30 23 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct
31 23 0:30 /outer /sys/fs/cgroup/memory rw,relatime shared:5 - cgroup cgroup rw,memory
32 23 0:31 / /proc rw - proc proc rw
"""
V2_MOUNTS = "29 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def require_groups(limits: Limits) -> None:
    """Skip a test by name where this user cannot make control groups."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            groups = make_groups(f"agentix-probe-{os.getpid()}", limits, Path(directory))
        except UsageError as error:
            pytest.skip(str(error))
    for group in groups.directories:
        group.rmdir()


def groups_of(sandbox_id: str) -> list[Path]:
    # Groups of others come and go meanwhile, which os.walk passes over.
    walked = os.walk("/sys/fs/cgroup")
    return [Path(parent, sandbox_id) for parent, names, _ in walked if sandbox_id in names]


async def test_process_limit(deployment: LocalDeployment, config: SandboxConfig) -> None:
    require_groups(Limits(pids=24))
    limited = config.model_copy(update={"pids": 24})
    async with (
        deployment.session(limited) as sandbox,
        RuntimeClient(sandbox.runtime_url, token=sandbox.token) as client,
    ):
        result = await client.run("for i in $(seq 40); do sleep 60 & done", timeout=20)
        assert groups_of(sandbox.id)
    assert "fork" in result.stderr.lower()
    assert groups_of(sandbox.id) == []


async def test_memory_limit(deployment: LocalDeployment, config: SandboxConfig) -> None:
    require_groups(Limits(memory=128 * MEBIBYTE))
    limited = config.model_copy(update={"memory": 128 * MEBIBYTE})
    async with (
        deployment.session(limited) as sandbox,
        RuntimeClient(sandbox.runtime_url, token=sandbox.token) as client,
    ):
        small = await client.run("head -c 10000000 /dev/zero | tail -c 1 | wc -c")
        large = await client.run("head -c 300000000 /dev/zero | tail -c 300000000 | wc -c")
    assert small.exit_code == 0
    assert large.stdout != "300000000\n"
    assert groups_of(sandbox.id) == []


async def test_processor_limit(deployment: LocalDeployment, config: SandboxConfig) -> None:
    require_groups(Limits(cpus=0.5))
    async with deployment.session(config.model_copy(update={"cpus": 0.5})) as sandbox:
        files = (group / name for group in groups_of(sandbox.id) for name in QUOTAS)
        [quota] = [file.read_text().split()[0] for file in files if file.exists()]
    assert quota == "50000"
    assert groups_of(sandbox.id) == []


async def test_limit_that_cannot_be_enforced(
    deployment: LocalDeployment, config: SandboxConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentix.local.limits.hierarchies", lambda: iter(()))
    with pytest.raises(UsageError, match="limit on pids cannot be enforced here"):
        await deployment.create(config.model_copy(update={"pids": 10}))
    assert await deployment.list() == []


async def test_defaults_that_cannot_be_enforced_are_one_warning(
    deployment: LocalDeployment,
    config: SandboxConfig,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("agentix.local.limits.hierarchies", lambda: iter(()))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            async with deployment.session(config):
                pass
        async with deployment.session(config.model_copy(update={"memory": None, "pids": None})):
            pass
    [warning] = [record.getMessage() for record in caplog.records]
    assert "the limit on memory cannot be enforced here" in warning
    assert "the limit on pids cannot be enforced here" in warning


async def test_default_limits(deployment: LocalDeployment, config: SandboxConfig) -> None:
    require_groups(Limits(memory=64 * MEBIBYTE, pids=10))
    async with deployment.session(config) as sandbox:
        limits = {
            name: (group / name).read_text().strip()
            for group in groups_of(sandbox.id)
            for name in ("memory.max", "memory.limit_in_bytes", "pids.max")
            if (group / name).exists()
        }
    memory = min(4 * 1024 * MEBIBYTE, host_memory() // 2) // PAGE * PAGE
    assert sorted(limits.values()) == sorted([str(memory), str(DEFAULT_PIDS + 1)])


async def test_no_limits(deployment: LocalDeployment, config: SandboxConfig) -> None:
    unlimited = config.model_copy(update={"memory": None, "pids": None})
    async with deployment.session(unlimited) as sandbox:
        assert groups_of(sandbox.id) == []


@pytest.mark.parametrize(
    ("limit", "lasting"), [(1024, 512), (128, 64), (96, 48), (64, 16), (32, 4), (8, 1)]
)
def test_files_leave_memory_to_the_runtime(limit: int, lasting: int) -> None:
    assert lasting_memory(limit * MEBIBYTE) == lasting * MEBIBYTE


def test_limits_of_a_configuration() -> None:
    default = Limits.of(SandboxConfig(image="/"), 6 * 1024 * MEBIBYTE)
    assert default == Limits(
        memory=3 * 1024 * MEBIBYTE, pids=2048, defaults=frozenset({"memory", "pids"})
    )
    given = SandboxConfig(image="/", memory=64 * MEBIBYTE, pids=None, cpus=2)
    assert Limits.of(given, 6 * 1024 * MEBIBYTE) == Limits(memory=64 * MEBIBYTE, cpus=2)


def test_memory_of_a_container_counts_as_that_of_its_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "slice/scope"
    own.mkdir(parents=True)
    (own / "memory.max").write_text("max\n")
    (tmp_path / "slice/memory.max").write_text("67108864\n")
    hierarchy = Hierarchy(2, frozenset(), tmp_path, own)
    monkeypatch.setattr("agentix.local.limits.hierarchies", lambda: iter([hierarchy]))
    assert host_memory() == 67108864


def proc(directory: Path, groups: str, mounts: str) -> Path:
    (directory / "cgroup").write_text(groups)
    (directory / "mountinfo").write_text(mounts)
    return directory


def test_version_1_hierarchies(tmp_path: Path) -> None:
    groups = "3:cpu,cpuacct:/user\n2:memory:/outer/inner\n1:name=systemd:/\n0::/\n"
    found = list(hierarchies(proc(tmp_path, groups, V1_MOUNTS)))
    cpu, memory = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/memory")
    assert found == [
        Hierarchy(1, frozenset({"cpu", "cpuacct"}), cpu, cpu / "user"),
        Hierarchy(1, frozenset({"memory"}), memory, memory / "inner"),
    ]


def test_version_2_hierarchy(tmp_path: Path) -> None:
    found = list(hierarchies(proc(tmp_path, "0::/user.slice/one.scope\n", V2_MOUNTS)))
    mount = Path("/sys/fs/cgroup")
    assert found == [Hierarchy(2, frozenset(), mount, mount / "user.slice/one.scope")]


def test_mount_that_does_not_show_the_own_group_is_passed_over(tmp_path: Path) -> None:
    found = list(hierarchies(proc(tmp_path, "2:memory:/elsewhere\n", V1_MOUNTS)))
    assert found == []


def test_version_2_group_is_made_where_the_controllers_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "slice/scope"
    os.makedirs(own)
    (tmp_path / "slice/cgroup.subtree_control").write_text("memory pids cpu")
    hierarchy = Hierarchy(2, frozenset(), tmp_path, own)
    monkeypatch.setattr("agentix.local.limits.hierarchies", lambda: iter([hierarchy]))
    journal = tmp_path / "journal"
    journal.mkdir()
    groups = make_groups("one", Limits(memory=64 * MEBIBYTE, cpus=1.5, pids=10), journal)
    [group] = groups.directories
    assert group == tmp_path / "slice/one"
    assert groups.refused == ()
    written = {path.name: path.read_text() for path in group.iterdir()}
    assert written == {"memory.max": "67108864", "cpu.max": "150000 100000", "pids.max": "11"}
    assert [*own.iterdir()] == []


async def test_group_that_is_gone_counts_as_removed(tmp_path: Path) -> None:
    os.mkdir(tmp_path / "group")
    await remove_groups(Groups((tmp_path / "group", tmp_path / "gone")))
    assert os.listdir(tmp_path) == []
