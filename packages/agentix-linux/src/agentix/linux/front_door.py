"""The front door of a listener: whoever connects is admitted in time, or has to leave.

    accept ──► waiting, at most `deadline` seconds ──► admitted, for as long as it likes
                  │
                  └──► turned away: too late, or the oldest of too many

A connection costs a descriptor and memory from its first moment, and anybody may open one. So each
`Visitor` waits, TLS handshake and first request included, until its server calls `admit`, which it
does for the right token, say. Those that wait are bounded in time and in number, of each address
and of all; one more makes the oldest leave. Strangers therefore keep nobody out who shows a token
at once. Connections in all are bounded by the limit on descriptors, of which some are kept back for
files and commands.

The door knows nothing of what is spoken behind it.
"""

import asyncio
import logging
import resource
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from ipaddress import IPv6Address, IPv6Network
from ssl import SSLContext

__all__ = ["DoorLimits", "FrontDoor", "Visitor", "connection_limit"]

logger = logging.getLogger(__name__)

BATCH = 16
"""Connections accepted in one turn of the event loop, so that others have theirs."""

PAUSE = 0.2
"""Seconds without accepting once the kernel has no descriptor or no memory for a connection."""

LOG_INTERVAL = 60.0
"""Seconds between two lines about the same trouble."""

MOST_COUNTED = 1000
"""Addresses that are counted by themselves between two lines of the log."""

MOST_SHOWN = 8
"""Addresses that a line of the log names."""

LEAST_RESERVE = 64
"""Descriptors that are kept back in any case, unless hardly any connection would be left."""

LEAST_CONNECTIONS = 8

NETWORK_BITS = 64
"""An IPv6 host chooses the rest of its address freely (RFC 4291, 2.5.4)."""

PEER_CREDENTIALS = struct.Struct("3i")
"""`struct ucred`: process, user and group (unix(7))."""


def connection_limit() -> int:
    """Return how many connections this process may hold, the rest being kept for all else."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    reserve = max(LEAST_RESERVE, descriptors // 8)
    return max(LEAST_CONNECTIONS, descriptors - reserve)


@dataclass(frozen=True, slots=True)
class DoorLimits:
    """The bounds of one door."""

    deadline: float = 10.0
    """Seconds from being accepted to being admitted."""
    waiting: int = 512
    """Connections that may wait to be admitted."""
    waiting_per_address: int = 256
    """How many of them may come from one address."""
    connections: int = field(default_factory=connection_limit)
    """Connections in all; one more takes the place of one that waits, or waits in the kernel."""


class Visitor:
    """A connection from its being accepted to its end.

    Args:
        connection: The accepted socket.
        address: Who it is, as far as the kernel tells.
        on_admission: Called when it is admitted.
    """

    reader: asyncio.StreamReader
    """What it sends."""
    writer: asyncio.StreamWriter
    """Where answers go."""

    def __init__(
        self,
        connection: socket.socket,
        address: str,
        on_admission: Callable[["Visitor"], None],
    ) -> None:
        self.address = address
        """An IP address, the network of an IPv6 address, or the user of a Unix socket's peer."""
        self.admitted = False
        """Whether it may stay."""
        self._on_admission = on_admission
        self._connection: socket.socket | None = connection
        self._transport: asyncio.Transport | None = None

    def admit(self) -> None:
        """Let it stay."""
        if not self.admitted:
            self.admitted = True
            self._on_admission(self)

    async def _connect(self, context: SSLContext | None) -> None:
        """Make streams of the socket, once TLS is agreed on.

        Raises:
            OSError: The handshake failed.
        """
        loop = asyncio.get_running_loop()
        connection, self._connection = self._connection, None
        assert connection is not None
        self.reader = asyncio.StreamReader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(self.reader, loop=loop)
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection, ssl=context)
        self._transport = transport
        self.writer = asyncio.StreamWriter(transport, protocol, self.reader, loop)

    def _end(self, task: asyncio.Task[None]) -> None:
        """Close the connection at once, whatever the task that serves it does."""
        if self._transport is None:
            task.cancel()
        else:
            self._transport.abort()

    def _forget(self) -> None:
        """Close the connection, whose server has ended."""
        if self._connection is not None:
            self._connection.close()
        elif self._transport is not None and not self._transport.is_closing():
            self._transport.close()


