"""Descriptors that forked children do not keep."""

import subprocess
import sys

import pytest

PROGRAM = """
import os, socket, sys
from agentix.linux.forks import closed_in_forks

def is_open_in_fork(end):
    stay, go = os.pipe()
    here, there = end
    if (fork := os.fork()) == 0:
        os.close(go)
        os.read(stay, 1)
        os._exit(0)
    there.close()
    here.settimeout(0.5)
    try:
        here.recv(1)  # returns nothing once the last who has the other end is gone
        return False
    except TimeoutError:
        return True
    finally:
        os.close(go)
        os.waitpid(fork, 0)

first, second, third = (socket.socketpair() for _ in range(3))
with closed_in_forks(first[1].fileno()), closed_in_forks(-1):
    print("during", is_open_in_fork(first))
with closed_in_forks(second[1].fileno()):
    pass
print("after", is_open_in_fork(second))
here, there = socket.socketpair()
with closed_in_forks(third[1].fileno()):
    number = third[1].detach()
    os.dup2(there.fileno(), number)
    there.close()
    print("number of another", is_open_in_fork((here, socket.socket(fileno=number))))
"""


@pytest.fixture(scope="module")
def kept() -> dict[str, str]:
    """Return what forks kept; they are made in a process that has no other threads."""
    command = [sys.executable, "-c", PROGRAM]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return dict(line.rsplit(" ", 1) for line in output.splitlines())


def test_fork_does_not_keep_what_is_closed_in_forks(kept: dict[str, str]) -> None:
    assert kept["during"] == "False"


def test_fork_keeps_what_is_no_longer_closed_in_forks(kept: dict[str, str]) -> None:
    assert kept["after"] == "True"


def test_fork_keeps_what_has_the_number_of_something_else_now(kept: dict[str, str]) -> None:
    assert kept["number of another"] == "True"
