"""Preview1: all 46 functions, with those that work on no file and those that wait."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from agentix.oanix import determinism
from agentix.oanix.errors import Code, FsError
from agentix.oanix.node import Handle
from agentix.oanix.wasi import abi
from agentix.oanix.wasi.abi import Rights
from agentix.oanix.wasi.files import FileCalls
from agentix.oanix.wasi.paths import PathCalls
from agentix.oanix.wasi.process import WasiProcess

__all__ = ["Preview1"]

REALTIME, MONOTONIC, PROCESS_CPU, THREAD_CPU = 0, 1, 2, 3
RANDOM_PIECE = 1 << 16
CLOCK, READ, WRITE = 0, 1, 2
ABSOLUTE = 1
MAX_SUBSCRIPTIONS = 4096


class SystemCalls(WasiProcess):
    """Functions that work on no file.

    They return 0 or raise `FsError` with the number that the program gets.
    """

    def args_get(self, pointers: int, buffer: int) -> int:
        """Write the arguments."""
        return self._put_strings(self.arguments(), pointers, buffer)

    def args_sizes_get(self, count: int, size: int) -> int:
        """Return the number of the arguments, and their bytes with the zero after each."""
        return self._put_sizes(self.arguments(), count, size)

    def environ_get(self, pointers: int, buffer: int) -> int:
        """Write the environment."""
        return self._put_strings(self.environment(), pointers, buffer)

    def environ_sizes_get(self, count: int, size: int) -> int:
        """Return the number of the variables, and their bytes with the zero after each."""
        return self._put_sizes(self.environment(), count, size)

    def _put_strings(self, strings: Sequence[bytes], pointers: int, buffer: int) -> int:
        if pointers + 4 * len(strings) > self.size:
            self.reach(pointers + 4 * len(strings))
        for index, string in enumerate(strings):
            self.span(buffer, len(string) + 1)[:] = string + b"\0"
            abi.U32.pack_into(self.memory, pointers + 4 * index, buffer)
            buffer += len(string) + 1
        return 0

    def _put_sizes(self, strings: Sequence[bytes], count: int, size: int) -> int:
        self.reach(max(count, size) + 4)
        abi.U32.pack_into(self.memory, count, len(strings))
        abi.U32.pack_into(self.memory, size, sum(map(len, strings)) + len(strings))
        return 0

    def clock_res_get(self, clock_id: int, out: int) -> int:
        """Return a clock's resolution in nanoseconds."""
        if clock_id > THREAD_CPU:
            raise FsError(f"there is no clock {clock_id}", Code.INVAL)
        virtual = self.virtual is not None
        self.put_u64(out, determinism.VirtualClock.STEP if virtual else 1)
        return 0

    def clock_time_get(self, clock_id: int, precision: int, out: int) -> int:
        """Return a clock's time in nanoseconds."""
        now = self.time(clock_id)
        if out + 8 > self.size:
            self.reach(out + 8)
        abi.U64.pack_into(self.memory, out, now)
        return 0

    def time(self, clock_id: int) -> int:
        """Return a clock's time in nanoseconds; those of the processor count from the start."""
        virtual = self.virtual
        if clock_id == REALTIME:
            return time.time_ns() if virtual is None else virtual.realtime()
        if clock_id > THREAD_CPU:
            raise FsError(f"there is no clock {clock_id}", Code.INVAL)
        if virtual is not None:
            return virtual.monotonic()
        return time.monotonic_ns() - self.started

    def random_get(self, buffer: int, length: int) -> int:
        """Write random bytes."""
        target = self.span(buffer, length)
        for start in range(0, length, RANDOM_PIECE):
            piece = target[start : start + RANDOM_PIECE]
            piece[:] = self.random(len(piece))
        return 0

    def sched_yield(self) -> int:
        """Let others run; there is nobody else in the program."""
        return 0

    def proc_exit(self, code: int) -> int:
        """End the run with a code; it is passed on as it is, so far as it fits a byte."""
        self.exit(code)
        return 0

    def proc_raise(self, signal: int) -> int:
        """End the run as the signal would, with 128 and its number."""
        self.exit(128 + (signal & 127))
        return 0

    def sock_accept(self, fd: int, flags: int, out: int) -> int:
        """Refuse: no file here is a socket."""
        return self._no_socket(fd)

    def sock_recv(
        self, fd: int, data: int, count: int, flags: int, out: int, out_flags: int
    ) -> int:
        """Refuse: no file here is a socket."""
        return self._no_socket(fd)

    def sock_send(self, fd: int, data: int, count: int, flags: int, out: int) -> int:
        """Refuse: no file here is a socket."""
        return self._no_socket(fd)

    def sock_shutdown(self, fd: int, how: int) -> int:
        """Refuse: no file here is a socket."""
        return self._no_socket(fd)

    def _no_socket(self, fd: int) -> int:
        self.descriptor(fd)
        raise FsError(f"{fd} is not a socket", Code.NOTSOCK)


@dataclass(slots=True)
class PollSubscription:
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
        """Wait until at least one of several things happens, and return which did."""
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

    def _subscription(self, source: memoryview, start: int) -> PollSubscription:
        userdata, tag, subject, timeout, _, flags = abi.SUBSCRIPTION.unpack_from(source, start)
        wanted = PollSubscription(userdata, tag, subject)
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

    def _happened(self, waiting: list[PollSubscription]) -> list[PollSubscription]:
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

    def _put_event(self, address: int, happened: PollSubscription) -> None:
        available = 0
        if happened.handle is not None and not happened.error and happened.tag == READ:
            available = max(0, happened.handle.size() - self.files[happened.subject].position)
        abi.EVENT.pack_into(
            self.memory, address, happened.userdata, happened.error, happened.tag, available, 0
        )


class Preview1(FileCalls, PathCalls, PollCalls):
    """The functions by the names that programs import, with the state that they work on."""
