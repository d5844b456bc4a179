"""A root task tries to read the runtime that started it: its token, its connections."""

import json
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentix.local.launcher import KEPT_CAPABILITIES
from tests.runtime.serving import Server, post, serving

PROGRAMS = Path(__file__).parent / "programs"
TOKEN = "the-secret-of-the-owner"

WILLING = """
import ctypes, os, sys
token = sys.stdin.readline().strip()
ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1).value, 0, 0, 0)  # PR_SET_PTRACER
print("ready", flush=True)
sys.stdin.readline()
"""
"""A process that keeps a secret as a runtime does, but does not forbid to be inspected."""

REFUSED = {
    "memory": "EACCES",
    "memory_without_a_map": "EACCES",
    "vectors": "EPERM",
    "environment": "EACCES",
    "descriptors": "EACCES",
    "one_descriptor": "EACCES",
    "stolen_descriptor": "EPERM",
    "trace": "EPERM",
}
ALLOWED = {
    "memory": "the secret",
    "memory_without_a_map": "an open file",
    "vectors": "memory",
    "environment": "True",
    "descriptors": "a name",
    "one_descriptor": "an open file",
    "stolen_descriptor": "a descriptor",
    "trace": "attached",
}


@pytest.fixture(scope="module")
def capped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A runtime of root, with the capabilities that it has in a sandbox."""
    if os.geteuid() != 0:
        pytest.skip("only root can give capabilities up and stay root")
    kept = ",".join(map(str, KEPT_CAPABILITIES))
    through = (sys.executable, str(PROGRAMS / "capped.py"), kept)
    root = tmp_path_factory.mktemp("capped")
    with serving(root, unix=True, token=TOKEN, through=through) as server:
        yield server


def output_of(server: Server, command: str) -> str:
    body = json.dumps({"command": command}).encode()
    answer = server.exchange(post("/exec", body, f"Authorization: Bearer {TOKEN}"))
    result = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert result["stderr"] == ""
    return str(result["stdout"])


ATTACK = f"{shlex.quote(sys.executable)} {PROGRAMS}/inspect_process.py"


def test_task_is_root_with_the_capabilities_of_a_sandbox(capped: Server) -> None:
    status = output_of(capped, "grep -E '^(Uid|CapEff):' /proc/self/status").split()
    wanted = sum(1 << number for number in KEPT_CAPABILITIES)
    assert (status[1], int(status[-1], 16)) == ("0", wanted)


def test_runtime_keeps_its_secrets_from_a_root_task(capped: Server) -> None:
    assert json.loads(output_of(capped, f"{ATTACK} $PPID {TOKEN}")) == REFUSED


def test_another_process_of_the_sandbox_does_not(capped: Server) -> None:
    """The attack works: it is the runtime that refuses."""
    willing = f"{shlex.quote(sys.executable)} -c {shlex.quote(WILLING)}"
    command = f"""
        mkfifo in out
        {willing} <in >out & pid=$!
        exec 3>in 4<out
        echo {TOKEN} >&3
        read -r ready <&4
        {ATTACK} $pid {TOKEN}
        exec 3>&-
    """
    assert json.loads(output_of(capped, command)) == ALLOWED
