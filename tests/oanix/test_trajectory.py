"""Trajectories, as the format's own package reads them."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import atif
import pytest

from agentix.oanix import LogsFs, Namespace
from agentix.oanix.services.trajectory import Trajectory
from tests.oanix.conftest import Run


def test_a40_the_validator_accepts_a_trajectory(run: Run) -> None:
    logs = LogsFs()
    namespace = Namespace.builder().mount("/logs", logs).build()
    trajectory = Trajectory("counter", "1.0", session_id="s1")
    trajectory.message("user", "show what you see")
    trajectory.run(("files", "list", "/logs"), run("list", "/logs", namespace=namespace))
    trajectory.run(("files", "abort"), run("abort", namespace=namespace))
    trajectory.save(logs)
    read = atif.Trajectory.model_validate_json(namespace.read("/logs/atif/trajectory.json"))
    assert [step.source for step in read.steps] == ["user", "agent", "agent"]
    assert read.steps[2].extra is not None
    assert read.steps[2].extra["exit_code"] == 134
    assert read.steps[1].observation is not None
    content = read.steps[1].observation.results[0].content
    assert isinstance(content, str)
    assert "events.jsonl 0" in content


@pytest.mark.skipif(
    importlib.util.find_spec("harbor") is None,
    reason="harbor, whose validator reads the trajectory, needs Python 3.12 and is not installed",
)
def test_a40_harbors_validator_accepts_a_trajectory(run: Run, tmp_path: Path) -> None:
    logs = LogsFs()
    trajectory = Trajectory("counter", "1.0", session_id="s1")
    trajectory.message("user", "show what you see")
    trajectory.run(("files", "show"), run("show"))
    trajectory.save(logs)
    (tmp_path / "trajectory.json").write_bytes(logs.trajectories.read("/trajectory.json"))
    command = [sys.executable, "-m", "harbor.utils.trajectory_validator", "trajectory.json"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_trajectory_has_a_step() -> None:
    with pytest.raises(ValueError, match="at least one step"):
        Trajectory("counter", "1.0").to_json()
