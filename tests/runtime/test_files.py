"""`POST /upload` and `GET /download`: whole files, beneath the upload root."""

import ctypes
import hashlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import anyio
import pytest

from tests.runtime.serving import (
    Server,
    get,
    post,
    receive_until,
    received,
    until,
    wait_until,
)

MEBIBYTE = 1024 * 1024
BOUNDARY = "frontier"
FORM = f"Content-Type: multipart/form-data; boundary={BOUNDARY}"


@pytest.fixture(autouse=True)
def outside(server: Server) -> Path:
    """A directory beside the upload root, with a file that nothing may touch."""
    directory = server.root / "outside"
    directory.mkdir(exist_ok=True)
    (directory / "kept").write_text("kept")
    return directory


@pytest.fixture(autouse=True)
def _nothing_lands_outside(server: Server, outside: Path) -> Iterator[None]:
    before = sorted(server.root.iterdir())
    yield
    assert [path.name for path in outside.iterdir()] == ["kept"]
    assert (outside / "kept").read_text() == "kept"
    assert sorted(server.root.iterdir()) == before


@pytest.fixture
def place(server: Server, tmp_path: Path) -> Path:
    """A directory of the test's own beneath the upload root."""
    directory = server.workspace / tmp_path.name
    directory.mkdir(parents=True)
    return directory


def form(content: bytes, **fields: str) -> bytes:
    """Gives a form whose file is its last part."""
    parts = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    ]
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="name"\r\n\r\n'
    return ("".join(parts) + head).encode() + content + f"\r\n--{BOUNDARY}--\r\n".encode()


def answer_to(server: Server, request: bytes) -> tuple[int, Any]:
    head, _, body = server.exchange(request).partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head
    return int(head.split()[1]), json.loads(body)


def upload(server: Server, content: bytes, **fields: str) -> tuple[int, Any]:
    return answer_to(server, post("/upload", form(content, **fields), FORM))


def download(server: Server, path: Path | str, *fields: str) -> tuple[int, dict[str, str], bytes]:
    answer = server.exchange(get(f"/download?path={quote(str(path))}", *fields))
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    return int(status.split()[1]), dict(line.split(": ", 1) for line in lines), body


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_upload_answers_with_path_and_size(server: Server, place: Path) -> None:
    answer = upload(server, b"content", path=f"{place.name}/a/b")
    assert answer == (200, {"path": f"{place}/a/b", "size": 7})
    assert (place / "a" / "b").read_bytes() == b"content"


def test_upload_takes_an_absolute_path_beneath_the_root(server: Server, place: Path) -> None:
    assert upload(server, b"x", path=f"{place}/a") == (200, {"path": f"{place}/a", "size": 1})
    assert (place / "a").read_bytes() == b"x"


def test_upload_without_a_path_goes_by_its_own_name(server: Server) -> None:
    assert upload(server, b"x") == (200, {"path": f"{server.workspace}/name", "size": 1})


def test_empty_upload_is_an_empty_file(server: Server, place: Path) -> None:
    assert upload(server, b"", path=f"{place}/empty")[1]["size"] == 0
    assert (place / "empty").read_bytes() == b""


def test_uploaded_bytes_that_look_like_a_boundary(server: Server, place: Path) -> None:
    content = f"\r\n--{BOUNDARY[:-1]}\r\n--\r\n\0--{BOUNDARY}".encode()
    assert upload(server, content, path=f"{place}/a")[0] == 200
    assert (place / "a").read_bytes() == content


@pytest.mark.parametrize(
    ("mode", "wanted"), [(None, 0o644), ("755", 0o755), ("0600", 0o600), ("0", 0), ("777", 0o777)]
)
def test_mode_of_an_upload(server: Server, place: Path, mode: str | None, wanted: int) -> None:
    fields = {"path": f"{place}/a"} | ({} if mode is None else {"mode": mode})
    assert upload(server, b"", **fields)[0] == 200
    assert (place / "a").stat().st_mode & 0o7777 == wanted


@pytest.mark.parametrize("mode", ["8", "rwx", "00755", "-1"])
def test_mode_that_is_not_octal_is_400(server: Server, place: Path, mode: str) -> None:
    reason = f"mode={mode!r} is not an octal number of up to four digits"
    assert upload(server, b"new", path=f"{place}/a", mode=mode) == (400, {"error": reason})
    assert names(place) == []


