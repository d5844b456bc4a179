"""The checking process's end of a namespace's import, which happens in a child with a limit.

checking process ── pipe, held open ──► child, in a session of its own
                 ◄── ImportReport ────
"""

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Self

from agentix.namespace_sdk.check.importing.child import ImportReport, broken_import, slow_import
from agentix.namespace_sdk.check.tree import NamespacePackage

__all__ = ["TIME_LIMIT", "ImportingChild"]

TIME_LIMIT = 30.0
"""Seconds that importing, registering and the values of all types may take together."""


class ImportingChild:
    """The child process that imports a namespace, for the length of a `with` block.

    It ends with the block, with all that it started, and also where the checking process is killed.

    Args:
        python: The directory that holds `agentix_namespaces`.
        package: The import path of the namespace.
        time_limit: Seconds after which it is killed.
    """

    def __init__(self, python: Path, package: str, time_limit: float = TIME_LIMIT) -> None:
        self._arguments = [str(python), package]
        self._time_limit = time_limit
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__

    def __enter__(self) -> Self:
        # The kernel closes the writing end when this process ends, however it does.
        reading, self._lease = os.pipe()
        module = "agentix.namespace_sdk.check.importing.child"
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *self._arguments, str(reading)],
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

    def finish(self, package: NamespacePackage) -> ImportReport:
        """Wait for the child's report, as long as it may take."""
        in_time = True
        try:
            output, _ = self._process.communicate(timeout=self._time_limit)
        except subprocess.TimeoutExpired:
            self._kill()
            output, _ = self._process.communicate()
            in_time = False
        report = ImportReport()
        for line in output.splitlines():
            report.add_line(line)
        tree, init = package.tree, package.tree.show(package.stubs)
        report.findings = [replace(item, file=tree.show(item.file)) for item in report.findings]
        if not in_time:
            reason = f"importing and checking {package.name} took more than {self._time_limit:g} s"
            report.findings.append(slow_import.finding(init, reason))
        elif not report.findings and not report.done:
            reason = f"the interpreter ended with exit code {self._process.returncode}"
            report.findings.append(broken_import.finding(init, f"{reason}{self._last_words()}"))
        return report

    def _kill(self) -> None:
        """Kill the session of the child: what it started, too."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""
