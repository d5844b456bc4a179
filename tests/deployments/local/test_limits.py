"""The limits of a local sandbox."""

import os
from pathlib import Path

import pytest

from agentix.client import RuntimeClient
from agentix.deployment import SandboxConfig
from agentix.errors import UsageError
from agentix.local import LocalDeployment
from agentix.local.limits import Hierarchy, Limits, hierarchies, make_groups, remove_groups

MEBIBYTE = 1024 * 1024
V1_MOUNTS = """\
30 23 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct
31 23 0:30 /outer /sys/fs/cgroup/memory rw,relatime shared:5 - cgroup cgroup rw,memory
32 23 0:31 / /proc rw - proc proc rw
"""
V2_MOUNTS = "29 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def require_groups(limits: Limits) -> None:
    """Skips a test by name where this user can make no control groups."""
    try:
        groups = make_groups(f"agentix-probe-{os.getpid()}", limits)
    except UsageError as error:
        pytest.skip(str(error))
    for group in groups:
        group.rmdir()


def groups_of(sandbox_id: str) -> list[Path]:
    return [path for path in Path("/sys/fs/cgroup").rglob(sandbox_id) if path.is_dir()]


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
        [group] = groups_of(sandbox.id)
        quota = next(name for name in ("cpu.max", "cpu.cfs_quota_us") if (group / name).exists())
        assert (group / quota).read_text().split()[0] == "50000"
    assert groups_of(sandbox.id) == []


async def test_limit_that_can_not_be_enforced(
    deployment: LocalDeployment, config: SandboxConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentix.local.limits.hierarchies", lambda: iter(()))
    with pytest.raises(UsageError, match="limit on pids can not be enforced here"):
        await deployment.create(config.model_copy(update={"pids": 10}))
    assert await deployment.list() == []


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


def test_version_2_group_is_made_where_the_controllers_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "slice/scope"
    os.makedirs(own)
    (tmp_path / "slice/cgroup.subtree_control").write_text("memory pids cpu")
    hierarchy = Hierarchy(2, frozenset(), tmp_path, own)
    monkeypatch.setattr("agentix.local.limits.hierarchies", lambda: iter([hierarchy]))
    [group] = make_groups("one", Limits(memory=64 * MEBIBYTE, cpus=1.5, pids=10))
    assert group == tmp_path / "slice/one"
    written = {path.name: path.read_text() for path in group.iterdir()}
    assert written == {"memory.max": "67108864", "cpu.max": "150000 100000", "pids.max": "11"}
    assert [*own.iterdir()] == []


async def test_group_that_is_gone_counts_as_removed(tmp_path: Path) -> None:
    os.mkdir(tmp_path / "group")
    await remove_groups([tmp_path / "group", tmp_path / "gone"])
    assert os.listdir(tmp_path) == []