def test_name_as_long_as_the_kernel_allows(server: Server, place: Path) -> None:
    name = "é" * 127 + "x"
    assert upload(server, b"x", path=f"{place.name}/{name}")[0] == 200
    assert names(place) == [name]


def test_name_that_is_too_long_is_400(server: Server, place: Path) -> None:
    path = f"{place.name}/{'x' * 256}"
    reason = f"'{path}' cannot be opened: File name too long"
    assert upload(server, b"x", path=path) == (400, {"error": reason})


MULTIPART = f"multipart/form-data; boundary={BOUNDARY}"
NO_FORM = "an upload is multipart/form-data with a boundary"
CUT_OFF = "the form ends before its last boundary"


@pytest.mark.parametrize(
    ("body", "content_type", "reason"),
    [
        (b"", "application/json", NO_FORM),
        (b"", "multipart/form-data", NO_FORM),
        (b"", f"multipart/form-data; boundary={'b' * 201}", NO_FORM),
        (b"", MULTIPART, CUT_OFF),
        (form(b"x")[:-6], MULTIPART, CUT_OFF),
        (f"--{BOUNDARY}--\r\n".encode(), MULTIPART, "the form has no part named 'file'"),
    ],
)
def test_malformed_form_is_400(server: Server, body: bytes, content_type: str, reason: str) -> None:
    request = post("/upload", body, f"Content-Type: {content_type}")
    assert answer_to(server, request) == (400, {"error": reason})


def test_garbage_in_a_form_is_400(server: Server) -> None:
    status, body = answer_to(server, post("/upload", b"garbage" * 1000, FORM))
    assert status == 400
    assert body["error"].startswith("the form is malformed: ")


def test_two_files_in_a_form_are_400(server: Server, place: Path) -> None:
    body = form(b"1", path=f"{place}/a")
    body = body.removesuffix(f"--{BOUNDARY}--\r\n".encode()) + form(b"2")
    request = post("/upload", body, FORM)
    assert answer_to(server, request) == (400, {"error": "a form carries one file"})
    assert names(place) == []


def test_field_that_is_too_long_is_400(server: Server) -> None:
    reason = "the field 'path' is too long"
    assert upload(server, b"", path="x" * 70_000) == (400, {"error": reason})


