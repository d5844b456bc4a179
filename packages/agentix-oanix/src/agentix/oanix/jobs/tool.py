"""Tools: functions that jobs call by name, with a namespace as their tree of files."""

import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from agentix.oanix.errors import JobError
from agentix.oanix.machine import Machine
from agentix.oanix.namespace import Namespace
from agentix.oanix.stop import Cancellation

__all__ = ["ENTRY_POINTS", "Tool", "ToolCall", "ToolRegistry"]

ENTRY_POINTS = "agentix.oanix.tools"
"""The group of entry points by which distributions offer tools."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """What a tool is called with."""

    namespace: Namespace
    """The tree of files that the tool works on."""
    args: Sequence[str]
    """Arguments as words."""
    input: Any
    """Arguments as JSON."""
    environment: Mapping[str, str]
    """Environment variables of the job."""
    working_dir: str
    """Where relative paths start."""
    machine: Machine
    """Runs WASI programs, with the namespace or another one."""
    cancellation: Cancellation
    """Tells when the call is to end; a tool that takes long looks at it."""
    stdout: Callable[[bytes], None]
    """Adds to the job's standard output."""
    stderr: Callable[[bytes], None]
    """Adds to the job's standard error."""

    def path(self, text: str) -> str:
        """Gives a path of the namespace, from the root."""
        return posixpath.normpath(posixpath.join("/", self.working_dir, text))


Tool = Callable[[ToolCall], Any]
"""Does something, and gives back what has a JSON form; an exception fails the job."""


class ToolRegistry:
    """Tools by their names: those given here, and those that installed distributions offer.

    A distribution offers a tool by an entry point of the group `agentix.oanix.tools`, which is
    imported when it is first called.

    Args:
        tools: Tools that are here already; they come before entry points of the same name.
    """

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self._tools = dict(tools)

    def names(self) -> Sequence[str]:
        """Lists the names of the tools."""
        return sorted({*self._tools, *entry_points(group=ENTRY_POINTS).names})

    def get(self, name: str) -> Tool:
        """Gives a tool.

        Raises:
            JobError: There is none of this name, or it can not be imported.
        """
        if name not in self._tools:
            self._tools[name] = self._load(name)
        return self._tools[name]

    def _load(self, name: str) -> Tool:
        for point in entry_points(group=ENTRY_POINTS, name=name):
            try:
                found = point.load()
            except Exception as error:  # whatever a module of others does when it is imported
                raise JobError(f"the tool {name} can not be imported: {error!r}") from error
            if not callable(found):
                raise JobError(f"the tool {name} is no function: {point.value}")
            tool: Tool = found
            return tool
        raise JobError(f"there is no tool {name!r}; there are {', '.join(self.names())}")
