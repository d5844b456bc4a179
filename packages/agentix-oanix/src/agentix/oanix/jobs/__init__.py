"""Jobs: programs, scripts, tools and tasks that run from a queue, in processes of their own."""

from agentix.oanix.jobs.job import (
    AgentTool,
    Attempt,
    Cancelled,
    Completed,
    Failed,
    Job,
    JobKind,
    JobResult,
    JobSpec,
    JobStatus,
    Pending,
    Running,
    RunSummary,
    Script,
    TerminalBench,
    Wasi,
)
from agentix.oanix.jobs.manager import Manager
from agentix.oanix.jobs.queue import JobQueue, LogChunk
from agentix.oanix.jobs.store import JobDirectory, JobStore
from agentix.oanix.jobs.tools import Tool, ToolCall, ToolRegistry

__all__ = [
    "AgentTool",
    "Attempt",
    "Cancelled",
    "Completed",
    "Failed",
    "Job",
    "JobDirectory",
    "JobKind",
    "JobQueue",
    "JobResult",
    "JobSpec",
    "JobStatus",
    "JobStore",
    "LogChunk",
    "Manager",
    "Pending",
    "RunSummary",
    "Running",
    "Script",
    "TerminalBench",
    "Tool",
    "ToolCall",
    "ToolRegistry",
    "Wasi",
]