def test_connection_of_a_refused_upload_goes_on(server: Server, place: Path) -> None:
    body = form(b"x" * (MEBIBYTE // 2), path="../out")
    request = post("/upload", body, FORM).replace(b"Connection: close\r\n", b"")
    with server.connect() as connection:
        connection.sendall(request)
        assert b"HTTP/1.1 400" in receive_until(connection, b"}")
        connection.sendall(get("/health"))
        assert b"HTTP/1.1 200" in received(connection)


def test_refused_upload_of_more_than_is_dropped_is_answered_and_closed(
    server: Server, place: Path
) -> None:
    request = post("/upload", form(b"x" * 50 * MEBIBYTE, path="../out"), FORM)
    with server.connect() as connection:
        sender = threading.Thread(target=send_all, args=(connection, request))
        sender.start()
        answer = receive_until(connection, b"}")
        sender.join()
    assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {
        "error": "'../out' leads out of the upload root"
    }


def send_all(connection: socket.socket, request: bytes) -> None:
    """Send what is not read to its end."""
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        connection.sendall(request)


def test_body_that_no_endpoint_reads_leaves_no_connection_behind(server: Server) -> None:
    before = server.descriptors()
    for path in ("/health", "/absent", "/namespaces", "/download"):
        server.exchange(post(path, b"x" * 2 * MEBIBYTE))
    with server.connect() as connection:
        connection.sendall(post("/absent", b"x" * 2 * MEBIBYTE)[:-MEBIBYTE])
    wait_until(lambda: server.descriptors() <= before)


@pytest.mark.parametrize("missing", [6, 1000, 100_000], ids=["last boundary", "end", "most"])
def test_upload_that_is_cut_off_leaves_the_old_file_and_no_pieces(
    server: Server, place: Path, missing: int
) -> None:
    (place / "file").write_bytes(b"old")
    body = form(b"new" * 50_000, path=f"{place}/file")[:-missing]
    request = post("/upload", body, FORM).replace(
        b"Content-Length: %d" % len(body), b"Content-Length: %d" % (len(body) + 1000)
    )
    with server.connect() as connection:
        connection.sendall(request)
        wait_until(lambda: len(names(place)) == 2)
    wait_until(lambda: names(place) == ["file"])
    assert (place / "file").read_bytes() == b"old"


def test_old_file_is_whole_until_the_new_one_is_complete(server: Server, place: Path) -> None:
    (place / "file").write_bytes(b"old")
    body = form(b"new" * 1_000_000, path=f"{place}/file")
    request = post("/upload", body, FORM)
    with server.connect() as connection:
        connection.sendall(request[:-100])
        wait_until(lambda: len(names(place)) == 2)
        assert (place / "file").read_bytes() == b"old"
        connection.sendall(request[-100:])
        assert b"HTTP/1.1 200" in received(connection)
    assert (place / "file").read_bytes() == b"new" * 1_000_000
    assert names(place) == ["file"]


async def test_one_of_two_concurrent_uploads_of_a_path_wins(
    server: Server, session: aiohttp.ClientSession, place: Path
) -> None:
    contents = [bytes([number]) * 3 * MEBIBYTE for number in range(4)]

    async def send(content: bytes) -> None:
        await anyio.to_thread.run_sync(lambda: upload(server, content, path=f"{place}/file"))

    async with anyio.create_task_group() as group:
        for content in contents:
            group.start_soon(send, content)
    assert (place / "file").read_bytes() in contents
    assert names(place) == ["file"]


def test_256_mebibytes_go_both_ways_in_little_memory(server: Server, place: Path) -> None:
    block = os.urandom(MEBIBYTE)
    total = 256 * MEBIBYTE
    upload(server, b"warm", path=f"{place}/warm")
    download(server, place / "warm")
    head, _, tail = form(b"|", path=f"{place}/big").partition(b"|")
    request = post("/upload", b"", FORM).replace(
        b"Content-Length: 0", b"Content-Length: %d" % (len(head) + total + len(tail))
    )
    before = server.resident_bytes()
    server.reset_peak()
    with server.connect() as connection:
        connection.sendall(request + head)
        for _ in range(256):
            connection.sendall(block)
        connection.sendall(tail)
        assert b'"size":268435456' in received(connection)
    digest = hashlib.sha256()
    with server.connect() as connection:
        connection.sendall(get(f"/download?path={place}/big"))
        answer = connection.recv(65536)
        assert b"content-length: 268435456" in answer
        received_bytes = 0
        piece = answer.partition(b"\r\n\r\n")[2] or connection.recv(MEBIBYTE)
        while piece:
            received_bytes += len(piece)
            digest.update(piece)
            piece = connection.recv(MEBIBYTE)
    assert server.peak_bytes() - before < 32 * MEBIBYTE
    wanted = hashlib.sha256()
    for _ in range(256):
        wanted.update(block)
    assert (received_bytes, digest.digest()) == (total, wanted.digest())
    (place / "big").unlink()


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("../outside/new", "'../outside/new' leads out of the upload root"),
        ("a/../../outside/new", "'a/../../outside/new' leads out of the upload root"),
        ("..", "'..' leads out of the upload root"),
        (".", "'.' is a directory, not a file"),
        ("/", "'/' leads out of {root}"),
        ("/etc/passwd", "'/etc/passwd' leads out of {root}"),
        ("{root}/../outside/new", "'{root}/../outside/new' leads out of the upload root"),
        ("{root}", "'{root}' is a directory, not a file"),
        ("{root}er/new", "'{root}er/new' leads out of {root}"),
        ("{here}/out/new", "'{here}/out/new' leads out of {root}"),
        ("{here}/up/new", "'{here}/up/new' leads out of the upload root"),
        ("{here}/chain/new", "'{here}/chain/new' leads out of {root}"),
        ("{here}/loop/new", "'{here}/loop/new' passes too many symbolic links"),
        ("{here}/loop", "'{here}/loop' passes too many symbolic links"),
        ("{here}/new-out", "'{here}/new-out' leads out of {root}"),
        ("{here}/a\0b", "'{here}/a\\x00b' holds a NUL byte"),
        ("{here}", "'{here}' is a directory, not a file"),
        ("{here}/fifo", "'{here}/fifo' is not a regular file"),
        ("{here}/device", "'{here}/device' is not a regular file"),
        ("{here}/socket", "'{here}/socket' is not a regular file"),
        ("{here}/file/new", "'{here}/file/new' cannot be opened: Not a directory"),
    ],
)
@pytest.mark.parametrize("direction", ["upload", "download"])
def test_path_that_is_no_file_beneath_the_root_is_400(
    server: Server, place: Path, outside: Path, direction: str, path: str, reason: str
) -> None:
    (place / "out").symlink_to(outside)
    (place / "up").symlink_to("../../outside")
    (place / "link").symlink_to("out")
    (place / "chain").symlink_to("link")
    (place / "loop").symlink_to("pool")
    (place / "pool").symlink_to("loop")
    (place / "new-out").symlink_to(outside / "new")
    (place / "file").touch()
    os.mkfifo(place / "fifo")
    os.mknod(place / "device", 0o666 | 0o020000, os.makedev(1, 3))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place / "socket"))
    values = {"root": str(server.workspace), "here": str(place)}
    before = names(place)
    if direction == "upload":
        status, answer = upload(server, b"new", path=path.format(**values))
    else:
        status, _, body = download(server, path.format(**values))
        answer = json.loads(body)
    assert (status, answer) == (400, {"error": reason.format(**values)})
    assert names(place) == before


