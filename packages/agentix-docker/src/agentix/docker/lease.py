"""Keeps a sandbox alive for as long as this process lives."""

import asyncio
import logging

from agentix.client import RuntimeClient
from agentix.deployment import Sandbox
from agentix.errors import AgentixError

__all__ = ["hold_lease"]

logger = logging.getLogger(__name__)

RETRIES_PER_LEASE = 10
"""How often a broken lease is taken up again before the runtime gives up."""


async def hold_lease(sandbox: Sandbox, lease: float) -> None:
    """Holds the lease of a sandbox until cancelled; one that breaks off is taken up again.

    Args:
        sandbox: A sandbox that is ready.
        lease: Seconds that the sandbox lives without a lease.
    """
    async with RuntimeClient(sandbox.runtime_url, token=sandbox.token) as client:
        while True:
            try:
                async with client.lease() as held:
                    await held.ended()
            except AgentixError as error:
                logger.debug("the lease of %s broke off: %s", sandbox.id, error)
            await asyncio.sleep(lease / RETRIES_PER_LEASE)
