"""A task that takes all memory, files or processes that it can get, and a sandbox that lives on."""

import asyncio
import shlex
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from time import monotonic

import pytest

from agentix.client import RuntimeClient
from agentix.deployment import SandboxConfig
from agentix.errors import RequestError
from agentix.local import LocalDeployment
from agentix.local.limits import Limits, lasting_memory
from tests.deployments.local.test_limits import MEBIBYTE, require_groups

DEADLINE = 60
LIMIT = 128 * MEBIBYTE
CONFIG = SandboxConfig(image="/", memory=LIMIT)
PLACES = ("/workspace", "/tmp", "/tmp/home", "/run", "/var/tmp", "/dev/shm")

MANY_FILES = """
import errno, os, sys
made = 0
try:
    while True:
        directory = f"{sys.argv[1]}/{made}"
        os.mkdir(directory)
        for number in range(1000):
            MAKE
            made += 1
except OSError as error:
    print(errno.errorcode[error.errno], made)
"""

MAKE_FIFO = "os.mkfifo(f'{directory}/{number}')"

DEEP_DIRECTORIES = """
import errno, os, sys
os.chdir(sys.argv[1])
depth = 0
try:
    while True:
        os.mkdir("x" * 255)
        os.chdir("x" * 255)
        depth += 1
except OSError as error:
    print(errno.errorcode[error.errno], depth)
"""

SHARED_SEGMENTS = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
taken = 0
while True:
    segment = libc.shmget(0, ctypes.c_size_t(1 << 20), 0o1600)
    if segment < 0:
        break
    place = libc.shmat(segment, None, 0)
    ctypes.memset(place, 1, 1 << 20)
    libc.shmdt(ctypes.c_void_p(place))
    taken += 1
print(errno.errorcode[ctypes.get_errno()], taken)
"""

MESSAGE_QUEUES = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
made = 0
while (queue := libc.msgget(0, 0o1600)) >= 0:
    while libc.msgsnd(queue, b"1" * 8200, ctypes.c_size_t(8192), 0o4000) == 0:
        pass
    made += 1
print(errno.errorcode[ctypes.get_errno()], made)
"""

SEMAPHORES = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
made = 0
while libc.semget(0, 250, 0o1600) >= 0:
    made += 250
print(errno.errorcode[ctypes.get_errno()], made)
"""

MEMORY_FILES = """
import os
files = []
while True:
    files.append(os.memfd_create("x"))
    os.write(files[-1], bytes(1 << 20))
"""

NESTED_FILE_SYSTEM = (
    "unshare --user --map-root-user --mount sh -c"
    " 'mount -t tmpfs -o size=1g tmpfs /mnt; cat /dev/zero > /mnt/x'"
)

ALLOCATE = "import sys; bytearray(int(sys.argv[1])); print('allocated')"

FORK_BOMB = "bomb() { bomb | bomb & }; bomb; exec sleep 1000"


HOLD_ALL_PROCESSES = """
import os, time
first = os.getpid()
while True:
    try:
        os.fork()
    except OSError:
        if os.getpid() == first:
            print("no fork", flush=True)
        time.sleep(0.1)
