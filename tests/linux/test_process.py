"""What a process asks of the kernel for itself, seen from processes that ask it."""

import resource
import subprocess
import sys

import pytest

LIMITS = """
import resource
from agentix.linux.process import raise_descriptor_limit
print(raise_descriptor_limit(most=1000), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""

DUMPABLE = """
import ctypes, os, subprocess, sys
from agentix.linux.process import forbid_inspection
def dumpable():
    return ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)  # PR_GET_DUMPABLE
before = dumpable()
forbid_inspection()
executed = subprocess.run(
    [sys.executable, "-c", "import ctypes; print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"],
    capture_output=True, text=True,
)
child = os.fork()
if child == 0:
    os._exit(dumpable())
_, status = os.waitpid(child, 0)
print(before, dumpable(), executed.stdout.strip(), os.waitstatus_to_exitcode(status))
"""


def output_of(program: str, limits: tuple[int, int] | None = None, *arguments: str) -> list[str]:
    def limit() -> None:
        if limits is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    command = [sys.executable, "-c", program, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, preexec_fn=limit)
    return ended.stdout.split()


@pytest.mark.parametrize(
    ("soft", "hard", "told", "then"),
    [
        (100, 500, "100", 500),
        (500, 500, "None", 500),
        (256, 2000, "256", 1000),
        (1500, 2000, "None", 1500),
    ],
)
def test_descriptors_are_raised_to_the_hard_limit_within_reason(
    soft: int, hard: int, told: str, then: int
) -> None:
    assert output_of(LIMITS, (soft, hard)) == [told, str(then), str(hard)]


def test_what_is_executed_can_be_inspected_again_and_what_is_forked_cannot() -> None:
    assert output_of(DUMPABLE) == ["1", "0", "1", "0"]


INHERITED = """
import os, resource, subprocess, sys
from agentix.linux.process import inherited_descriptor_limit
held = [os.dup(0) for _ in range(int(sys.argv[1]))]
with inherited_descriptor_limit(200) as lowered:
    seen = subprocess.run(["sh", "-c", "ulimit -Sn"], capture_output=True, text=True, check=True)
print(lowered, seen.stdout.strip(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("held", "lowered", "inherited"),
    [(0, "True", "200"), (100, "True", "200"), (150, "False", "400"), (300, "False", "400")],
)
def test_lower_limit_is_inherited_unless_too_much_is_open(
    held: int, lowered: str, inherited: str
) -> None:
    told = output_of(INHERITED, (400, 500), str(held))
    assert told == [lowered, inherited, "400", "500"]
