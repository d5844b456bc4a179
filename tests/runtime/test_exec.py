"""`POST /exec`: shell commands, as JSON and as events."""

import io
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest

from tests.runtime.serving import (
    PROBE_PACKAGE,
    Server,
    count_tasks,
    eventually,
    is_alive,
    manifest_of,
    mount,
    mount_probe,
    post,
    process_fields,
    receive_until,
    received,
    remote,
    serving,
    until,
    wait_until,
)

MEBIBYTE = 1024 * 1024
EVENTS = {"Accept": "text/event-stream"}


async def run(session: aiohttp.ClientSession, command: str, **more: Any) -> dict[str, Any]:
    """Runs a command and gives the whole answer."""
    async with session.post("/exec", json={"command": command, **more}) as response:
        assert response.status == 200, await response.text()
        assert response.content_type == "application/json"
        return dict(await response.json())


async def output(session: aiohttp.ClientSession, command: str, **more: Any) -> str:
    """Runs a command that must succeed and gives what it printed."""
    result = await run(session, command, **more)
    assert result["exit_code"] == 0, result
    return str(result["stdout"])


async def events(session: aiohttp.ClientSession, command: str, **more: Any) -> list[Any]:
    """Runs a command and gives its events as pairs of name and data."""
    body = {"command": command, **more}
    async with session.post("/exec", json=body, headers=EVENTS) as response:
        assert (response.status, response.content_type) == (200, "text/event-stream")
        return parsed(await response.read())


def parsed(stream: bytes) -> list[tuple[str, Any]]:
    *blocks, rest = stream.decode().split("\n\n")
    assert rest == ""
    pairs = (block.split("\n") for block in blocks)
    return [
        (name.removeprefix("event: "), json.loads(data.removeprefix("data: ")))
        for name, data in pairs
    ]


def exec_request(command: str, *fields: str, **more: Any) -> bytes:
    return post("/exec", json.dumps({"command": command, **more}).encode(), *fields)


async def test_answer_has_exactly_these_fields(session: aiohttp.ClientSession) -> None:
    assert await run(session, "printf out; printf error >&2; exit 7") == {
        "exit_code": 7,
        "timed_out": False,
        "oom_killed": False,
        "stdout_truncated": False,
        "stderr_truncated": False,
        "stdout_bytes": 3,
        "stderr_bytes": 5,
        "stdout": "out",
        "stderr": "error",
    }


async def test_signal_is_a_negative_exit_code(session: aiohttp.ClientSession) -> None:
    assert (await run(session, "kill -SEGV $$"))["exit_code"] == -signal.SIGSEGV


async def test_standard_input_is_empty(session: aiohttp.ClientSession) -> None:
    assert await output(session, "wc -c") == "0\n"


async def test_command_leads_a_session_of_its_own(session: aiohttp.ClientSession) -> None:
    pid, group, sid = (await output(session, "cut -d' ' -f1,5,6 /proc/$$/stat")).split()
    assert pid == group == sid


async def test_memory_is_taken_from_commands_before_the_runtime(
    session: aiohttp.ClientSession,
) -> None:
    for _ in range(20):
        # From its first moment: what it forks at once has the same score.
        assert await output(session, "(cat /proc/self/oom_score_adj)") == "500\n"
    # A command may be quicker than the runtime, which has the score while it starts one.
    own = 'while [ "$(cat /proc/$PPID/oom_score_adj)" != 0 ]; do :; done'
    assert (await run(session, own, timeout=10))["timed_out"] is False


async def test_command_has_three_descriptors(session: aiohttp.ClientSession) -> None:
    # The fourth is the directory that ls itself reads.
    assert await output(session, "ls /proc/self/fd") == "0\n1\n2\n3\n"


async def test_both_pipes_flooded_at_once_are_read_to_the_end(
    session: aiohttp.ClientSession,
) -> None:
    flood = "head -c 10000000 /dev/zero | tr '\\0' {} {}"
    command = f"{flood.format('o', '')} & {flood.format('e', '>&2')}; wait"
    result = await run(session, command)
    assert result["stdout"] == "o" * 10_000_000
    assert result["stderr"] == "e" * 10_000_000


