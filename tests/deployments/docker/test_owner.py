"""Telling whether the process that owns a sandbox lives."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import subprocess, sys
from agentix.docker.owner import Owner

asking = "from agentix.docker.owner import Owner; print(Owner.parse({!r}).lives())"
for python in ([sys.executable], sys.argv[1:]):
    subprocess.run([*python, "-c", asking.format(str(Owner.current()))], check=True)
"""
HIDING = (
    *("unshare", "--mount", "--pid", "--fork", "--kill-child"),
    *("sh", "-c", 'mount -t proc -o hidepid=2 proc /proc && "$@"', "sh"),
)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a /proc that hides processes")
def test_owner_that_is_hidden_is_not_known_to_be_dead(ordinary_python: list[str]) -> None:
    command = [*HIDING, sys.executable, "-c", PROGRAM, *ordinary_python]
    finished = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    assert finished.stderr == ""
    assert finished.stdout.split() == ["True", "None"]
