"""The services that a namespace's specification can name."""

from collections.abc import Mapping

from agentix.oanix.fs.device import DeviceFs
from agentix.oanix.fs.fixed import MapFs
from agentix.oanix.fs.host import WorkspaceFs
from agentix.oanix.fs.memory import MemFs
from agentix.oanix.fs.tar import TarFs
from agentix.oanix.service import FileService
from agentix.oanix.services.logs import LogsFs
from agentix.oanix.services.task import TaskFs

__all__ = ["SERVICES"]

KINDS = (DeviceFs, LogsFs, MapFs, MemFs, TarFs, TaskFs, WorkspaceFs)

SERVICES: Mapping[str, type[FileService]] = {service.kind: service for service in KINDS}
"""Classes of services by the `kind` of their specification."""
