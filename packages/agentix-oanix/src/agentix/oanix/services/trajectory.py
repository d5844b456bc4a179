"""Trajectory: the runs of an environment as an ATIF document (Agent Trajectory Format, v1.8)."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from agentix.oanix.run import RunResult
from agentix.oanix.services.logs import LogsFs

__all__ = ["Trajectory"]

SCHEMA = "ATIF-v1.8"


class Trajectory:
    """Messages and runs, collected as the steps of a trajectory.

    A run is a step of the agent without a call of a language model, so what it used stands in the
    step's `extra` and not in its `metrics`.

    ```python
    from agentix.oanix import LogsFs, Machine, Namespace, Trajectory

    trajectory, logs = Trajectory("my-agent", "1.0"), LogsFs()
    trajectory.message("user", "Do nothing.")
    program = b'(module (func (export "_start")))'
    trajectory.run(["program"], Machine().run(program, Namespace()))
    trajectory.save(logs)
    assert logs.readdir("/atif")[0].name == "trajectory.json"
    ```

    Args:
        agent: The agent's name.
        version: The agent's version.
        session_id: Names the session that the trajectory is of.
    """

    def __init__(self, agent: str, version: str, session_id: str | None = None) -> None:
        self._agent = {"name": agent, "version": version}
        self._session_id = session_id
        self._steps: list[dict[str, Any]] = []

    def message(self, source: Literal["system", "user"], text: str) -> None:
        """Add what the system or a user said."""
        self._add(source, text)

    def run(self, arguments: Sequence[str], result: RunResult) -> None:
        """Add a run of a program: its arguments, its output and what it used."""
        observed = (result.stdout + result.stderr).decode(errors="replace")
        used = {
            "exit_code": result.exit_code,
            "reason": str(result.reason),
            "fuel": result.fuel,
            "wall_seconds": result.wall_time,
            "host_calls": result.host_calls,
            "files_written": list(result.files_written),
        }
        text = f"{' '.join(arguments)}: {result.reason}, exit code {result.exit_code}"
        self._call("run_wasi", {"arguments": list(arguments)}, observed, text, used)

    def call(
        self, name: str, arguments: Mapping[str, Any], observed: str, extra: Mapping[str, Any]
    ) -> None:
        """Add a call of a tool: its name, its arguments, and what was seen of it."""
        self._call(name, arguments, observed, name, extra)

    def _call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        observed: str,
        text: str,
        extra: Mapping[str, Any],
    ) -> None:
        call_id = f"call-{len(self._steps) + 1}"
        call = {"tool_call_id": call_id, "function_name": name, "arguments": dict(arguments)}
        self._add(
            "agent",
            text,
            llm_call_count=0,
            tool_calls=[call],
            observation={"results": [{"source_call_id": call_id, "content": observed}]},
            extra=dict(extra),
        )

    @property
    def steps(self) -> int:
        """The number of steps."""
        return len(self._steps)

    def to_json(self) -> dict[str, Any]:
        """Return the document.

        Raises:
            ValueError: There is no step yet; a trajectory has at least one.
        """
        if not self._steps:
            raise ValueError("a trajectory has at least one step")
        document = {"schema_version": SCHEMA, "agent": self._agent, "steps": self._steps}
        if self._session_id is not None:
            document["session_id"] = self._session_id
        return document | {"final_metrics": {"total_steps": len(self._steps)}}

    def save(self, logs: LogsFs, name: str = "trajectory.json") -> None:
        """Write the document below `/logs/atif/`."""
        logs.trajectories.write(f"/{name}", json.dumps(self.to_json()).encode())

    def _add(self, source: str, text: str, **more: Any) -> None:
        step = {
            "step_id": len(self._steps) + 1,
            "timestamp": datetime.now(UTC).isoformat(),
            "source": source,
            "message": text,
        }
        self._steps.append(step | more)
