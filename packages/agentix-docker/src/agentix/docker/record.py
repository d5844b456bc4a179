"""What a deployment remembers of each of its sandboxes."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from agentix.deployment import SandboxInfo
from agentix.linux.handoff import Handoff

__all__ = ["SandboxRecord"]


@dataclass(eq=False)
class SandboxRecord:
    """One sandbox, from before its container is made until it is deleted."""

    id: str
    """The sandbox's id, which is its container's name."""
    image: str
    """The reference of its task image."""
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    """When its making began."""
    ready: bool = False
    """Whether its runtime has accepted calls."""
    exit_code: int | None = None
    """Its exit code, where it has ended and the engine has told of it."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once its processes have ended."""
    url: str = ""
    """Where its runtime is reached, once it is ready."""
    token: str = field(default="", repr=False)
    """The token that calls must carry."""
    handoff: Handoff | None = None
    """What hands its runtime the listening socket, where it is reached over one."""

    def end(self, exit_code: int | None) -> None:
        """Note that its processes have ended."""
        if exit_code is not None:
            self.exit_code = exit_code
        self.ended.set()

    async def wait_ended(self, timeout: float) -> None:
        """Wait until its processes have ended, for `timeout` seconds at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self.ended.wait()

    def info(self, *, answers: bool = True) -> SandboxInfo:
        """Describe it to the deployment's user.

        Args:
            answers: Whether its runtime answers, where that was asked.
        """
        if self.ended.is_set():
            return SandboxInfo(self.id, self.image, "exited", self.created_at, self.exit_code)
        if not self.ready:
            return SandboxInfo(self.id, self.image, "starting", self.created_at)
        status: Literal["running", "unresponsive"] = "running" if answers else "unresponsive"
        return SandboxInfo(self.id, self.image, status, self.created_at)
