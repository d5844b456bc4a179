"""The examples in the docstrings of exported classes, run as they stand."""

import inspect
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentix import oanix
from agentix.oanix import jobs
from agentix.oanix.jobs.store import lock_holder
from tests.oanix.job_processes import make_cache_home, wait_until

CLASSES = [
    found
    for module in (oanix, jobs)
    for found in (getattr(module, name) for name in module.__all__)
    if inspect.isclass(found)
]


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory of an example; a manager that it starts does not outlive it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(make_cache_home()))
    yield tmp_path
    lock = tmp_path / "queue" / "manager.lock"
    pid = lock_holder(lock)
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: lock_holder(lock) is None)


@pytest.mark.parametrize("documented", CLASSES, ids=lambda found: found.__name__)
@pytest.mark.usefixtures("directory")
def test_the_example_of_an_exported_class_runs(documented: type) -> None:
    text = inspect.getdoc(documented) or ""
    (example,) = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    exec(compile(example, f"the example of {documented.__name__}", "exec"), {})
