"""The local gateway, the pump's side of the namespace: requests that are not right, and its end."""

import asyncio
import json
import shutil
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.agentserver.conftest import FIXTURE

ADD = "<calculator.add.addpayload><a>7</a><b>35</b></calculator.add.addpayload>"


@pytest.fixture
async def pump() -> AsyncIterator[tuple[Process, Path]]:
    """The program, and its socket."""
    with tempfile.TemporaryDirectory(prefix="agentix-pump-") as directory:
        home = Path(directory)
        for file in FIXTURE.glob("*.*"):
            shutil.copy(file, home)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "agentix.agentserver.gateway.local"),
            str(home / "organism.yaml"),
            str(home / "pump.sock"),
            stdin=PIPE,
            stdout=PIPE,
        )
        try:
            assert process.stdout is not None
            async with asyncio.timeout(60):
                assert json.loads(await process.stdout.readline()) == {"ready": True}
            yield process, home / "pump.sock"
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def ask(socket: Path, line: bytes) -> list[Any]:
    """Sends a line, and gives the lines of the answer."""
    reader, writer = await asyncio.open_unix_connection(socket)
    try:
        writer.write(line + b"\n")
        async with asyncio.timeout(30):
            return [json.loads(each) async for each in reader]
    finally:
        writer.close()
        await writer.wait_closed()


async def test_requests_are_answered_or_refused(pump: tuple[Process, Path]) -> None:
    process, socket = pump
    assert socket.stat().st_mode & 0o777 == 0o600
    for line in (b"nonsense", b"[]", b'{"op": "fly"}', b'{"op": "post", "message": 5}', b"\xff"):
        (answer,) = await ask(socket, line)
        assert list(answer) == ["error"]
    request = {"op": "call", "message": ADD, "thread": None, "seconds": 30}
    reply, end = await ask(socket, json.dumps(request).encode())
    assert '<result xmlns="">42</result>' in reply["item"]["xml"]
    assert (reply["item"]["sender"], reply["item"]["to"]) == ("calculator.add", "agentix")
    assert end == {"end": True}
    late = request | {"seconds": 0.0}
    (answer,) = await ask(socket, json.dumps(late).encode())
    assert answer["error"]["type"] == "CallTimeoutError"
    process.stdin.close()  # type: ignore[union-attr]
    async with asyncio.timeout(30):
        assert await process.wait() == 0


async def test_client_that_goes_ends_its_request(pump: tuple[Process, Path]) -> None:
    _, socket = pump
    for _ in range(20):
        _, writer = await asyncio.open_unix_connection(socket)
        writer.write(b'{"op": "listen", "thread": null, "after_seq": 0}\n')
        await writer.drain()
        writer.close()
        await writer.wait_closed()
    (info, _) = await ask(socket, b'{"op": "info"}')
    assert info["item"]["name"] == "fixture"


async def test_organism_that_can_not_start_is_told(tmp_path: Path) -> None:
    (tmp_path / "organism.yaml").write_text("organism: {}")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "agentix.agentserver.gateway.local"),
        *(str(tmp_path / "organism.yaml"), str(tmp_path / "pump.sock")),
        stdin=PIPE,
        stdout=PIPE,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 2
    told = json.loads(output)["error"]
    assert told["type"] == "SpecError"
    assert "organism.name: Field required" in told["message"]
