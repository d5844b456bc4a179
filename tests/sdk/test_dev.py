"""`agentix-namespace dev`, as a process of its own, with files saved and calls made."""

import asyncio
import glob
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentix.client import RuntimeClient
from agentix.deployment import Sandbox
from agentix.errors import RemoteCallError, SandboxGoneError
from agentix.namespace_sdk.command import main
from agentix.namespace_sdk.dev.proxy import Backend, CallReport, Proxy
from tests.runtime.serving import PROBE_PACKAGE, serving
from tests.sdk.counter import write_counter

DEADLINE = 60.0
"""Seconds within which something must happen on a busy machine."""


@dataclass
class Development:
    """The command, while it runs."""

    process: asyncio.subprocess.Process
    source: Path
    address: str

    async def line(self, pattern: str) -> re.Match[str]:
        """Wait for the line that matches; lines before it are none of the test's business."""
        assert self.process.stdout is not None
        seen: list[str] = []
        async with asyncio.timeout(DEADLINE):
            while text := (await self.process.stdout.readline()).decode():
                seen.append(text)
                if match := re.fullmatch(pattern, text.rstrip("\n")):
                    return match
        raise AssertionError(f"no line {pattern!r} among {seen}")

    def save(self, old: str, new: str) -> None:
        """Save the impl with a change, as editors do: beside it, then in its place."""
        impl = self.source / "agentix_namespaces/counter/_impl.py"
        text = impl.read_text()
        assert old in text
        beside = impl.with_name("saved~")
        beside.write_text(text.replace(old, new))
        beside.replace(impl)


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Yield a directory whose path is short enough for sockets; the command must leave it empty."""
    with tempfile.TemporaryDirectory(prefix="ax-") as directory:
        yield Path(directory)


@asynccontextmanager
async def developing(source: Path, temporary: Path) -> AsyncIterator[Development]:
    """Run the command, up to its end by Ctrl-C; it must leave nothing behind."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agentix.namespace_sdk", "dev", source),
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        development = Development(process, source, "")
        development.address = (await development.line(r"listening on (unix:.*)"))[1]
        yield development
        inside = os.listdir(temporary)
        assert len(inside) == 1
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(DEADLINE):
            assert await process.wait() == 0
        assert os.listdir(temporary) == []
        assert processes_with(inside[0]) == []
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
        await process.communicate()


async def only_one_sandbox(temporary: Path) -> None:
    """Wait until all sandboxes are gone but the one that serves."""
    async with asyncio.timeout(DEADLINE):
        while len(glob.glob(f"{temporary}/agentix-dev-*/*/*/socket")) != 1:
            await asyncio.to_thread(os.sched_yield)


def processes_with(text: str) -> list[str]:
    """Return the command lines of processes that name something."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            line = (directory / "cmdline").read_bytes() + (directory / "environ").read_bytes()
        except OSError:
            continue
        if text.encode() in line:
            found.append(line.replace(b"\0", b" ").decode())
    return found


async def test_calls_are_printed_and_saves_are_taken(tmp_path: Path, temporary: Path) -> None:
    source = write_counter(tmp_path / "counter")
    counter = stubs_of(source)
    async with (
        developing(source, temporary) as development,
        RuntimeClient(development.address) as client,
    ):
        assert await client.remote(counter.count, "a b c") == 3
        await development.line(r'count\(text="a b c"\) -> 3 \(\d+\.\d ms\)')
        assert [word async for word in client.remote(counter.words, text="a b")] == ["a", "b"]
        await development.line(r'words\(text="a b"\) gave 2 items \(\d+\.\d ms\)')
        with pytest.raises(RemoteCallError, match="ValueError: why"):
            await client.remote(counter.fail, reason="why")
        await development.line(r'fail\(reason="why"\) raised ValueError: why \(\d+\.\d ms\)')

        development.save("len(text.split())", "len(text)")
        await development.line(r"reloaded in \d+\.\d s: count, words, fail")
        assert await client.remote(counter.count, "a b c") == 5

        development.save("def count(text", "def count(words")
        told = await development.line(r"cannot be loaded \(the version before it goes on\): (.*)")
        assert "its impl lacks the parameter 'text'" in told[1]
        await only_one_sandbox(temporary)
        assert await client.remote(counter.count, "a b c") == 5

        development.save("def count(words", "def count(text")
        development.save("len(text)", "0")
        await development.line(r"reloaded in .*")
        assert await client.remote(counter.count, "a b c") == 0
        assert (await client.run("echo hello")).stdout == "hello\n"
        await client.upload(b"content", "file")
        assert await client.read_file("file", start=3) == b"tent"


GATED = """        yield word
        reader, writer = await asyncio.open_connection("127.0.0.1", {port})
        await reader.read()
        writer.close()"""


@asynccontextmanager
async def gate_on_loopback() -> AsyncIterator[tuple[int, asyncio.Queue[asyncio.StreamWriter]]]:
    """Yield a port, and the connections to it."""
    waiting: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    gate = await asyncio.start_server(lambda _, writer: waiting.put_nowait(writer), "127.0.0.1", 0)
    async with gate:
        yield gate.sockets[0].getsockname()[1], waiting
        while not waiting.empty():
            writer = waiting.get_nowait()
            writer.close()
            await writer.wait_closed()


async def test_call_under_way_ends_in_the_sandbox_where_it_began(
    tmp_path: Path, temporary: Path
) -> None:
    """Each word but the first waits until the test closes a connection that its impl opens."""
    source = write_counter(tmp_path / "counter")
    counter = stubs_of(source)
    async with (
        gate_on_loopback() as (port, waiting),
        developing(source, temporary) as development,
        RuntimeClient(development.address) as client,
    ):
        development.save("        yield word", GATED.format(port=port))
        development.save("from collections.abc", "import asyncio\nfrom collections.abc")
        await development.line(r"reloaded in .*")
        async with aclosing(aiter(client.remote(counter.words, text="old call"))) as words:
            assert await anext(words) == "old"
            development.save("yield word", "yield word.upper()")
            await development.line(r"reloaded in .*")
            async with asyncio.timeout(DEADLINE):
                (await waiting.get()).close()
                assert await anext(words) == "call"
        async with aclosing(aiter(client.remote(counter.words, text="new call"))) as words:
            assert await anext(words) == "NEW"
        await development.line(r'words\(text="new call"\) was left by its caller \(.* ms\)')


def one_then_wait(closed: str) -> AsyncIterator[int]:
    """Stand in for the probe's stub."""
    raise NotImplementedError