async def test_output_beyond_the_cap_is_counted_and_dropped(
    session: aiohttp.ClientSession,
) -> None:
    command = "head -c 3000000 /dev/zero | tr '\\0' o; printf 12345 >&2"
    result = await run(session, command, max_output=1000)
    assert result == {
        "exit_code": 0,
        "timed_out": False,
        "oom_killed": False,
        "stdout_truncated": True,
        "stderr_truncated": False,
        "stdout_bytes": 3_000_000,
        "stderr_bytes": 5,
        "stdout": "o" * 1000,
        "stderr": "12345",
    }


async def test_output_of_exactly_the_cap_is_not_truncated(
    session: aiohttp.ClientSession,
) -> None:
    result = await run(session, "printf 12345", max_output=5)
    assert (result["stdout"], result["stdout_truncated"]) == ("12345", False)


async def test_cap_of_nothing_keeps_nothing(session: aiohttp.ClientSession) -> None:
    result = await run(session, "printf 12345", max_output=0)
    assert (result["stdout"], result["stdout_bytes"], result["stdout_truncated"]) == ("", 5, True)


async def test_cap_inside_a_character_drops_the_character(
    session: aiohttp.ClientSession,
) -> None:
    result = await run(session, "printf 'aé'", max_output=2)
    assert (result["stdout"], result["stdout_truncated"]) == ("a", True)


def test_cap_of_the_runtime_holds_where_a_call_says_nothing(tmp_path: Path) -> None:
    with serving(tmp_path, {"AGENTIX_MAX_OUTPUT": "4"}) as small:
        answer = small.exchange(exec_request("printf 12345"))
    result = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert (result["stdout"], result["stdout_truncated"]) == ("1234", True)


async def test_characters_split_over_reads_survive(session: aiohttp.ClientSession) -> None:
    command = r"printf '\342'; sleep 0.05; printf '\202'; sleep 0.05; printf '\254'"
    assert await output(session, command) == "€"
    texts = [data["text"] for name, data in await events(session, command) if name == "stdout"]
    assert texts == ["€"]


async def test_bytes_that_are_not_utf8_are_replaced(session: aiohttp.ClientSession) -> None:
    assert await output(session, r"printf 'a\377b\342'") == "a\ufffdb\ufffd"


async def test_timeout_keeps_partial_output(session: aiohttp.ClientSession) -> None:
    result = await run(session, "echo before; exec sleep 1000", timeout=0.2)
    assert (result["stdout"], result["timed_out"]) == ("before\n", True)
    assert result["exit_code"] == -signal.SIGTERM


async def test_timeout_leaves_time_to_clean_up(session: aiohttp.ClientSession) -> None:
    command = "trap 'echo cleaned; exit 5' TERM; echo on; while :; do sleep 0.01; done"
    result = await run(session, command, timeout=0.3)
    assert (result["exit_code"], result["stdout"]) == (5, "on\ncleaned\n")


