"""PollCalls: waiting for files and clocks (`poll_oneoff`)."""

import time
from dataclasses import dataclass

from agentix.oanix.errors import Code, FsError
from agentix.oanix.node import Handle
from agentix.oanix.wasi import abi
from agentix.oanix.wasi.abi import Rights
from agentix.oanix.wasi.system import SystemCalls

__all__ = ["PollCalls"]

CLOCK, READ, WRITE = 0, 1, 2
ABSOLUTE = 1
MAX_SUBSCRIPTIONS = 4096


@dataclass(slots=True)
class Subscription:
    """What a program waits for."""

    userdata: int
    """The program's own mark."""
    tag: int
    """CLOCK, READ or WRITE."""
    subject: int
    """The clock or the descriptor."""
    remaining: int = 0
    """Nanoseconds that a clock has to go."""
    handle: Handle | None = None
    """The file that is waited for; none for a clock, a directory or an error."""
    error: int = 0
    """The error number of this subscription alone."""


class PollCalls(SystemCalls):
    """The function that waits."""

    def poll_oneoff(self, subscriptions: int, events: int, count: int, out: int) -> int:
        """Waits until at least one of several things happens, and tells which did."""
        if count == 0 or count > MAX_SUBSCRIPTIONS:
            raise FsError(f"{count} subscriptions", Code.INVAL)
        self.span(events, 32 * count)
        self.reach(out + 4)
        source = self.span(subscriptions, 48 * count)
        waiting = [self._subscription(source, 48 * index) for index in range(count)]
        happened = self._happened(waiting)
        for index, subscription in enumerate(happened):
            self._put_event(events + 32 * index, subscription)
        self.put_u32(out, len(happened))
        return 0

    def _subscription(self, source: memoryview, start: int) -> Subscription:
        userdata, tag, subject, timeout, _, flags = abi.SUBSCRIPTION.unpack_from(source, start)
        wanted = Subscription(userdata, tag, subject)
        try:
            if tag == CLOCK:
                passed = self.time(subject)
                wanted.remaining = max(0, timeout - passed) if flags & ABSOLUTE else timeout
            elif tag in (READ, WRITE):
                right = Rights.FD_READ if tag == READ else Rights.FD_WRITE
                wanted.handle = self.data(subject, right)[1]
            else:
                raise FsError(f"no event of type {tag}", Code.INVAL)
        except FsError as error:
            wanted.error = error.code
        return wanted

    def _happened(self, waiting: list[Subscription]) -> list[Subscription]:
        ready = [s for s in waiting if s.error or (s.handle and s.handle.ready(s.tag == WRITE))]
        if ready:
            return ready
        clocks = [s.remaining for s in waiting if s.tag == CLOCK]
        handles = [(s.handle, s.tag == WRITE) for s in waiting if s.handle is not None]
        shortest = min(clocks, default=None)
        virtual = self.virtual
        if virtual is not None and shortest is not None:
            virtual.elapsed += shortest
        else:
            started = time.monotonic()
            self.wait(handles, None if shortest is None else started + shortest / 1e9)
        ready = [s for s in waiting if s.handle and s.handle.ready(s.tag == WRITE)]
        return ready or [s for s in waiting if s.tag == CLOCK and s.remaining == shortest]

    def _put_event(self, address: int, happened: Subscription) -> None:
        available = 0
        if happened.handle is not None and not happened.error and happened.tag == READ:
            available = max(0, happened.handle.size() - self.files[happened.subject].position)
        abi.EVENT.pack_into(
            self.memory, address, happened.userdata, happened.error, happened.tag, available, 0
        )
