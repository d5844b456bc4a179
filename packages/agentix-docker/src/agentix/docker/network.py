"""The bridge of sandboxes: one network for an engine, on which they do not reach each other."""

import logging

from agentix.docker.engine import Engine, NetworkDetails
from agentix.docker.labels import ROLE, network_labels
from agentix.errors import DeploymentError

__all__ = ["NETWORK", "SandboxNetwork"]

logger = logging.getLogger(__name__)

NETWORK = "agentix"
"""Its name."""

ICC = "com.docker.network.bridge.enable_icc"
"""The option that lets its containers reach each other."""

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
            DeploymentError: It cannot be made, or its name is that of another network.
        """
        if await self._found() is None:
            try:
                await self._engine.create_network(NETWORK, _description())
            except DeploymentError:
                if await self._found() is None:
                    raise
        return NETWORK

    async def remove_unused(self) -> None:
        """Remove the network unless a sandbox is on it."""
        try:
            network = await self._found()
            if network is not None:
                await self._engine.remove_network(network.id)
        except DeploymentError as error:
            logger.debug("the network %s stays: %s", NETWORK, error)

    async def _found(self) -> NetworkDetails | None:
        """Look the network up.

        Raises:
            DeploymentError: Its name is that of a network on which sandboxes would not be isolated.
        """
        found = await self._engine.network(NETWORK)
        if found is None or (found.labels.get(ROLE), found.options.get(ICC)) == (
            "network",
            "false",
        ):
            return found
        raise DeploymentError(
            f"network {NETWORK} is not the one that isolates sandboxes: remove or rename it,"
            " or give sandboxes network='none'"
        )


def _description() -> dict[str, object]:
    return {
        "Driver": "bridge",
        "CheckDuplicate": True,
        "Labels": network_labels(),
        "Options": {
            ICC: "false",
            "com.docker.network.bridge.name": BRIDGE,
        },
    }
