"""Uploads and downloads that go wrong: nothing half-done is left, and the reason is told."""

import asyncio
import io
from pathlib import Path

import pytest

from agentix.client import RuntimeClient
from agentix.errors import AnswerTooLargeError, ArgumentsError, RequestError, SandboxGoneError
from tests.client.raw import Exchange, Place, answer, head

OCTETS = "application/octet-stream"


class ShrinkingFile(io.BytesIO):
    """A file that says it is longer than it turns out to be."""

    def seek(self, offset: int, whence: int = 0) -> int:
        return super().seek(offset, whence) + (1000 if whence == io.SEEK_END else 0)


class BrokenFile(io.BytesIO):
    def read(self, size: int | None = -1) -> bytes:
        raise OSError(5, "the disk is broken")


async def test_form_is_what_the_runtime_reads(place: Place) -> None:
    async with (
        place.answering(answer('{"path":"/workspace/x","size":3}')) as server,
        RuntimeClient(server.url) as client,
    ):
        result = await client.upload(b"abc", "dir/é.bin", mode=0o750)
    assert (result.path, result.size) == ("/workspace/x", 3)
    [request] = server.requests
    assert request.line == "POST /upload HTTP/1.1"
    media_type, boundary = request.headers["content-type"].split("; boundary=")
    assert media_type == "multipart/form-data"
    path, mode, file = request.body.split(f"--{boundary}".encode())[1:-1]
    assert path.startswith(b'\r\nContent-Disposition: form-data; name="path"\r\n\r\n')
    assert path.endswith("\r\n\r\ndir/é.bin\r\n".encode())
    assert mode.endswith(b'name="mode"\r\n\r\n750\r\n')
    assert b'name="file"; filename=' in file
    assert file.endswith(b"\r\n\r\nabc\r\n")
    assert request.body.endswith(f"--{boundary}--\r\n".encode())


@pytest.mark.parametrize("source", [ShrinkingFile(b"abc"), BrokenFile(b"abc")])
async def test_source_that_breaks_is_the_error(place: Place, source: io.BytesIO) -> None:
    async def handle(exchange: Exchange) -> None:
        await exchange.left()

    async with place.serve(handle) as server, RuntimeClient(server.url) as client:
        with pytest.raises((EOFError, OSError), match=r"1000 bytes shorter|disk is broken"):
            await client.upload(source, "x")


async def test_missing_source_is_told_before_anything_is_sent(place: Place, tmp_path: Path) -> None:
    async with place.answering(answer("")) as server, RuntimeClient(server.url) as client:
        with pytest.raises(FileNotFoundError):
            await client.upload(tmp_path / "missing", "x")
        with pytest.raises(ArgumentsError, match="Unicode"):
            await client.upload(b"", "\udc80")
        with pytest.raises(ArgumentsError, match="needs a path"):
            await client.upload(b"", "")
    assert server.connections == 0


async def test_refusal_in_the_middle_of_an_upload_is_told(place: Place) -> None:
    async def handle(exchange: Exchange) -> None:
        await exchange.reader.readuntil(b"\r\n\r\n")
        await exchange.send(answer('{"error":"too large"}', 413))
        await exchange.left()

    async with place.serve(handle) as server, RuntimeClient(server.url) as client:
        with pytest.raises(RequestError, match="too large"):
            await client.upload(bytes(64 * 1024 * 1024), "x")


async def test_upload_that_breaks_off_means_gone(place: Place) -> None:
    async def handle(exchange: Exchange) -> None:
        await exchange.reader.readuntil(b"\r\n\r\n")

    async with place.serve(handle) as server, RuntimeClient(server.url) as client:
        with pytest.raises(SandboxGoneError):
            await client.upload(bytes(64 * 1024 * 1024), "x")


BROKEN_FILES = [
    head(200, OCTETS, "Content-Length: 10") + b"12345",
    head(200, OCTETS, "Transfer-Encoding: chunked") + b"5\r\n12345\r\n",
    head(200, OCTETS, "Connection: close") + b"12345",
    answer("oops", 500),
]


@pytest.mark.parametrize("content", BROKEN_FILES)
async def test_truncated_download_keeps_the_old_file(
    place: Place, tmp_path: Path, content: bytes
) -> None:
    directory = tmp_path / "files"
    directory.mkdir()
    target = directory / "target"
    target.write_text("old")
    async with place.answering(content, close=True) as server, RuntimeClient(server.url) as client:
        with pytest.raises(SandboxGoneError):
            await client.download("x", target)
        with pytest.raises(SandboxGoneError):
            await client.read_file("x")
    assert [path.name for path in directory.iterdir()] == ["target"]
    assert target.read_text() == "old"


