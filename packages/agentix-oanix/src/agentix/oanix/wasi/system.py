"""SystemCalls: arguments, environment, clocks, random bytes, the end, and sockets that are none."""

import time
from collections.abc import Sequence

from agentix.oanix import clock
from agentix.oanix.errors import Code, FsError
from agentix.oanix.wasi import abi
from agentix.oanix.wasi.process import Process

__all__ = ["REALTIME", "SystemCalls"]

REALTIME, MONOTONIC, PROCESS_CPU, THREAD_CPU = 0, 1, 2, 3
RANDOM_PIECE = 1 << 16


class SystemCalls(Process):
    """Functions that work on no file.

    They give 0 or raise `FsError` with the number that the program gets.
    """

    def args_get(self, pointers: int, buffer: int) -> int:
        """Writes the arguments."""
        return self._put_strings(self.arguments(), pointers, buffer)

    def args_sizes_get(self, count: int, size: int) -> int:
        """Gives the number of the arguments, and their bytes with the zero after each."""
        return self._put_sizes(self.arguments(), count, size)

    def environ_get(self, pointers: int, buffer: int) -> int:
        """Writes the environment."""
        return self._put_strings(self.environment(), pointers, buffer)

    def environ_sizes_get(self, count: int, size: int) -> int:
        """Gives the number of the variables, and their bytes with the zero after each."""
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
        """Gives a clock's resolution in nanoseconds."""
        if clock_id > THREAD_CPU:
            raise FsError(f"there is no clock {clock_id}", Code.INVAL)
        virtual = self.virtual is not None
        self.put_u64(out, clock.VirtualClock.STEP if virtual else 1)
        return 0

    def clock_time_get(self, clock_id: int, precision: int, out: int) -> int:
        """Gives a clock's time in nanoseconds."""
        now = self.time(clock_id)
        if out + 8 > self.size:
            self.reach(out + 8)
        abi.U64.pack_into(self.memory, out, now)
        return 0

    def time(self, clock_id: int) -> int:
        """Gives a clock's time in nanoseconds; those of the processor count from the start."""
        virtual = self.virtual
        if clock_id == REALTIME:
            return time.time_ns() if virtual is None else virtual.realtime()
        if clock_id > THREAD_CPU:
            raise FsError(f"there is no clock {clock_id}", Code.INVAL)
        if virtual is not None:
            return virtual.monotonic()
        return time.monotonic_ns() - self.started

    def random_get(self, buffer: int, length: int) -> int:
        """Writes random bytes."""
        target = self.span(buffer, length)
        for start in range(0, length, RANDOM_PIECE):
            piece = target[start : start + RANDOM_PIECE]
            piece[:] = self.random(len(piece))
        return 0

    def sched_yield(self) -> int:
        """Lets others run; there is nobody else in the program."""
        return 0

    def proc_exit(self, code: int) -> int:
        """Ends the run with a code; it is passed on as it is, so far as it fits a byte."""
        self.exit(code)
        return 0

    def proc_raise(self, signal: int) -> int:
        """Ends the run as the signal would, with 128 and its number."""
        self.exit(128 + (signal & 127))
        return 0

    def sock_accept(self, fd: int, flags: int, out: int) -> int:
        """Refuses: no file here is a socket."""
        return self._no_socket(fd)

    def sock_recv(
        self, fd: int, data: int, count: int, flags: int, out: int, out_flags: int
    ) -> int:
        """Refuses: no file here is a socket."""
        return self._no_socket(fd)

    def sock_send(self, fd: int, data: int, count: int, flags: int, out: int) -> int:
        """Refuses: no file here is a socket."""
        return self._no_socket(fd)

    def sock_shutdown(self, fd: int, how: int) -> int:
        """Refuses: no file here is a socket."""
        return self._no_socket(fd)

    def _no_socket(self, fd: int) -> int:
        self.descriptor(fd)
        raise FsError(f"{fd} is not a socket", Code.NOTSOCK)