"""


@pytest.fixture(autouse=True)
def memory_groups() -> None:
    require_groups(Limits(memory=LIMIT, pids=100))


@asynccontextmanager
async def attacked(
    bundles: Path, control: Path, config: SandboxConfig = CONFIG
) -> AsyncIterator[RuntimeClient]:
    """Make a sandbox, and see that it lives after all that happens in it."""
    async with (
        LocalDeployment(bundles=bundles, directory=control) as deployment,
        deployment.session(config) as sandbox,
        RuntimeClient(sandbox.runtime_url, token=sandbox.token) as client,
    ):
        yield client
        assert (await client.run("echo ok")).stdout == "ok\n"
        assert (await deployment.get(sandbox.id)).status == "running"
        begin = monotonic()
        await deployment.delete(sandbox.id)
        assert monotonic() - begin < 5.0


def python(program: str, *arguments: str) -> str:
    return shlex.join(["python3", "-c", program, *arguments])


@pytest.mark.parametrize("place", PLACES)
async def test_full_file_system_is_an_error_of_the_command(
    host_bundles: Path, control: Path, place: str
) -> None:
    async with attacked(host_bundles, control) as client:
        filled = await client.run(f"dd if=/dev/zero of={place}/x bs=1M")
        assert filled.exit_code == 1
        assert "No space left on device" in filled.stderr
        assert not filled.oom_killed
        size = int((await client.run(f"stat -c %s {place}/x")).stdout)
        assert lasting_memory(LIMIT) * 3 // 4 < size <= lasting_memory(LIMIT) == LIMIT // 2


async def test_full_file_system_of_a_small_sandbox(host_bundles: Path, control: Path) -> None:
    """Half of so little memory would be all that the runtime needs."""
    small = SandboxConfig(image="/", memory=64 * MEBIBYTE)
    async with attacked(host_bundles, control, small) as client:
        filled = await client.run("cat /dev/zero > /workspace/x")
        assert "No space left on device" in filled.stderr
        size = int((await client.run("stat -c %s /workspace/x")).stdout)
        assert 12 * MEBIBYTE < size <= 16 * MEBIBYTE


async def test_all_places_together_take_no_more_than_one(host_bundles: Path, control: Path) -> None:
    async with attacked(host_bundles, control) as client:
        for place in PLACES:
            await client.run(f"cat /dev/zero > {place}/x")
        sizes = await client.run("stat -c %s " + " ".join(f"{place}/x" for place in PLACES))
        assert sum(map(int, sizes.stdout.split())) <= lasting_memory(LIMIT)
        # What is removed can be used again.
        await client.run("rm /workspace/x && head -c 1000000 /dev/zero > /tmp/y")
        assert (await client.run("stat -c %s /tmp/y")).stdout == "1000000\n"


@pytest.mark.parametrize(
    "make",
    [
        "open(f'{directory}/{number}', 'w').close()",
        MAKE_FIFO,
        "os.symlink('x' * 4000, f'{directory}/{number}')",
        "os.link(directory + '/../first', f'{directory}/{number}')",
    ],
)
async def test_many_small_files(host_bundles: Path, control: Path, make: str) -> None:
    async with attacked(host_bundles, control) as client:
        await client.run("touch /workspace/first")
        filled = await client.run(python(MANY_FILES.replace("MAKE", make), "/workspace"))
        error, made = filled.stdout.split()
        assert error == "ENOSPC"
        assert 1000 < int(made) <= lasting_memory(LIMIT) // 8192


async def test_deep_directories_with_long_names(host_bundles: Path, control: Path) -> None:
    async with attacked(host_bundles, control) as client:
        result = await client.run(python(DEEP_DIRECTORIES, "/tmp"))
        assert result.stdout.split()[0] == "ENOSPC"


@pytest.mark.parametrize(
    ("program", "most"),
    [(SHARED_SEGMENTS, 8), (MESSAGE_QUEUES, 64), (SEMAPHORES, 32000)],
    ids=["shared memory", "message queues", "semaphores"],
)
async def test_system_v_objects(host_bundles: Path, control: Path, program: str, most: int) -> None:
    """They stay when the processes that made them have ended, as files do."""
    async with attacked(host_bundles, control) as client:
        error, made = (await client.run(python(program))).stdout.split()
        assert error == "ENOSPC"
        assert 0 < int(made) <= most


async def test_everything_at_once(host_bundles: Path, control: Path) -> None:
    async with attacked(host_bundles, control) as client:
        for command in (
            "cat /dev/zero > /workspace/x",
            python(MANY_FILES.replace("MAKE", MAKE_FIFO), "/dev/shm"),
            python(SHARED_SEGMENTS),
            python(MESSAGE_QUEUES),
            python(SEMAPHORES),
        ):
            await client.run(command)
        killed = await client.run(python(MEMORY_FILES))
        assert killed.oom_killed


async def test_command_that_takes_too_much_memory_is_killed_and_says_so(
    host_bundles: Path, control: Path
) -> None:
    async with attacked(host_bundles, control) as client:
        small = await client.run(python(ALLOCATE, "1000000"))
        assert (small.exit_code, small.stdout, small.oom_killed) == (0, "allocated\n", False)
        large = await client.run(f"exec {python(ALLOCATE, str(2 * LIMIT))}")
        assert (large.exit_code, large.stdout, large.oom_killed) == (-9, "", True)
        failed = await client.run("exit 9")
        assert (failed.exit_code, failed.oom_killed) == (9, False)


@pytest.mark.parametrize("command", [python(MEMORY_FILES), NESTED_FILE_SYSTEM])
async def test_memory_that_ends_with_its_processes(
    host_bundles: Path, control: Path, command: str
) -> None:
    async with attacked(host_bundles, control) as client:
        assert (await client.run(command)).oom_killed


@pytest.mark.parametrize(
    ("config", "command"),
    [
        (SandboxConfig(image="/"), FORK_BOMB),
        (SandboxConfig(image="/", pids=60), python(HOLD_ALL_PROCESSES)),
    ],
    ids=["bomb at the default limit", "processes that stay"],
)
async def test_task_that_takes_all_processes(
    host_bundles: Path, control: Path, config: SandboxConfig, command: str
) -> None:
    async with (
        LocalDeployment(bundles=host_bundles, directory=control) as deployment,
        deployment.session(config) as sandbox,
        RuntimeClient(sandbox.runtime_url, token=sandbox.token) as client,
        aclosing(client.run_stream(command)) as events,
    ):
        async for event in events:
            if "fork" in getattr(event, "text", "").lower():
                break
        assert (await deployment.get(sandbox.id)).status == "running"
        begin = monotonic()
        await deployment.delete(sandbox.id)
        assert monotonic() - begin < 5.0


async def test_command_is_refused_where_no_process_is_left(
    host_bundles: Path, control: Path
) -> None:
    config = SandboxConfig(image="/", pids=60)
    async with (
        LocalDeployment(bundles=host_bundles, directory=control) as deployment,
        deployment.session(config) as sandbox,
        RuntimeClient(sandbox.runtime_url, token=sandbox.token) as client,
    ):
        async with aclosing(client.run_stream(python(HOLD_ALL_PROCESSES))) as events:
            await anext(aiter(events))
            with pytest.raises(RequestError, match="cannot be started"):
                await client.run("true")
        # They are ended once the runtime has noticed that their reader left.
        async with asyncio.timeout(DEADLINE):
            while await refused(client):
                pass
        assert (await client.run("echo ok")).stdout == "ok\n"


async def refused(client: RuntimeClient) -> bool:
    try:
        await client.run("true")
    except RequestError:
        return True
    return False