async def test_timeout_kills_grandchildren(session: aiohttp.ClientSession, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    command = f"sh -c 'sleep 1000 & echo $! > {pids}; wait' & wait"
    assert (await run(session, command, timeout=0.5))["timed_out"]
    wait_until(lambda: not is_alive(int(pids.read_text())))


async def test_timeout_kills_another_process_group_of_the_session(
    session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    # Job control puts each background job into a process group of its own.
    command = f"set -m; sleep 1000 >/dev/null 2>&1 & echo $! > {pids}; wait"
    assert (await run(session, command, timeout=0.5))["timed_out"]
    wait_until(lambda: not is_alive(int(pids.read_text())))


async def test_timeout_kills_what_ignores_sigterm(
    session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    command = f"trap '' TERM; sleep 1000 & echo $! > {pids}; echo on; wait"
    result = await run(session, command, timeout=0.2)
    assert (result["exit_code"], result["stdout"]) == (-signal.SIGKILL, "on\n")
    wait_until(lambda: not is_alive(int(pids.read_text())))


async def test_timeout_does_not_wait_for_a_daemon_that_holds_the_pipe(
    session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    # A session of its own takes a process out of the command's.
    command = f"setsid sh -c 'echo $$ > {pids}; exec sleep 1000' & echo on; wait; sleep 1000"
    with anyio.fail_after(10):
        result = await run(session, command, timeout=0.5)
    assert (result["stdout"], result["timed_out"]) == ("on\n", True)
    pid = int(pids.read_text())
    assert is_alive(pid)
    os.kill(pid, signal.SIGKILL)


async def test_background_child_that_holds_the_pipe_does_not_hang_the_call(
    session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    with anyio.fail_after(5):
        assert await output(session, f"sleep 1000 & echo $! > {pids}; echo done") == "done\n"
    pid = int(pids.read_text())
    assert is_alive(pid)
    os.kill(pid, signal.SIGKILL)


async def test_background_child_may_go_on_writing(
    session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    finished = tmp_path / "finished"
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    command = f"(read line < {gate}; head -c 1000000 /dev/zero; touch {finished}) & echo on"
    assert await output(session, command) == "on\n"
    await anyio.to_thread.run_sync(gate.write_text, "go\n")
    await until(finished.exists)


async def test_events_come_in_order_and_end_with_one_exit(
    session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    gates = [tmp_path / name for name in "ab"]
    for gate in gates:
        os.mkfifo(gate)
    command = f"echo 1; cat {gates[0]} >&2; cat {gates[1]}; exit 3"
    body = {"command": command}
    async with session.post("/exec", json=body, headers=EVENTS) as response:
        first = await response.content.readuntil(b"\n\n")
        assert first == b'event: stdout\ndata: {"text":"1\\n"}\n\n'
        await anyio.to_thread.run_sync(gates[0].write_text, "2\n")
        second = await response.content.readuntil(b"\n\n")
        assert second == b'event: stderr\ndata: {"text":"2\\n"}\n\n'
        await anyio.to_thread.run_sync(gates[1].write_text, "3\n")
        rest = parsed(await response.content.read())
    exit_event = {
        "exit_code": 3,
        "timed_out": False,
        "oom_killed": False,
        "stdout_truncated": False,
        "stderr_truncated": False,
        "stdout_bytes": 4,
        "stderr_bytes": 2,
    }
    assert rest == [("stdout", {"text": "3\n"}), ("exit", exit_event)]


async def test_events_of_a_silent_command_are_its_exit(session: aiohttp.ClientSession) -> None:
    assert [name for name, _ in await events(session, "true")] == ["exit"]


async def test_events_of_a_timeout_end_with_its_exit(session: aiohttp.ClientSession) -> None:
    first, last = await events(session, "echo on; exec sleep 1000", timeout=0.2)
    assert first == ("stdout", {"text": "on\n"})
    assert (last[0], last[1]["timed_out"]) == ("exit", True)


async def test_events_keep_to_the_cap_of_the_call(session: aiohttp.ClientSession) -> None:
    (_, text), (_, ended) = await events(session, "printf 12345", max_output=2)
    assert (text, ended["stdout_truncated"], ended["stdout_bytes"]) == ({"text": "12"}, True, 5)


@pytest.mark.parametrize("fields", [(), ("Accept: text/event-stream",)], ids=["json", "events"])
@pytest.mark.parametrize("trap", ["", "trap '' TERM; "], ids=["mild", "ignoring"])
async def test_gone_client_ends_its_command(
    server: Server, tmp_path: Path, fields: tuple[str, ...], trap: str
) -> None:
    pids = tmp_path / "pids"
    with server.connect() as connection:
        command = f"{trap}sleep 1000 & echo $! $$ > {pids}.new; mv {pids}.new {pids}; wait"
        connection.sendall(exec_request(command, *fields))
        await until(pids.exists)
    for pid in pids.read_text().split():
        await until(lambda pid=pid: not is_alive(int(pid)))  # type: ignore[misc]


async def test_slow_reader_stalls_the_command_and_gets_all_of_it(
    server: Server, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    written = tmp_path / "written"
    await run(session, "true")
    before = server.resident_bytes()
    total = 40 * MEBIBYTE
    command = f"head -c {total} /dev/zero | tr '\\0' @; touch {written}"
    with server.connect() as connection:
        connection.sendall(exec_request(command, "Accept: text/event-stream"))
        head = await anyio.to_thread.run_sync(receive_until, connection, b"@@@")
        for _ in range(20):
            assert await output(session, "echo meanwhile") == "meanwhile\n"
        assert not written.exists()
        assert server.resident_bytes() - before < 16 * MEBIBYTE
        content = head + await anyio.to_thread.run_sync(received, connection)
    assert content.count(b"@") == total
    assert written.exists()


async def test_timeout_ends_a_command_that_waits_for_its_slow_reader(
    server: Server, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    command = f"echo $$ > {pids}; exec yes"
    with server.connect() as connection:
        connection.sendall(exec_request(command, "Accept: text/event-stream", timeout=0.5))
        pieces = [await anyio.to_thread.run_sync(receive_until, connection, b"event: stdout")]
        pid = int(pids.read_text())
        # Nobody reads until the runtime has done with the command.
        await until(lambda: process_fields(pid) is None)
        pieces.append(await anyio.to_thread.run_sync(received, connection))
    content = b"".join(pieces)
    assert content.count(b"event: exit") == 1
    assert b'"exit_code":-15,"timed_out":true' in content


async def test_last_output_reaches_a_reader_that_was_slow(
    server: Server, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    # More than all buffers on the way take, so that the end of it waits in the pipe.
    command = f"echo $$ > {pids}; head -c 20000000 /dev/zero | tr '\\0' @; echo the last words"
    with server.connect() as connection:
        connection.sendall(exec_request(command, "Accept: text/event-stream"))
        pieces = [await anyio.to_thread.run_sync(receive_until, connection, b"@@@")]
        pid = int(pids.read_text())
        while is_alive(pid):
            pieces.append(await anyio.to_thread.run_sync(connection.recv, 65536))
            await run(session, "true")
        # The runtime has done with the command while nobody read its events.
        await until(lambda: process_fields(pid) is None)
        pieces.append(await anyio.to_thread.run_sync(received, connection))
    content = b"".join(pieces)
    assert content.count(b"@") == 20_000_000
    assert b"the last words" in content
    assert b'"stdout_bytes":20000015,' in content


async def test_background_writer_outlives_the_events_of_its_command(
    session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    names = [name for name, _ in await events(session, f"yes & echo $! > {pids}")]
    assert (names.count("exit"), names[-1]) == (1, "exit")
    pid = int(pids.read_text())
    assert is_alive(pid)
    os.kill(pid, signal.SIGKILL)


HOSTILE = {
    "LD_LIBRARY_PATH": "/hostile",
    "LD_PRELOAD": "/hostile.so",
    "PYTHONPATH": "/hostile",
    "PYTHONHOME": sys.base_prefix,
    "LOCALE_ARCHIVE": "/hostile",
    "FONTCONFIG_FILE": "/hostile",
    "FONTCONFIG_PATH": "/hostile",
    "SSL_CERT_FILE": "/hostile",
    "NIX_PATH": "/hostile",
    "NIX_SSL_CERT_FILE": "/hostile",
    "AGENTIX_ANYTHING": "hostile",
}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A runtime whose task image has hostile variables and a PATH of its own."""
    root = tmp_path_factory.mktemp("image")
    tools = root / "tools"
    tools.mkdir()
    (tools / "own-tool").write_text("#!/bin/sh\necho own-tool of the image\n")
    (tools / "both").write_text("#!/bin/sh\necho both of the image\n")

    def mount_two(mounts: Path) -> None:
        mount_probe(mounts)
        entry = mount(mounts, "c2", manifest_of("second"), __init__="")
        (entry / "bin").mkdir()
        (entry / "bin" / "second-tool").write_text("#!/bin/sh\necho second-tool of second\n")
        (entry / "bin" / "both").write_text("#!/bin/sh\necho both of second\n")
        for file in (*(entry / "bin").iterdir(), *tools.iterdir()):
            file.chmod(0o755)

    path = f"{tools}:/usr/local/bin:/usr/bin:/bin"
    environ = {"PATH": path, "KEPT": "kept", **HOSTILE}
    with serving(root / "server", environ, prepare=mount_two, token="secret") as running:
        yield running


@pytest.fixture
async def in_image(image: Server) -> Any:
    async with image.session(Authorization="Bearer secret") as client:
        yield client


async def environment(session: aiohttp.ClientSession, **more: Any) -> dict[str, str]:
    text = await output(session, "env -0", **more)
    return dict(item.split("=", 1) for item in text.rstrip("\0").split("\0"))


async def test_hostile_variables_are_stripped(in_image: aiohttp.ClientSession) -> None:
    found = await environment(in_image)
    assert found["KEPT"] == "kept"
    assert HOSTILE.keys() & found.keys() == set()
    assert [name for name in found if name.startswith("AGENTIX_")] == []


async def test_variables_of_the_call_go_on_top(in_image: aiohttp.ClientSession) -> None:
    found = await environment(in_image, env={"KEPT": "changed", "PYTHONPATH": "/mine"})
    assert (found["KEPT"], found["PYTHONPATH"]) == ("changed", "/mine")


async def test_token_and_its_path_reach_no_command(
    image: Server, in_image: aiohttp.ClientSession
) -> None:
    assert not [
        value
        for value in (await environment(in_image)).values()
        if "secret" in value or value == f"{image.root}/token"
    ]


async def test_token_and_its_path_reach_no_child_of_an_impl(
    image: Server, in_image: aiohttp.ClientSession
) -> None:
    found = (await remote(in_image, "environment", "env"))["value"]
    assert found["KEPT"] == "kept"
    assert "AGENTIX_TOKEN_FILE" not in found
    assert "secret" not in "".join(found.values())


async def test_path_is_the_task_images(in_image: aiohttp.ClientSession, image: Server) -> None:
    path = (await environment(in_image))["PATH"]
    assert path == f"{image.root.parent}/tools:/usr/local/bin:/usr/bin:/bin"
    assert await output(in_image, "own-tool") == "own-tool of the image\n"


async def test_programs_of_a_namespace_need_to_be_asked_for(
    in_image: aiohttp.ClientSession,
) -> None:
    assert (await run(in_image, "probe-tool"))["exit_code"] == 127


async def test_programs_of_a_namespace_go_first_on_path(
    in_image: aiohttp.ClientSession, image: Server
) -> None:
    chosen = {"paths_from": ["agentix_namespaces.second"]}
    path = (await environment(in_image, **chosen))["PATH"]
    assert path.split(":")[0] == f"{image.mounts}/c2/entry/bin"
    assert await output(in_image, "both", **chosen) == "both of second\n"
    assert await output(in_image, "both") == "both of the image\n"


async def test_programs_of_several_namespaces_go_in_the_given_order(
    in_image: aiohttp.ClientSession, image: Server
) -> None:
    packages = ["agentix_namespaces.second", PROBE_PACKAGE]
    path = (await environment(in_image, paths_from=packages))["PATH"]
    wanted = [f"{image.mounts}/{name}/entry/bin" for name in ("c2", "c1")]
    assert path.split(":")[:2] == wanted


async def test_star_means_every_namespace(in_image: aiohttp.ClientSession) -> None:
    command = "probe-tool; second-tool; own-tool"
    wanted = "probe-tool of probe\nsecond-tool of second\nown-tool of the image\n"
    assert await output(in_image, command, paths_from=["*"]) == wanted


async def test_path_defaults_where_the_task_image_has_none(tmp_path: Path) -> None:
    with serving(tmp_path, drop=("PATH",)) as bare:
        async with bare.session() as session:
            assert (await environment(session))["PATH"] == "/usr/local/bin:/usr/bin:/bin"


async def test_path_of_the_call_replaces_the_task_images(
    in_image: aiohttp.ClientSession,
) -> None:
    assert (await environment(in_image, env={"PATH": "/bin"}))["PATH"] == "/bin"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can run commands as somebody else")
async def test_user_of_the_task_image_runs_commands_and_owns_uploads(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o755)
    with serving(tmp_path, {"AGENTIX_EXEC_USER": "65534:12345"}) as server:
        async with server.session() as session:
            assert await output(session, "id -u; id -g; id -G") == "65534\n12345\n12345\n"
            result = await run(session, "echo secret > /proc/$PPID/mem", cwd="/")
            assert result["exit_code"] != 0
            data = aiohttp.FormData({"path": "a/b"})
            data.add_field("file", b"content", filename="b")
            form = data()
            kind = {"Content-Type": form.headers["Content-Type"]}
            async with session.post("/upload", data=form, headers=kind) as response:
                assert response.status == 200
    for path in (server.workspace, server.workspace / "a", server.workspace / "a" / "b"):
        assert (path.stat().st_uid, path.stat().st_gid) == (65534, 12345)


async def test_directory_of_a_command(session: aiohttp.ClientSession, tmp_path: Path) -> None:
    assert await output(session, "pwd", cwd=str(tmp_path)) == f"{tmp_path}\n"


async def test_directory_is_the_sandboxs_own_by_default(
    session: aiohttp.ClientSession, server: Server
) -> None:
    assert await output(session, "pwd") == f"{server.root}\n"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "command: Field required"),
        ({"command": ""}, "command: String should have at least 1 character"),
        ({"command": 1}, "command: Input should be a valid string"),
        ({"command": "a\0b"}, "a command and its directory cannot hold NUL"),
        ({"command": "a", "cwd": "a\0b"}, "a command and its directory cannot hold NUL"),
        (
            {"command": "a", "cwd": "/absent"},
            "the command cannot be started: [Errno 2] No such file or directory: '/absent'",
        ),
        (
            {"command": "a", "cwd": "/dev/null"},
            "the command cannot be started: [Errno 20] Not a directory: '/dev/null'",
        ),
        (
            {"command": "a", "env": {"a": "b\0"}},
            "'a' cannot be set in an environment",
        ),
        (
            {"command": "a", "env": {"a=b": "c"}},
            "'a=b' cannot be set in an environment",
        ),
        ({"command": "a", "env": {"a": 1}}, "env.a: Input should be a valid string"),
        ({"command": "a", "timeout": 0}, "timeout: Input should be greater than 0"),
        ({"command": "a", "timeout": "1"}, "timeout: Input should be a valid number"),
        (
            {"command": "a", "max_output": -1},
            "max_output: Input should be greater than or equal to 0",
        ),
        (
            {"command": "a", "paths_from": ["agentix_namespaces.absent"]},
            "paths_from: no namespace agentix_namespaces.absent is mounted",
        ),
        ({"command": "a", "shell": True}, "shell: Extra inputs are not permitted"),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("headers", [{}, EVENTS], ids=["json", "events"])
async def test_refused_command_is_400(
    session: aiohttp.ClientSession, body: dict[str, Any], reason: str, headers: dict[str, str]
) -> None:
    async with session.post("/exec", json=body, headers=headers) as response:
        assert (response.status, response.content_type) == (400, "application/json")
        assert await response.json() == {"error": reason}


async def test_command_too_long_for_the_kernel_is_400(session: aiohttp.ClientSession) -> None:
    body = io.BytesIO(json.dumps({"command": "#" * MEBIBYTE}).encode())
    async with session.post("/exec", data=body) as response:
        assert (response.status, response.content_type) == (400, "application/json")
        assert "Argument list too long" in (await response.json())["error"]


async def test_many_commands_leave_nothing_behind(
    server: Server, session: aiohttp.ClientSession
) -> None:
    limit = anyio.CapacityLimiter(16)

    async def one(number: int) -> None:
        async with limit:
            if number % 2:
                assert [name for name, _ in await events(session, "exit 1")] == ["exit"]
            else:
                assert await output(session, f"echo {number}") == f"{number}\n"

    async def many(total: int) -> None:
        async with anyio.create_task_group() as group:
            for number in range(total):
                group.start_soon(one, number)

    async def state() -> tuple[int, int]:
        return await count_tasks(session), server.descriptors()

    await many(32)  # opens the client's connections, which stay
    before = await state()
    await many(200)

    async def same() -> bool:
        return await state() == before

    await eventually(same)
    assert server.children() == []


async def test_double_forks_leave_no_child_of_the_runtime(
    server: Server, session: aiohttp.ClientSession
) -> None:
    command = "for i in $(seq 200); do (sleep 0.01 &); done"
    assert await output(session, command) == ""
    assert server.children() == []


async def test_gone_clients_leave_no_descriptors(
    server: Server, session: aiohttp.ClientSession
) -> None:
    await run(session, "true")
    tasks, descriptors = await count_tasks(session), server.descriptors()
    for _ in range(5):
        with server.connect() as connection:
            request = exec_request("yes", "Accept: text/event-stream")
            connection.sendall(request)
            await anyio.to_thread.run_sync(receive_until, connection, b"y")

    async def settled() -> bool:
        return await count_tasks(session) <= tasks and server.descriptors() <= descriptors

    await eventually(settled)
    assert server.children() == []
