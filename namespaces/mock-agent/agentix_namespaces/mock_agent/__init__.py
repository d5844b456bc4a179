"""A stand-in for an agent, called like any other namespace."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

__all__ = ["RunResult", "Token", "chat", "run"]

__image__ = "agentix/mock-agent:0.1.0"


@dataclass
class RunResult:
    """What a run leaves behind."""

    exit_code: int
    """0 where the agent thinks that it succeeded."""
    patch: str
    """The change as a unified diff."""


@dataclass
class Token:
    """A piece of an answer."""

    text: str
    """Its text."""


def run(instruction: str, workdir: str = "/testbed") -> RunResult:
    """Runs against an instruction; gives a made-up patch that repeats it."""
    raise NotImplementedError("call via RuntimeClient.remote(mock_agent.run, ...)")


def chat(prompt: str) -> AsyncIterator[Token]:
    """Streams the words of a prompt back, one token each."""
    raise NotImplementedError("call via RuntimeClient.remote(mock_agent.chat, ...)")
