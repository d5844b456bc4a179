"""The edges of an organism: the models, functions and other organisms that its listeners call."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from agentix.agentserver.gateway.remote import RemoteOrganism
from agentix.agentserver.identity import Identity, IdentityError
from agentix.agentserver.llm.endpoint import Endpoint, read_key
from agentix.agentserver.llm.peer import ModelPeer
from agentix.agentserver.namespaces import Functions
from agentix.agentserver.spec import GatewaySpec, OrganismSpec
from agentix.agentserver.xml.limits import Limits

if TYPE_CHECKING:
    from agentix.agentserver.organism import Organism

__all__ = ["open_edges", "own_identity", "remote_organism"]


@asynccontextmanager
async def open_edges(organism: "Organism") -> AsyncIterator[None]:
    """Adds to an organism that has not started what `organism.yaml` names beside its listeners.

    Raises:
        LLMError: The key of a model is not where the file says.
        IdentityError: A key is missing or open to others.
        GatewayError: The certificates that should vouch for another organism can not be read.
        FunctionFailedError: The runtime can not be asked about its functions.
        RegistrationError: A function is not there, or has no XML form.
    """
    async with AsyncExitStack() as resources:
        for spec in organism.spec.llm:
            endpoint = Endpoint(spec, read_key(spec, organism.directory))
            await resources.enter_async_context(endpoint)
            organism.add_trusted(ModelPeer(endpoint, organism).listener())
        for gateway in organism.spec.gateways:
            if gateway.remote_url is not None:
                remote = await resources.enter_async_context(remote_organism(organism, gateway))
                organism.add_gateway(gateway, remote.listener())
        functions = sorted(_functions(organism.spec))
        if functions:
            most = organism.spec.limits.message_bytes
            runtime = Functions(organism.spec.runtime, organism.directory, most)
            await resources.enter_async_context(runtime)
            for listener in await runtime.listeners(functions):
                organism.add_trusted(listener)
        yield


def _functions(spec: OrganismSpec) -> set[str]:
    """Gives the functions of namespaces that are anybody's peers."""
    peers = {peer for listener in spec.listeners for peer in listener.peers}
    return {peer.removeprefix("ns:") for peer in peers if peer.startswith("ns:")}


def remote_organism(organism: "Organism", gateway: GatewaySpec) -> RemoteOrganism:
    """Makes the way to another organism.

    Raises:
        IdentityError: This organism has no identity, or the other one's is no key.
        GatewayError: The certificates that should vouch for the other one can not be read.
    """
    limits = Limits(size=organism.spec.limits.message_bytes)
    return RemoteOrganism(gateway, own_identity(organism), organism.directory, limits)


def own_identity(organism: "Organism") -> Identity:
    """Reads the organism's own key.

    Raises:
        IdentityError: It has none, or others may read it.
    """
    path = organism.spec.organism.identity
    if path is None:
        raise IdentityError("the organism has no identity: name its key in organism.identity")
    return Identity.load(organism.directory / path)
