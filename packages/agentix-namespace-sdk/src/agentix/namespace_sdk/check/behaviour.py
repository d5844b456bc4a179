"""The rules that only importing a namespace can tell, asked in a child with a time limit."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Self

from agentix.namespace_sdk.check.finding import Finding
from agentix.namespace_sdk.check.tree import Tree

__all__ = ["Behaviour", "RunningProbe"]

TIME_LIMIT = 30.0
"""Seconds that importing, registering and the values of all types may take together."""


@dataclass
class Behaviour:
    """What the probe of a namespace answered."""

    findings: list[Finding] = field(default_factory=list)
    """What it found."""
    bound: list[str] | None = None
    """The functions that `register()` binds; `None` where it could not be asked."""


class RunningProbe:
    """The child process that imports a namespace, for the length of a `with` block.

    It ends with the block, with all that it started, and also where the checking process is killed.

    Args:
        python: The directory that holds `agentix_namespaces`.
        package: The import path of the namespace.
        time_limit: Seconds after which it is killed.
    """

    def __init__(self, python: Path, package: str, time_limit: float = TIME_LIMIT) -> None:
        self._words = [str(python), package]
        self._limit = time_limit
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__

    def __enter__(self) -> Self:
        # The kernel closes the writing end when this process ends, however it does.
        reading, self._lease = os.pipe()
        module = "agentix.namespace_sdk.check.probe"
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *self._words, str(reading)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            pass_fds=[reading],
            start_new_session=True,
        )
        os.close(reading)
        return self

    def __exit__(self, *exception: object) -> None:
        self._kill()
        self._process.communicate()
        os.close(self._lease)
        self._errors.close()

    def finish(self, tree: Tree, package: str) -> Behaviour:
        """Waits for the answers and turns them into findings."""
        in_time = True
        try:
            answers, _ = self._process.communicate(timeout=self._limit)
        except subprocess.TimeoutExpired:
            self._kill()
            answers, _ = self._process.communicate()
            in_time = False
        behaviour = _read(tree, answers)
        init = tree.package_directory(package) / "__init__.py"
        if not in_time:
            reason = f"importing and checking {package} took more than {self._limit:g} s"
            behaviour.findings.append(tree.finding("AGX406", init, reason))
        elif not behaviour.findings and b'"done"' not in answers:
            reason = f"the interpreter ended with exit code {self._process.returncode}"
            behaviour.findings.append(tree.finding("AGX401", init, f"{reason}{self._last_words()}"))
        return behaviour

    def _kill(self) -> None:
        """Ends the session of the child: what it started, too."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""


def _read(tree: Tree, answers: bytes) -> Behaviour:
    behaviour = Behaviour()
    for line in answers.splitlines():
        match json.loads(line):
            case {"bound": bound}:
                behaviour.bound = bound
            case {"code": code, "message": message, "file": file, "line": number}:
                behaviour.findings.append(tree.finding(code, file, message, number))
    return behaviour
