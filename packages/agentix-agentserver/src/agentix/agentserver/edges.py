"""The edges of an organism: the models, functions and other organisms that its listeners call."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from agentix.agentserver.llm.endpoint import Endpoint, read_key
from agentix.agentserver.llm.peer import ModelPeer

if TYPE_CHECKING:
    from agentix.agentserver.organism import Organism

__all__ = ["open_edges"]


@asynccontextmanager
async def open_edges(organism: "Organism") -> AsyncIterator[None]:
    """Adds to an organism that has not started what `organism.yaml` names beside its listeners.

    Raises:
        LLMError: The key of a model is not where the file says.
    """
    async with AsyncExitStack() as resources:
        for spec in organism.spec.llm:
            endpoint = Endpoint(spec, read_key(spec, organism.directory))
            await resources.enter_async_context(endpoint)
            organism.add_trusted(ModelPeer(endpoint, organism).listener())
        yield
