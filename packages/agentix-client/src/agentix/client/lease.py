"""Lease: the sign that the owner of a sandbox is alive."""

from aiohttp import ClientResponse

from agentix.client.connection import Connection
from agentix.errors import SandboxGoneError

__all__ = ["Lease"]


class Lease:
    """A lease on a sandbox, held for as long as its connection stands.

    A runtime that is told to ends itself once nobody has held a lease for a while; a connection
    ends with its process, however that ends.
    """

    def __init__(self, connection: Connection, response: ClientResponse) -> None:
        self._connection = connection
        self._response = response

    async def ended(self) -> None:
        """Returns when the runtime has ended the lease or is gone; for one waiter at a time."""
        try:
            while await self._connection.read_some(self._response):
                pass
        except SandboxGoneError:
            return
