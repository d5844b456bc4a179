"""Trajectories, as the format's own package reads them."""

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


def test_a_trajectory_has_a_step() -> None:
    with pytest.raises(ValueError, match="at least one step"):
        Trajectory("counter", "1.0").to_json()