async def test_cancelled_download_keeps_the_old_file(place: Place, tmp_path: Path) -> None:
    directory = tmp_path / "files"
    directory.mkdir()
    target = directory / "target"
    target.write_text("old")
    begun, left = asyncio.Event(), asyncio.Event()

    async def handle(exchange: Exchange) -> None:
        await exchange.request()
        await exchange.send(head(200, OCTETS, "Content-Length: 10") + b"12345")
        begun.set()
        await exchange.left()
        left.set()

    async with place.serve(handle) as server, RuntimeClient(server.url) as client:
        task = asyncio.create_task(client.download("x", target))
        await asyncio.wait_for(begun.wait(), 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(left.wait(), 5)
    assert [path.name for path in directory.iterdir()] == ["target"]
    assert target.read_text() == "old"


async def test_unwritable_target_is_the_error(place: Place, tmp_path: Path) -> None:
    content = answer(b"12345", media_type=OCTETS)
    async with place.answering(content) as server, RuntimeClient(server.url) as client:
        with pytest.raises(FileNotFoundError):
            await client.download("x", tmp_path / "missing" / "target")


async def test_file_is_taken_up_to_max_bytes(place: Place, tmp_path: Path) -> None:
    content = answer(b"12345", media_type=OCTETS)
    target = tmp_path / "target"
    target.write_text("old")
    async with place.answering(content) as server, RuntimeClient(server.url) as client:
        for call in (
            client.read_file("x", max_bytes=4),
            client.download("x", target, max_bytes=4),
        ):
            with pytest.raises(AnswerTooLargeError, match="the file 'x' has 5 bytes") as caught:
                await call
            assert (caught.value.limit, caught.value.size) == (4, 5)
        assert target.read_text() == "old"
        assert await client.read_file("x", max_bytes=5) == b"12345"
        assert await client.download("x", target, max_bytes=5) == 5
    assert target.read_bytes() == b"12345"


@pytest.mark.parametrize("name", ["read_file", "download"])
async def test_more_of_a_file_than_was_asked_for_means_gone(
    place: Place, tmp_path: Path, name: str
) -> None:
    content = answer(b"12345", 206, media_type=OCTETS)
    async with place.answering(content) as server, RuntimeClient(server.url) as client:
        call = (
            client.read_file("x", start=1, length=4)
            if name == "read_file"
            else client.download("x", tmp_path / "target", start=1, length=4)
        )
        with pytest.raises(SandboxGoneError, match="5 bytes of a file where 4 were asked for"):
            await call


BLOCK = 4096

SPARSE = {
    "empty": b"",
    "zeros": bytes(3_000_000),
    "zeros at the end": b"x" + bytes(3_000_000),
    "zeros at the start": bytes(3_000_000) + b"x",
    "zeros in the middle": b"x" * 100_000 + bytes(3_000_000) + b"y" * 100_000,
    "a block": bytes(BLOCK),
    "less than a block": bytes(BLOCK - 1),
    "zeros off the blocks": b"x" + bytes(BLOCK + 10) + b"x" + bytes(2 * BLOCK) + b"x",
    "blocks by turns": (bytes(BLOCK) + b"x" * BLOCK) * 500,
}


@pytest.mark.parametrize("name", SPARSE)
async def test_zeros_of_a_file_take_no_room(place: Place, tmp_path: Path, name: str) -> None:
    content = SPARSE[name]
    target = tmp_path / "target"
    async with (
        place.answering(answer(content, media_type=OCTETS)) as server,
        RuntimeClient(server.url) as client,
    ):
        assert await client.download("x", target) == len(content)
    assert target.read_bytes() == content
    blocks = [content[start : start + BLOCK] for start in range(0, len(content), BLOCK)]
    needed = sum(BLOCK for block in blocks if any(block))
    # Of a block of zeros that comes in two pieces, and of what is around it, some is written.
    assert target.stat().st_blocks * 512 <= 2 * needed + BLOCK


async def test_ignored_range_means_gone(place: Place) -> None:
    content = answer(b"12345", media_type=OCTETS)
    async with place.answering(content) as server, RuntimeClient(server.url) as client:
        with pytest.raises(SandboxGoneError, match="200 instead of 206"):
            await client.read_file("x", start=1)


@pytest.mark.parametrize(("start", "length"), [(-1, None), (0, 0), (0, -1)])
async def test_part_that_can_not_be_is_refused(
    place: Place, start: int, length: int | None
) -> None:
    async with place.answering(answer("")) as server, RuntimeClient(server.url) as client:
        with pytest.raises(ArgumentsError, match="no such part"):
            await client.read_file("x", start=start, length=length)
    assert server.connections == 0
