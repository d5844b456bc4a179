"""A task with an ordinary user's means against the client of its sandbox: files, errors, output."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from agentix.client import RuntimeClient
from agentix.errors import AnswerTooLargeError, RemoteCallError
from tests.client import probe
from tests.client.conftest import mount_probe
from tests.runtime.serving import Server, serving

MEBIBYTE = 1024 * 1024
GIBIBYTE = 1024 * MEBIBYTE

TOKEN = "token"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("runtime")
    with serving(root / "server", unix=True, token=TOKEN, prepare=mount_probe) as server:
        yield server


@pytest.fixture
async def client(server: Server) -> AsyncIterator[RuntimeClient]:
    async with RuntimeClient(server.url, token=TOKEN) as client:
        yield client


async def make_sparse_file(client: RuntimeClient, server: Server, size: int) -> None:
    """Let a command make a file that says it is large, with one byte at its end."""
    command = f"printf x | dd of=sparse bs=1 seek={size - 1}; du -k sparse"
    made = await client.run(command, cwd=str(server.workspace))
    assert (made.exit_code, int(made.stdout.split()[0]) < 100) == (0, True)


async def test_sparse_file_is_refused_by_its_length(
    client: RuntimeClient, server: Server, tmp_path: Path
) -> None:
    await make_sparse_file(client, server, 3 * GIBIBYTE)
    with pytest.raises(AnswerTooLargeError, match="the file 'sparse' has 3,221,225,472 bytes") as e:
        await client.read_file("sparse")
    assert (e.value.limit, e.value.size) == (64 * MEBIBYTE, 3 * GIBIBYTE)
    with pytest.raises(AnswerTooLargeError, match="pass download a larger max_bytes") as e:
        await client.download("sparse", tmp_path / "copy", max_bytes=2 * GIBIBYTE)
    assert (e.value.limit, e.value.size) == (2 * GIBIBYTE, 3 * GIBIBYTE)
    assert os.listdir(tmp_path) == []
    end = await client.read_file("sparse", start=3 * GIBIBYTE - 3)
    assert end == b"\0\0x"


async def test_sparse_file_stays_sparse(
    client: RuntimeClient, server: Server, tmp_path: Path
) -> None:
    size = GIBIBYTE // 2
    await make_sparse_file(client, server, size)
    copy = tmp_path / "copy"
    assert await client.download("sparse", copy) == size
    assert copy.stat().st_size == size
    assert copy.stat().st_blocks * 512 <= 64 * 1024
    with copy.open("rb") as file:
        file.seek(size - 2)
        assert file.read() == b"\0x"


async def test_download_that_would_be_too_large_is_told_of_a_sparse_tebibyte(
    client: RuntimeClient, server: Server, tmp_path: Path
) -> None:
    made = await client.run("truncate -s 1T sparse", cwd=str(server.workspace))
    assert made.exit_code == 0
    with pytest.raises(AnswerTooLargeError, match="1,099,511,627,776 bytes") as caught:
        await client.download("sparse", tmp_path / "copy")
    assert caught.value.limit == 16 * GIBIBYTE


@pytest.mark.parametrize("megabytes", [20, 50])
async def test_error_text_of_many_megabytes_arrives_cut(
    client: RuntimeClient, megabytes: int
) -> None:
    with pytest.raises(RemoteCallError) as caught:
        await client.remote(probe.fail, "x" * megabytes * 1_000_000)
    assert caught.value.type == "LookupError"
    assert caught.value.message.startswith("x" * 1000)
    assert len(caught.value.message) < 66_000
    assert len(caught.value.traceback) < 264_000
    assert await client.remote(probe.add, 1) == 2


async def test_output_of_control_characters_is_taken_whole(client: RuntimeClient) -> None:
    command = "head -c 11000000 /dev/zero | tee /dev/stderr"
    result = await client.run(command)
    assert (result.exit_code, result.stdout_bytes, result.stdout_truncated) == (0, 11_000_000, True)
    assert result.stdout == result.stderr == "\0" * 10 * MEBIBYTE
