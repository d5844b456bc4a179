"""The Agentix client: call functions inside a sandbox as if they were local."""

from agentix.client.client import RuntimeClient
from agentix.client.stream import Stream
from agentix.wire import ExecExit, ExecOutput, ExecResult

__all__ = ["ExecExit", "ExecOutput", "ExecResult", "RuntimeClient", "Stream"]
