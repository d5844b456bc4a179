"""A small operating system for agents: a program sees a tree of mounted services, and no more."""

from agentix.oanix.environment import OanixEnv
from agentix.oanix.fs.device import DeviceFs
from agentix.oanix.fs.fixed import MapFs, TarFs
from agentix.oanix.fs.function import Function, FunctionFs
from agentix.oanix.fs.host import WorkspaceFs
from agentix.oanix.fs.memory import MemFs
from agentix.oanix.fs.overlay import Change, CowFs
from agentix.oanix.fs.quota import Quota
from agentix.oanix.machine import Machine
from agentix.oanix.namespace import Namespace, NamespaceBuilder, NamespaceSpec
from agentix.oanix.node import OpenFlags
from agentix.oanix.run import RunConfig, RunResult
from agentix.oanix.service import FileService
from agentix.oanix.services.logs import LogEvent, LogsFs
from agentix.oanix.services.pty import PtyFs
from agentix.oanix.services.task import TaskFs, TaskMeta, TaskSpec
from agentix.oanix.services.trajectory import Trajectory
from agentix.oanix.stop import Cancellation, Reason
from agentix.oanix.trace import Trace
from agentix.oanix.wasi.stream import StreamPipe

__all__ = [
    "Cancellation",
    "Change",
    "CowFs",
    "DeviceFs",
    "FileService",
    "Function",
    "FunctionFs",
    "LogEvent",
    "LogsFs",
    "Machine",
    "MapFs",
    "MemFs",
    "Namespace",
    "NamespaceBuilder",
    "NamespaceSpec",
    "OanixEnv",
    "OpenFlags",
    "PtyFs",
    "Quota",
    "Reason",
    "RunConfig",
    "RunResult",
    "StreamPipe",
    "TarFs",
    "TaskFs",
    "TaskMeta",
    "TaskSpec",
    "Trace",
    "Trajectory",
    "WorkspaceFs",
]
