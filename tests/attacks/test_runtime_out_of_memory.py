"""Commands that want more memory than there is: they end, they say why, and the runtime goes on."""

import json
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentix.local.launcher import KEPT_CAPABILITIES
from tests.linux.memory_group import memory_group
from tests.runtime.serving import Server, post, serving

PROGRAMS = Path(__file__).parent / "programs"
ENTER = """
import os, sys
with open(sys.argv[1], "w") as group:
    group.write("0")
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Enters a control group and executes the rest."""

SANDBOX_BYTES = 150_000_000
HOG = f"{shlex.quote(sys.executable)} -c \"b'x' * 300_000_000\""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A runtime in a sandbox of little memory."""
    root = tmp_path_factory.mktemp("small")
    with memory_group(SANDBOX_BYTES) as group:
        through = (sys.executable, "-c", ENTER, f"{group}/cgroup.procs")
        with serving(root, unix=True, through=through) as server:
            yield server


def result_of(server: Server, command: str, **more: Any) -> dict[str, Any]:
    body = json.dumps({"command": command, **more}).encode()
    answer = server.exchange(post("/exec", body))
    result: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
    return result


@pytest.mark.parametrize(
    ("command", "exit_code", "oom_killed"),
    [
        (f"exec {HOG}", -9, True),
        (f"{HOG}; exit $?", 137, True),
        (f"{HOG} & wait $!; exit 0", 0, False),
        ("kill -9 $$", -9, False),
        ("exit 137", 137, False),
        ("true", 0, False),
    ],
    ids=["killed", "its child was killed", "it took no notice", "by itself", "exit", "success"],
)
def test_command_says_whether_memory_was_its_end(
    small: Server, command: str, exit_code: int, oom_killed: bool
) -> None:
    result = result_of(small, command)
    assert (result["exit_code"], result["oom_killed"]) == (exit_code, oom_killed)


def test_events_say_whether_memory_was_the_end(small: Server) -> None:
    body = json.dumps({"command": f"exec {HOG}"}).encode()
    answer = small.exchange(post("/exec", body, "Accept: text/event-stream"))
    assert b'data: {"exit_code":-9,"timed_out":false,"oom_killed":true,' in answer


def test_runtime_outlives_many_small_commands_that_fill_the_memory(small: Server) -> None:
    """Each of them holds less than the runtime: the score says who goes first."""
    code = "import signal; held = b'x' * 5_000_000; signal.pause()"
    hold = f"{shlex.quote(sys.executable)} -c {shlex.quote(code)}"
    command = f"for each in $(seq 40); do {hold} & done; wait"
    result = result_of(small, command, timeout=3)
    assert (result["timed_out"], result["oom_killed"]) == (True, True)
    assert small.process.poll() is None


SCORES = """
sh -c 'cat /proc/self/oom_score_adj'
sh -c 'cat /proc/self/oom_score_adj' &
wait
setsid cat /proc/self/oom_score_adj
"""


def test_commands_without_privileges_are_offered_to_the_kernel_first(tmp_path: Path) -> None:
    """As in a sandbox: root without CAP_SYS_RESOURCE starts the commands of another user."""
    if os.geteuid() != 0:
        pytest.skip("only root can run commands as somebody else")
    tmp_path.chmod(0o755)
    kept = ",".join(map(str, KEPT_CAPABILITIES))
    through = (sys.executable, str(PROGRAMS / "capped.py"), kept)
    own = int(Path("/proc/self/oom_score_adj").read_text())
    with serving(tmp_path, {"AGENTIX_EXEC_USER": "65534"}, unix=True, through=through) as server:
        result = result_of(server, f"id -u; {SCORES}")
        runtime = Path(f"/proc/{server.process.pid}/oom_score_adj").read_text()
    assert result["stdout"].split() == ["65534", *[str(min(own + 500, 1000))] * 3]
    assert int(runtime) == own
