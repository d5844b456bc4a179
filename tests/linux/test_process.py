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


def output_of(program: str, limits: tuple[int, int] | None = None) -> list[str]:
    def limit() -> None:
        if limits is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    command = [sys.executable, "-c", program]
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
