"""The bridge of sandboxes: one network for an engine, on which they do not reach each other."""

import logging

from agentix.docker.engine import ConflictError, Engine, NotFoundError
from agentix.docker.labels import network_labels
from agentix.errors import DeploymentError

__all__ = ["NETWORK", "SandboxNetwork"]

logger = logging.getLogger(__name__)

NETWORK = "agentix"
"""Its name."""

BRIDGE = "agentix0"
"""The name of its interface. The engine gives one name to one network only, where of two networks
made at the same time by one name it may keep both."""


class SandboxNetwork:
    """The bridge of an engine's sandboxes, made for the first and removed with the last of them.

    One bridge serves them all, because a network for each would exhaust the engine's addresses
    after some thirty. Traffic between its containers is dropped (`enable_icc=false`).

    Args:
        engine: The engine.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def ensure(self) -> str:
        """Make the network where it is missing, and return its name.

        Raises:
            DeploymentError: It cannot be made.
        """
        if await self._engine.network_exists(NETWORK):
            return NETWORK
        try:
            await self._engine.create_network(NETWORK, _description())
        except DeploymentError:
            if not await self._engine.network_exists(NETWORK):
                raise
        return NETWORK

    async def remove_unused(self) -> None:
        """Remove the network unless a sandbox is on it."""
        try:
            await self._engine.remove_network(NETWORK)
        except (ConflictError, NotFoundError):
            return
        except DeploymentError as error:
            logger.debug("the network %s stays: %s", NETWORK, error)


def _description() -> dict[str, object]:
    return {
        "Driver": "bridge",
        "CheckDuplicate": True,
        "Labels": network_labels(),
        "Options": {
            "com.docker.network.bridge.enable_icc": "false",
            "com.docker.network.bridge.name": BRIDGE,
        },
    }