@pytest.mark.parametrize("target", ["real", "./real", "{here}/real", "../{name}/real", "again"])
def test_links_that_stay_beneath_the_root_are_followed(
    server: Server, place: Path, target: str
) -> None:
    (place / "real").mkdir()
    (place / "again").symlink_to("real")
    (place / "link").symlink_to(target.format(here=place, name=place.name))
    assert upload(server, b"content", path=f"{place.name}/link/file")[0] == 200
    assert (place / "real" / "file").read_bytes() == b"content"
    assert download(server, f"{place.name}/link/file")[2] == b"content"


def test_upload_through_a_link_to_a_file_replaces_the_file(server: Server, place: Path) -> None:
    (place / "file").write_bytes(b"old")
    (place / "link").symlink_to("file")
    assert upload(server, b"new", path=f"{place}/link")[0] == 200
    assert (place / "file").read_bytes() == b"new"
    assert (place / "link").is_symlink()


def test_path_may_go_up_where_it_stays_beneath_the_root(server: Server, place: Path) -> None:
    assert upload(server, b"x", path=f"{place}/a/../b/./c")[0] == 200
    assert (place / "b" / "c").read_bytes() == b"x"


def test_directory_swapped_for_a_link_lets_nothing_out(
    server: Server, place: Path, outside: Path
) -> None:
    directory, link = place / "swap", place / "link"
    directory.mkdir()
    link.symlink_to(outside)
    ended = threading.Event()

    def flip() -> None:
        """Exchanges the two names in one step, over and over (renameat2(2))."""
        libc = ctypes.CDLL(None, use_errno=True)
        at, exchange = -100, 2
        while not ended.is_set():
            assert libc.renameat2(at, bytes(directory), at, bytes(link), exchange) == 0

    thread = threading.Thread(target=flip)
    thread.start()
    try:
        statuses = {upload(server, b"new", path=f"{place}/swap/file")[0] for _ in range(150)}
        statuses |= {download(server, f"{place}/swap/kept")[0] for _ in range(150)}
    finally:
        ended.set()
        thread.join()
    assert statuses <= {200, 400, 404}
    assert 200 in statuses  # the uploads that found the directory
    assert 400 in statuses  # those that found the link


def test_download_of_a_whole_file(server: Server, place: Path) -> None:
    (place / "file").write_bytes(b"0123456789")
    status, headers, body = download(server, place / "file")
    assert (status, body) == (200, b"0123456789")
    assert headers["content-type"] == "application/octet-stream"
    assert headers["content-length"] == "10"
    assert headers["accept-ranges"] == "bytes"


