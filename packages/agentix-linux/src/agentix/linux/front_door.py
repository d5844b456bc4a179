"""The front door of a listener: whoever connects is admitted in time, or has to leave.

    accept ──► silent ──► waiting ──► admitted, for as long as it likes
                 │  says something │
                 └─────────────────┴──► turned away: too late, or the oldest of too many

A connection costs a descriptor from its first moment and memory once it is served, and anybody may
open one. So each `Visitor` has a deadline until its server calls `admit`, TLS handshake and first
request included; the server does so for the right token, say. As long as it says nothing it costs
little, and nothing serves it. Those that have said something are bounded, of each address and in
all; one more makes the oldest leave. Strangers therefore keep nobody out who shows a token at once,
and a burst of such callers waits its turn. Connections in all are bounded by the limit on
descriptors, of which some are kept back for files and commands.

The door knows nothing of what is spoken behind it, but that the peer speaks first.
"""

import asyncio
import logging
import resource
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from ipaddress import IPv6Address, IPv6Network
from itertools import chain
from ssl import SSLContext

__all__ = ["DoorLimits", "FrontDoor", "Visitor", "connection_limit"]

logger = logging.getLogger(__name__)

BATCH = 16
"""Connections accepted, and begun to be served, in one turn of the event loop.

Others have their turns too, and one whose request is there is admitted some turns later, long
before it is the oldest of as many as may wait.
"""

