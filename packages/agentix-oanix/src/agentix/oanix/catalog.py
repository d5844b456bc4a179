"""The services that a namespace's specification can name."""

from collections.abc import Mapping

from agentix.oanix.fs.device import DeviceFs
from agentix.oanix.fs.fixed import MapFs
from agentix.oanix.fs.memory import MemFs
from agentix.oanix.service import FileService

__all__ = ["SERVICES"]

SERVICES: Mapping[str, type[FileService]] = {
    service.kind: service for service in (DeviceFs, MapFs, MemFs)
}
"""Classes of services by the `kind` of their specification."""