def test_download_of_a_name_with_every_kind_of_character(server: Server, place: Path) -> None:
    name = "a b%20+&=?#é\n'\""
    (place / name).write_bytes(b"here")
    assert download(server, place / name)[2] == b"here"


def test_download_of_an_absent_file_is_404(server: Server, place: Path) -> None:
    status, _, body = download(server, place / "absent")
    reason = f"{place}/absent: No such file or directory"
    assert (status, json.loads(body)) == (404, {"error": reason})


@pytest.mark.parametrize("query", ["", "?path=", "?other=x"])
def test_download_without_a_path_is_400(server: Server, query: str) -> None:
    reason = "say which file: /download?path=..."
    assert answer_to(server, get(f"/download{query}")) == (400, {"error": reason})


@pytest.mark.parametrize(
    ("asked", "place_in_file", "content"),
    [
        ("bytes=0-3", "0-3", b"0123"),
        ("bytes=0-0", "0-0", b"0"),
        ("bytes=7-", "7-9", b"789"),
        ("bytes=-3", "7-9", b"789"),
        ("bytes=-100", "0-9", b"0123456789"),
        ("bytes=5-100", "5-9", b"56789"),
    ],
)
def test_range_of_a_file(
    server: Server, place: Path, asked: str, place_in_file: str, content: bytes
) -> None:
    (place / "file").write_bytes(b"0123456789")
    status, headers, body = download(server, place / "file", f"Range: {asked}")
    assert (status, body) == (206, content)
    assert headers["content-range"] == f"bytes {place_in_file}/10"
    assert headers["content-length"] == str(len(content))


@pytest.mark.parametrize(
    ("size", "asked"),
    [(10, "bytes=10-"), (10, "bytes=10-20"), (10, "bytes=-0"), (0, "bytes=0-"), (0, "bytes=-1")],
)
def test_range_outside_of_a_file_is_416(server: Server, place: Path, size: int, asked: str) -> None:
    (place / "file").write_bytes(b"x" * size)
    status, headers, body = download(server, place / "file", f"Range: {asked}")
    assert (status, headers["content-range"]) == (416, f"bytes */{size}")
    assert json.loads(body) == {"error": f"no such range in a file of {size} bytes"}


@pytest.mark.parametrize(
    "fields",
    [
        ("Range: bytes=5-2",),
        ("Range: bytes=-",),
        ("Range: bytes=a-b",),
        ("Range: bytes=0-1,3-4",),
        ("Range: lines=0-1",),
        ("Range:",),
        ("Range: bytes=0-1", 'If-Range: "some-tag"'),
    ],
)
def test_range_that_is_passed_over_gives_the_whole_file(
    server: Server, place: Path, fields: tuple[str, ...]
) -> None:
    (place / "file").write_bytes(b"0123456789")
    status, _, body = download(server, place / "file", *fields)
    assert (status, body) == (200, b"0123456789")


def test_head_of_a_download_has_no_body(server: Server, place: Path) -> None:
    (place / "file").write_bytes(b"0123456789")
    answer = server.exchange(get(f"/download?path={place}/file").replace(b"GET", b"HEAD", 1))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-length: 10" in head
    assert body == b""


def test_file_that_shrinks_while_it_is_sent_breaks_off(server: Server, place: Path) -> None:
    file = place / "file"
    size = 64 * MEBIBYTE
    with file.open("wb") as sparse:
        sparse.truncate(size)
    with server.connect() as connection:
        connection.sendall(get(f"/download?path={file}"))
        head, _, body = receive_until(connection, b"\r\n\r\n").partition(b"\r\n\r\n")
        os.truncate(file, 0)
        body += received(connection)
    assert b"content-length: %d" % size in head
    assert len(body) < size
    assert answer_to(server, get("/health"))[0] == 200


async def test_client_that_leaves_a_download_ends_it(server: Server, place: Path) -> None:
    file = place / "sparse"
    with file.open("wb") as sparse:
        sparse.truncate(1024 * 1024 * MEBIBYTE)
    with server.connect() as connection:
        connection.sendall(get(f"/download?path={file}"))
        await anyio.to_thread.run_sync(receive_until, connection, b"\0" * 1000)
        assert server.opens(file)
    await until(lambda: not server.opens(file))
    file.unlink()
