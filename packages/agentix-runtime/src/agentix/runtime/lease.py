"""Leases: a sandbox whose owner is gone ends itself."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from agentix.runtime.http import wait_for_disconnect
from agentix.wire import NDJSON

__all__ = ["Lease", "LeaseEndpoint"]

logger = logging.getLogger(__name__)


class Lease:
    """Counts who holds the sandbox, and tells when nobody has for too long.

    The connection itself is the lease: the kernel closes it for an owner that dies, and keeps it
    for one that is merely busy.

    Args:
        seconds: How long nobody may hold it; `None` for any time.
        on_expired: Called when nobody has held it for so long.
    """

    def __init__(self, seconds: float | None, on_expired: Callable[[], None]) -> None:
        self.seconds = seconds
        self._on_expired = on_expired
        self._holders = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begins to wait for a holder."""
        if self.seconds is not None and self._holders == 0:
            self._timer = asyncio.get_running_loop().call_later(self.seconds, self._expire)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Holds the lease for the length of a `with` block."""
        self._holders += 1
        if self._timer is not None:
            self._timer.cancel()
        try:
            yield
        finally:
            self._holders -= 1
            self.start()

    def _expire(self) -> None:
        logger.warning("nobody has held the lease for %s s: ending", self.seconds)
        self._on_expired()


class LeaseEndpoint:
    """The ASGI application behind `GET /lease`: one line at once, then nothing until either leaves.

    Args:
        lease: What the connection holds.
    """

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request.

        Raises:
            HTTPException: Its method is not GET: the answer to HEAD would never end.
        """
        if scope["method"] != "GET":
            raise HTTPException(405, headers={"Allow": "GET"})
        headers = [(b"content-type", NDJSON.encode())]
        line = to_json({"seconds": self._lease.seconds}) + b"\n"
        with self._lease.held():
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": line, "more_body": True})
            await wait_for_disconnect(receive)
