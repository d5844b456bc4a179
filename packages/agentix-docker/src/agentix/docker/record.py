"""What a deployment remembers of each of its sandboxes."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from agentix.deployment import Sandbox, SandboxInfo
from agentix.docker.lease import hold_lease

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
    lease: asyncio.Task[None] | None = None
    """What keeps it alive."""

    def hold(self, sandbox: Sandbox, lease: float) -> None:
        """Notes that its runtime accepts calls, and keeps it alive from now on."""
        self.ready = True
        if not self.ended.is_set():
            self.lease = asyncio.create_task(hold_lease(sandbox, lease))

    def end(self, exit_code: int | None) -> None:
        """Notes that its processes have ended."""
        if exit_code is not None:
            self.exit_code = exit_code
        self.ended.set()
        if self.lease is not None:
            self.lease.cancel()

    async def wait_ended(self, timeout: float) -> None:
        """Waits until its processes have ended, for `timeout` seconds at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self.ended.wait()

    async def drop_lease(self) -> None:
        """Lets go of what keeps it alive."""
        if self.lease is not None:
            self.lease.cancel()
            await asyncio.wait([self.lease])

    def info(self) -> SandboxInfo:
        """Describes it to the deployment's user."""
        if self.ended.is_set():
            return SandboxInfo(self.id, self.image, "exited", self.created_at, self.exit_code)
        return SandboxInfo(
            self.id, self.image, "running" if self.ready else "starting", self.created_at
        )
