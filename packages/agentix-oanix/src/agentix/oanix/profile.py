"""Namespaces that environments commonly have."""

import os

from agentix.oanix.fs.device import DeviceFs
from agentix.oanix.fs.host import WorkspaceFs
from agentix.oanix.fs.memory import MemFs
from agentix.oanix.fs.overlay import CowFs
from agentix.oanix.namespace import Namespace, NamespaceBuilder
from agentix.oanix.services.logs import LogsFs
from agentix.oanix.services.task import TaskFs, TaskSpec

__all__ = ["minimal", "sandbox_dev", "terminalbench"]


def minimal() -> NamespaceBuilder:
    """Start a namespace with memory at `/tmp` and devices at `/dev`."""
    return Namespace.builder().mount("/tmp", MemFs()).mount("/dev", DeviceFs())  # noqa: S108


def terminalbench(task: TaskSpec | TaskFs, workspace: str | os.PathLike[str]) -> NamespaceBuilder:
    """Start a namespace for a task to be judged: what it changes stays in memory.

    Args:
        task: What is to be done, at `/task`.
        workspace: The directory of the host whose files are at `/workspace`.
    """
    service = task if isinstance(task, TaskFs) else TaskFs(task)
    builder = minimal().mount("/task", service).mount("/logs", LogsFs())
    return builder.mount("/workspace", CowFs(WorkspaceFs(workspace)))


def sandbox_dev(workspace: str | os.PathLike[str]) -> NamespaceBuilder:
    """Start a namespace for development: a directory of the host can be written at `/workspace`.

    Args:
        workspace: The directory of the host.
    """
    return minimal().mount("/logs", LogsFs()).mount("/workspace", WorkspaceFs(workspace))