class FrontDoor:
    """Accepts the connections of one listening socket.

    Args:
        listener: The socket, which is closed with the door.
        serve: Serves one visitor, in a task of its own, until its connection ends.
        limits: The bounds.
        context: The settings of TLS; connections are plain where it is `None`.
    """

    def __init__(
        self,
        listener: socket.socket,
        serve: Callable[[Visitor], Awaitable[None]],
        limits: DoorLimits | None = None,
        context: SSLContext | None = None,
    ) -> None:
        self._listener = listener
        self._serve = serve
        self._limits = limits or DoorLimits()
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._waiting = WaitingRoom()
        self._inside: set[Visitor] = set()
        self._tasks: dict[Visitor, asyncio.Task[None]] = {}
        self._open = False
        self._accepting = False
        self._turned_away = Tally("turned away %d connection(s) that nobody admitted: %s")
        self._refused = Tally("accept(2) failed %d time(s): %s")

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The tasks that serve connections now."""
        return list(self._tasks.values())

    def open(self) -> None:
        """Begin to accept."""
        self._listener.setblocking(False)
        self._open = True
        self._resume()

    def close(self) -> None:
        """Accept no more, and let go of those that wait; the admitted ones stay."""
        self._open = False
        self._pause()
        self._listener.close()
        for visitor in self._waiting.visitors():
            self._dismiss(visitor)
        self._turned_away.close()
        self._refused.close()

    def abort(self) -> None:
        """Close every connection at once, also those whose peers do not read."""
        for visitor, task in self._tasks.items():
            visitor._end(task)

    def _resume(self) -> None:
        if self._open and not self._accepting:
            self._accepting = True
            self._loop.add_reader(self._listener, self._accept_batch)

    def _pause(self) -> None:
        if self._accepting:
            self._accepting = False
            self._loop.remove_reader(self._listener)

    def _accept_batch(self) -> None:
        for _ in range(BATCH):
            if len(self._inside) >= self._limits.connections and not self._waiting.total:
                return self._pause()  # until one of them leaves
            try:
                connection, name = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return None
            except ConnectionAbortedError:
                continue
            except OSError as error:
                return self._pause_briefly(error)
            self._let_in(connection, name)
        return None

    def _pause_briefly(self, error: OSError) -> None:
        self._refused.add(error.strerror or str(error))
        self._pause()
        self._loop.call_later(PAUSE, self._resume)

    def _let_in(self, connection: socket.socket, name: object) -> None:
        connection.setblocking(False)
        address = _address(connection, name)
        self._make_room(address)
        visitor = Visitor(connection, address, self._waiting.remove)
        timer = self._loop.call_later(self._limits.deadline, self._turn_away, visitor)
        self._waiting.add(visitor, timer)
        self._inside.add(visitor)
        self._tasks[visitor] = task = self._loop.create_task(self._receive(visitor))
        task.add_done_callback(lambda task: self._note_end(visitor, task))

    def _make_room(self, address: str) -> None:
        if self._waiting.count(address) >= self._limits.waiting_per_address:
            self._turn_away(self._waiting.oldest(address))
        elif (
            self._waiting.total >= self._limits.waiting
            or len(self._inside) >= self._limits.connections
        ):
            self._turn_away(self._waiting.oldest(self._waiting.fullest()))

    async def _receive(self, visitor: Visitor) -> None:
        try:
            await visitor._connect(self._context)
        except OSError:
            return  # a peer that does not speak TLS, or leaves
        await self._serve(visitor)

    def _turn_away(self, visitor: Visitor) -> None:
        self._turned_away.add(visitor.address)
        self._dismiss(visitor)

    def _dismiss(self, visitor: Visitor) -> None:
        self._waiting.remove(visitor)
        self._inside.discard(visitor)
        visitor._end(self._tasks[visitor])

    def _note_end(self, visitor: Visitor, task: asyncio.Task[None]) -> None:
        del self._tasks[visitor]
        self._waiting.remove(visitor)
        self._inside.discard(visitor)
        visitor._forget()
        self._resume()
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the server of a connection failed", exc_info=error)


class WaitingRoom:
    """The visitors that are not admitted yet, by their addresses, the oldest first."""

    def __init__(self) -> None:
        self.total = 0
        """How many there are."""
        self._by_address: dict[str, dict[Visitor, asyncio.TimerHandle]] = {}

    def add(self, visitor: Visitor, timer: asyncio.TimerHandle) -> None:
        """Let a visitor wait until it is removed.

        Args:
            visitor: Who waits.
            timer: What ends its patience, to be cancelled then.
        """
        self._by_address.setdefault(visitor.address, {})[visitor] = timer
        self.total += 1

    def remove(self, visitor: Visitor) -> None:
        """Let a visitor wait no more, if it does."""
        neighbours = self._by_address.get(visitor.address, {})
        timer = neighbours.pop(visitor, None)
        if timer is None:
            return
        timer.cancel()
        self.total -= 1
        if not neighbours:
            del self._by_address[visitor.address]

    def count(self, address: str) -> int:
        """Return how many visitors of an address wait."""
        return len(self._by_address.get(address, ()))

    def fullest(self) -> str:
        """Return the address of which most visitors wait."""
        return max(self._by_address, key=self.count)

    def oldest(self, address: str) -> Visitor:
        """Return who of an address has waited longest."""
        return next(iter(self._by_address[address]))

    def visitors(self) -> list[Visitor]:
        """Return all who wait."""
        return [visitor for neighbours in self._by_address.values() for visitor in neighbours]


class Tally:
    """Counts what others make happen as often as they like, and logs it once a minute at most.

    Args:
        message: What is logged, with places for the sum and for the counts of each kind.
    """

    def __init__(self, message: str) -> None:
        self._message = message
        self._counts: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, kind: str) -> None:
        """Count one more; the first is logged at once."""
        if kind not in self._counts and len(self._counts) >= MOST_COUNTED:
            kind = "others"
        self._counts[kind] += 1
        if self._timer is None:
            self._report()

    def close(self) -> None:
        """Log what is not logged yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._report()
        if self._timer is not None:
            self._timer.cancel()

    def _report(self) -> None:
        self._timer = None
        if not self._counts:
            return
        shown = self._counts.most_common(MOST_SHOWN)
        parts = [f"{kind} ({count})" for kind, count in shown]
        if len(shown) < len(self._counts):
            parts.append("...")
        logger.warning(self._message, self._counts.total(), ", ".join(parts))
        self._counts.clear()
        self._timer = asyncio.get_running_loop().call_later(LOG_INTERVAL, self._report)


def _address(connection: socket.socket, name: object) -> str:
    """Return who is at the other end, so that one host or one user is counted as one."""
    match connection.family, name:
        case socket.AF_UNIX, _:
            size = PEER_CREDENTIALS.size
            peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
            return f"user {PEER_CREDENTIALS.unpack(peer)[1]}"
        case socket.AF_INET6, (str(host), *_):
            address = IPv6Address(host)
            if address.ipv4_mapped is not None:
                return str(address.ipv4_mapped)
            return str(IPv6Network((int(address), NETWORK_BITS), strict=False))
        case _, (str(host), *_):
            return host
    return "unknown"
