"""The escape suite: a hostile handler, with the rights of root and with fewer.

Every way out is tried for real, on a pump that has something to get: see `escape.py`.
"""

import asyncio
import json
import os
import secrets
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentix.agentserver.worker.pool import WorkerPool
from tests.agentserver.escape import EVIL, NOBODY, Found, attack, run_suite
from tests.agentserver.workers import call, settings

REPOSITORY = Path(__file__).parents[2]

NAMESPACES = {"process namespace", "network namespace", "IPC namespace", "own root"}

CONTAINER = ["unshare", "setns", "mount", "open_tree"]
"""The calls that container engines refuse."""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give up being root")


async def may_unshare(*kinds: str, user: int | None = None) -> bool:
    """Return whether this machine, which may be a container, lets a user make namespaces."""
    user = user if os.geteuid() == 0 else None
    command = ["unshare", *kinds, "--fork", "true"]
    process = await asyncio.create_subprocess_exec(
        *command,
        user=user,
        group=user,
        extra_groups=[] if user else None,
        stderr=asyncio.subprocess.DEVNULL,
    )
    return await process.wait() == 0


async def run_confined(**plan: object) -> Found:
    """Run the suite in a pump that has fewer rights than this process."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.agentserver.escape", json.dumps(plan)),
        cwd=REPOSITORY,
        env={
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *sys.path]),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await asyncio.wait_for(process.communicate(), 90)
    assert process.returncode == 0, errors.decode()
    for measure in json.loads(output)["missing"]:
        assert f"less than they could be: {measure}: NOT APPLIED" in errors.decode()
    return Found(**json.loads(output))


def check(found: Found) -> None:
    """Check that nothing was got, whatever holds the workers."""
    answers = dict(found.answers)
    assert eval(answers.pop("descriptors"))[:4] == ["0:device", "1:pipe", "2:pipe", "3:socket"]
    assert answers.pop("environment") == "[]"
    assert answers.pop("other texts") == "[]"
    assert answers.pop("scratch is empty") == "[]"
    assert answers.pop("signal everyone") == "[]"
    assert answers.pop("write scratch") == "written"
    assert answers.pop("read what is readable") == "10"
    assert answers.pop("more rights") == "[]"
    assert answers.pop("read a hidden file") in ("0", "refused: EACCES")
    for frame in eval(answers.pop("frames")):
        assert frame.partition(":")[0] in TRUSTED_MODULES
    for attempt in ("an unknown call", "a coming call", "with an unknown outcome"):
        answer = answers.pop(f"answer {attempt}")
        assert answer.startswith(("died: it answered call ", "died: it wrote 27 bytes more than "))
    assert answers.pop("announce 4 GB").startswith("oversized: an answer of 4000000000 bytes")
    assert answers.pop("answer noise").split(":")[0] in ("oversized", "died")
    assert answers.pop("close the socket").startswith("died: it closed its socket")
    count, _, error = answers.pop("fork bomb").partition(" ")
    assert int(count) < 32
    assert error in ("EAGAIN", "EPERM")
    assert answers.pop("leave a child") in ("left", "refused: EPERM")
    assert answers.pop("run a program") in ("EPERM", "refused: EPERM")
    assert answers.pop("run the dynamic loader") in ("EPERM", "refused: EPERM")
    assert answers.pop("kill the group") in (
        "sent",
        "died: it closed its socket; signal 9 ended it",
    )
    answers.pop("identity")
    assert [line.partition(":")[0] for line in found.lines] == ["isolation", *MEASURES]
    assert {title: answer for title, answer in answers.items() if answer[:8] != "refused:"} == {}
    assert found.connections == 0
    assert found.pump == "alive"


MEASURES = [
    "process namespace",
    "network namespace",
    "IPC namespace",
    "own root",
    "scratch directory",
    "limits",
    "limit of processes",
    "own user id",
    "no capabilities",
    "no new privileges",
    "not dumpable",
    "ends with the fork server",
    "Landlock",
    "system call filter",
]

TRUSTED_MODULES = {
    "base_events.py",
    "boot.py",
    "child.py",
    "events.py",
    "hostile_handlers.py",
    "forkserver.py",
}


async def test_a56_nothing_gets_out_of_a_worker() -> None:
    found = await run_suite()
    check(found)
    if os.geteuid() != 0 or not await may_unshare("--pid"):
        return
    assert found.missing == []
    user, group, groups = found.answers["identity"].split(" ", 2)
    assert int(user) > 1000
    assert (group, groups) == (user, "[]")


async def test_a56_an_ordinary_user_lacks_only_user_ids() -> None:
    found = await run_confined(ordinary=True)
    check(found)
    if await may_unshare("--user", "--pid", user=NOBODY):
        assert found.missing == ["own user id"]


async def test_a56_an_ordinary_user_in_a_container_lacks_namespaces() -> None:
    found = await run_confined(ordinary=True, refuse=CONTAINER)
    check(found)
    assert set(found.missing) == {*NAMESPACES, "limit of processes", "own user id"}
    assert "process namespace: NOT APPLIED (unshare(CLONE_NEWUSER): EPERM" in "\n".join(found.lines)


@needs_root
async def test_a56_root_in_a_container_lacks_namespaces() -> None:
    found = await run_confined(refuse=CONTAINER)
    check(found)
    assert NAMESPACES <= set(found.missing) <= {*NAMESPACES, "limit of processes", "own user id"}


@needs_root
async def test_a56_a_kernel_without_landlock_is_named() -> None:
    found = await run_confined(refuse=["landlock_create_ruleset"])
    check(found)
    assert found.missing == ["Landlock"]


@pytest.fixture(scope="module")
async def workers() -> AsyncIterator[WorkerPool]:
    async with WorkerPool(settings()) as workers:
        yield workers


async def test_a57_what_one_thread_stores_another_does_not_find(workers: WorkerPool) -> None:
    assert await attack(workers, "store", "of A", thread="A") == "nothing"
    assert await attack(workers, "store", "of B", thread="B") == "nothing"
    assert await attack(workers, "store", "", thread="A") == "of A"


async def test_a56_no_memory_of_another_thread_or_name_is_left_in_a_worker() -> None:
    """Look at raw memory, freed parts included, because a fork copies those too."""
    secret, name, own = (secrets.token_hex(16) for _ in range(3))
    async with WorkerPool(settings(spares=0)) as workers:
        other = EVIL.__class__(name, EVIL.handler, EVIL.payload_classes, agent=True)
        plain = {"name": "store", "target": secret}
        await call(workers, other, "other", plain)
        for marker in (secret, name):
            assert await attack(workers, "raw_memory", marker[::-1], thread=marker[:4]) == "0"
        await attack(workers, "store", own, thread="own")
        assert int(await attack(workers, "raw_memory", own[::-1], thread="own")) > 0


async def test_a56_a_worker_that_lies_lies_only_for_itself(workers: WorkerPool) -> None:
    assert await attack(workers, "replace_worker", "a lie", thread="liar") == "replaced"
    assert await attack(workers, "store", "", thread="liar") == "a lie"
    assert await attack(workers, "store", "", thread="honest") == "nothing"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A directory that everyone may read, with a key that is to be hidden."""
    tmp_path.chmod(0o755)
    (tmp_path / "key").write_text("first")
    (tmp_path / "open").write_text("readable")
    return tmp_path