one_then_wait.__module__ = PROBE_PACKAGE


async def test_answer_of_a_sandbox_that_ends_breaks_off(tmp_path: Path, temporary: Path) -> None:
    told: list[str] = []
    socket = temporary / "proxy"
    with serving(tmp_path, unix=True) as server:
        async with Proxy(socket, told.append) as proxy, RuntimeClient(f"unix:{socket}") as client:
            proxy.backend = Backend(Sandbox("one", server.url, "none"), "")
            stream = client.remote(one_then_wait, closed=str(tmp_path / "closed"))
            async with asyncio.timeout(DEADLINE), aclosing(aiter(stream)) as items:
                assert await anext(items) == 1
                server.process.kill()
                with pytest.raises(SandboxGoneError):
                    await anext(items)
                with pytest.raises(SandboxGoneError, match="the sandbox is gone"):
                    await anext(client.remote(one_then_wait, closed=""))
            await proxy.backend.close()
    assert [line.partition(" ended with its sandbox")[1] != "" for line in told] == [True, True]


async def test_namespace_that_is_broken_at_first_is_taken_once_it_is_mended(
    tmp_path: Path, temporary: Path
) -> None:
    source = write_counter(tmp_path / ".hidden" / "counter")
    counter = stubs_of(source)
    impl = source / "agentix_namespaces/counter/_impl.py"
    sound = impl.read_text()
    impl.write_text("import missing_module\n" + sound)
    async with (
        developing(source, temporary) as development,
        RuntimeClient(development.address) as client,
    ):
        with pytest.raises(Exception, match="the namespace is not loaded"):
            await client.remote(counter.count, "a")
        await development.line(r'count\(text="a"\) was refused: there is no sandbox .*')
        impl.write_text(sound)
        await development.line(r"loaded in .* s: count, words, fail")
        assert await client.remote(counter.count, "a") == 1


def stubs_of(source: Path) -> Any:
    """Import the counter's stubs as they are now, without their impl."""
    import importlib.util

    path = source / "agentix_namespaces/counter/__init__.py"
    spec = importlib.util.spec_from_file_location("agentix_namespaces.counter", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


VALUE = b'{"ok":true,"value":'


@pytest.mark.parametrize(
    ("body", "chunks", "line"),
    [
        (
            b'{"method":"f","args":[1],"kwargs":{"a":"b"}}',
            [VALUE + b"null}"],
            'f(1, a="b") -> null',
        ),
        (b"x", [b'{"error":"no JSON"}'], "a call that cannot be read was refused: no JSON"),
        (b'{"method":"f"}', [VALUE + b'"' + b"x" * 99 + b'"}'], f'f() -> "{"x" * 59}...'),
        (b'{"method":"f"}', [VALUE, b'"' + b"x" * 70000], f'f() -> "{"x" * 59}...'),
    ],
)
def test_line_of_a_call(body: bytes, chunks: list[bytes], line: str) -> None:
    assert re.fullmatch(re.escape(line) + r" \(\d+\.\d ms\)", reported(body, chunks, False))


@pytest.mark.parametrize(
    ("chunks", "line"),
    [
        ([b'{"item":1}\n{"it', b'em":2}\n{"end":true}\n'], "f() gave 2 items"),
        ([b'{"item":1}\n'], "f() gave 1 item and broke off"),
        ([b'{"error":{"type":"E","message":"m"}}\n'], "f() gave 0 items and raised E: m"),
    ],
)
def test_line_of_a_stream(chunks: list[bytes], line: str) -> None:
    told = reported(b'{"method":"f"}', chunks, True)
    assert re.fullmatch(re.escape(line) + r" \(\d+\.\d ms\)", told)


def reported(body: bytes, chunks: list[bytes], streams: bool) -> str:
    report = CallReport(body)
    report.start_answer(streams)
    for chunk in chunks:
        report.add_chunk(chunk)
    return report.complete()


def test_directory_without_a_namespace_is_told(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "agentix.namespace_sdk", "dev", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 2
    assert "no manifest at" in done.stderr


def test_socket_that_cannot_be_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_counter(tmp_path / "counter")
    address = tmp_path / "nowhere" / "socket"
    assert main(["dev", str(source), "--socket", str(address)]) == 2
    told = capsys.readouterr().err
    reason = "cannot be listened on: No such file or directory"
    assert told == f"agentix-namespace: {address} {reason}\n"