SILENT_PATIENCE = 1.0
WAITING_PATIENCE = 0.1
"""Seconds that a visitor has in any case before a new one takes its place for want of room."""

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
    silent: int = 4096
    """Connections that have said nothing yet."""
    waiting: int = 512
    """Connections that have, and wait to be admitted."""
    waiting_per_address: int = 256
    """How many of them may come from one address."""
    connections: int = field(default_factory=connection_limit)
    """Connections in all; further ones wait in the kernel."""


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
        self._task: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._since = asyncio.get_running_loop().time()

    def admit(self) -> None:
        """Let it stay."""
        if not self.admitted:
            self.admitted = True
            self._on_admission(self)

    def _says_something(self) -> bool | None:
        """Return whether there is something to read: `None` for the end of the connection."""
        assert self._connection is not None
        try:
            return bool(self._connection.recv(1, socket.MSG_PEEK)) or None
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return None

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

    def _abort(self) -> None:
        """Close the connection at once, whatever the task that serves it does."""
        if self._transport is not None:
            self._transport.abort()
        elif self._task is not None:
            self._task.cancel()

    def _close(self) -> None:
        """Close the connection, which nobody serves."""
        if self._deadline is not None:
            self._deadline.cancel()
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
        self._inside: set[Visitor] = set()
        self._silent = Room()
        self._waiting = Room()
        self._speaking: list[Visitor] = []
        self._open = False
        self._accepting = False
        self._resumption: asyncio.TimerHandle | None = None
        self._turned_away = Tally("turned away %d connection(s) that nobody admitted: %s")
        self._refused = Tally("accept(2) failed %d time(s): %s")

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The tasks that serve connections now."""
        return [visitor._task for visitor in self._inside if visitor._task is not None]

    def open(self) -> None:
        """Begin to accept."""
        self._listener.setblocking(False)
        self._open = True
        self._resume()

    def close(self) -> None:
        """Accept no more, and let go of those that are not admitted; the others stay."""
        self._open = False
        self._pause()
        self._listener.close()
        for visitor in [*self._silent, *self._waiting]:
            self._dismiss(visitor)
        self._turned_away.close()
        self._refused.close()

    def abort(self) -> None:
        """Close every connection at once, also those whose peers do not read."""
        for visitor in self._inside:
            visitor._abort()

    def _resume(self) -> None:
        if self._open and not self._accepting:
            self._accepting = True
            self._loop.add_reader(self._listener, self._accept_batch)

    def _pause(self, seconds: float | None = None) -> None:
        """Accept nothing until somebody leaves, or until then."""
        if self._accepting:
            self._accepting = False
            self._loop.remove_reader(self._listener)
        if self._resumption is not None:
            self._resumption.cancel()
        if seconds is not None:
            self._resumption = self._loop.call_later(seconds, self._resume)

    def _accept_batch(self) -> None:
        for number in range(BATCH):
            # Only of the first is it known that it is there, so only for it another has to leave.
            if not self._has_room() and (number > 0 or not self._make_room()):
                return
            try:
                connection, name = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                self._refused.add(error.strerror or str(error))
                self._pause(PAUSE)
                return
            self._let_in(connection, name)

    def _has_room(self) -> bool:
        limits = self._limits
        return len(self._inside) < limits.connections and self._silent.total < limits.silent

    def _make_room(self) -> bool:
        """Turn a visitor away, the oldest of the most frequent address, or wait until one may be.

        Returns:
            Whether there is room now.
        """
        room = self._silent if self._silent.total else self._waiting
        if not room.total:
            self._pause()
            return False
        oldest = room.oldest(room.fullest())
        patience = SILENT_PATIENCE if room is self._silent else WAITING_PATIENCE
        left = oldest._since + patience - self._loop.time()
        if left > 0:
            self._pause(left)
            return False
        self._turn_away(oldest)
        return True

    def _let_in(self, connection: socket.socket, name: object) -> None:
        connection.setblocking(False)
        visitor = Visitor(connection, _address(connection, name), self._note_admission)
        visitor._deadline = self._loop.call_later(self._limits.deadline, self._turn_away, visitor)
        self._inside.add(visitor)
        self._silent.add(visitor)
        self._loop.add_reader(connection, self._listen_to, visitor)

    def _listen_to(self, visitor: Visitor) -> None:
        """Note that a visitor says something, or leaves."""
        speaks = visitor._says_something()
        if speaks is False:
            return
        assert visitor._connection is not None
        self._loop.remove_reader(visitor._connection)
        if speaks is None:
            self._dismiss(visitor)
            return
        if not self._speaking:
            self._loop.call_soon(self._begin_batch)
        self._speaking.append(visitor)

    def _begin_batch(self) -> None:
        """Begin to serve those who spoke last, so that nobody waits behind many strangers."""
        begun = 0
        while self._speaking and begun < BATCH:
            visitor = self._speaking.pop()
            if visitor in self._inside:
                self._begin(visitor)
                begun += 1
        if self._speaking:
            self._loop.call_soon(self._begin_batch)

    def _begin(self, visitor: Visitor) -> None:
        self._silent.remove(visitor)
        limits = self._limits
        if self._waiting.count(visitor.address) >= limits.waiting_per_address:
            self._turn_away(self._waiting.oldest(visitor.address))
        elif self._waiting.total >= limits.waiting:
            self._turn_away(self._waiting.oldest(self._waiting.fullest()))
        visitor._since = self._loop.time()
        self._waiting.add(visitor)
        visitor._task = self._loop.create_task(self._receive(visitor))
        visitor._task.add_done_callback(lambda task: self._note_end(visitor, task))
        self._resume()

    async def _receive(self, visitor: Visitor) -> None:
        try:
            await visitor._connect(self._context)
        except OSError:
            return  # a peer that does not speak TLS, or leaves
        await self._serve(visitor)

    def _note_admission(self, visitor: Visitor) -> None:
        self._waiting.remove(visitor)
        if visitor._deadline is not None:
            visitor._deadline.cancel()

    def _turn_away(self, visitor: Visitor) -> None:
        self._turned_away.add(visitor.address)
        self._dismiss(visitor)

    def _dismiss(self, visitor: Visitor) -> None:
        if visitor._task is not None:
            self._waiting.remove(visitor)
            visitor._abort()
            return
        assert visitor._connection is not None
        self._loop.remove_reader(visitor._connection)
        self._silent.remove(visitor)
        self._leave(visitor)

    def _note_end(self, visitor: Visitor, task: asyncio.Task[None]) -> None:
        self._waiting.remove(visitor)
        self._leave(visitor)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the server of a connection failed", exc_info=error)

    def _leave(self, visitor: Visitor) -> None:
        self._inside.discard(visitor)
        visitor._close()
        self._resume()


class Room:
    """Visitors by their addresses, the oldest first."""

    def __init__(self) -> None:
        self.total = 0
        """How many there are."""
        self._by_address: dict[str, dict[Visitor, None]] = {}

    def __iter__(self) -> Iterator[Visitor]:
        return chain.from_iterable(self._by_address.values())

    def add(self, visitor: Visitor) -> None:
        """Let a visitor in."""
        self._by_address.setdefault(visitor.address, {})[visitor] = None
        self.total += 1

    def remove(self, visitor: Visitor) -> None:
        """Let a visitor out, if it is there."""
        neighbours = self._by_address.get(visitor.address, {})
        if visitor not in neighbours:
            return
        del neighbours[visitor]
        self.total -= 1
        if not neighbours:
            del self._by_address[visitor.address]

    def count(self, address: str) -> int:
        """Return how many visitors of an address are there."""
        return len(self._by_address.get(address, ()))

    def fullest(self) -> str:
        """Return the address that most visitors have."""
        return max(self._by_address, key=self.count)

    def oldest(self, address: str) -> Visitor:
        """Return the visitor of an address that has been there longest."""
        return next(iter(self._by_address[address]))


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