async def test_a_hidden_file_stays_hidden_when_it_is_replaced(keys: Path) -> None:
    hidden, readable = (str(keys / "key"),), (str(keys),)
    async with WorkerPool(settings(hidden=hidden, readable=readable, spares=0)) as workers:
        assert await attack(workers, "read", str(keys / "open")) == "8"
        await asyncio.to_thread(replace, keys / "key", "second")
        for thread in ("thread", "another"):
            assert await attack(workers, "read", str(keys / "key"), thread) == "refused: EACCES"
            assert await attack(workers, "read", str(keys / "open"), thread) == "8"


def replace(path: Path, text: str) -> None:
    new = path.with_name("new")
    new.write_text(text)
    new.rename(path)


async def test_scratch_directories_are_bounded_and_not_shared(workers: WorkerPool) -> None:
    assert await attack(workers, "write", "mine", thread="writer") == "written"
    assert await attack(workers, "list_directory", ".", thread="writer") == "['mine']"
    assert await attack(workers, "list_directory", ".", thread="B") == "[]"
    if "own root" not in {measure.name for measure in workers.report().missing}:
        assert await attack(workers, "fill_scratch", thread="B") == "16 MiB, then ENOSPC"
    await workers.forget("evil", "writer")
    assert await attack(workers, "list_directory", ".", thread="writer") == "[]"
