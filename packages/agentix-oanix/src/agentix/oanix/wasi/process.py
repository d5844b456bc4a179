"""WasiProcess: what one run of a program has, its memory, files, clock and limits."""

import threading
import time
from collections.abc import Callable, Sequence
from struct import Struct

from agentix.oanix import determinism
from agentix.oanix.errors import Code, FsError, from_os_error
from agentix.oanix.namespace import Namespace
from agentix.oanix.node import FsNode, Handle, Stat
from agentix.oanix.run import RunConfig
from agentix.oanix.stop import Exit, Halt, Reason
from agentix.oanix.wasi import abi
from agentix.oanix.wasi.descriptor import Descriptor, DescriptorTable, Unopened, open_standard
from agentix.oanix.wasi.stream import OutputStream

__all__ = ["WasiProcess"]

NO_MEMORY = memoryview(b"")
MAX_VECTORS = 1024
MAX_PATH = 4096
VECTORS = tuple(Struct(f"<{2 * count}I") for count in range(17))


def _no_memory() -> memoryview:
    return NO_MEMORY


class WasiProcess:
    """The state that the 46 functions work on; `begin` gives it to the next run."""

    def __init__(self) -> None:
        self.memory = NO_MEMORY
        self.size = -1
        self.remap: Callable[[], memoryview] = _no_memory
        self.files = DescriptorTable()
        self.outputs: tuple[OutputStream, OutputStream] | None = None
        self.config = RunConfig()
        self.namespace = Namespace()
        self.virtual: determinism.VirtualClock | None = None
        self.random: Callable[[int], bytes] = determinism.ENTROPY.get()
        self.stop: BaseException | None = None
        self.started = 0
        self.deadline: float | None = None
        self.host_calls = self.bytes_read = self.bytes_written = self.output_bytes = 0
        self.written: set[str] = set()

    def begin(self, config: RunConfig, namespace: Namespace) -> None:
        """Start a run with nothing left of the one before."""
        self.config = config
        self.namespace = namespace
        self.outputs = self.stop = None
        self.host_calls = self.bytes_read = self.bytes_written = self.output_bytes = 0
        self.started = time.monotonic_ns()
        timeout = config.timeout
        self.deadline = None if timeout is None else self.started / 1e9 + timeout
        if config.deterministic:
            self.virtual, self.random = determinism.VirtualClock(), determinism.seeded(config.seed)
        else:
            self.virtual, self.random = None, determinism.ENTROPY.get()

    def bind(self, remap: Callable[[], memoryview]) -> None:
        """Take up the program's memory; the first call of a run needs it.

        Args:
            remap: Returns a view of the program's memory as it is now.
        """
        self.files = Unopened(self._open)
        self.remap = remap
        self.memory = remap()
        self.size = len(self.memory)

    def _open(self) -> DescriptorTable:
        """Open the standard streams and the first directories."""
        config = self.config
        self.written = set()
        self.outputs = (
            OutputStream(config.keep_output, config.stdout, 1),
            OutputStream(config.keep_output, config.stderr, 2),
        )
        self.files = open_standard(config, self.namespace, self.outputs)
        return self.files

    def end(self) -> None:
        """Close all open files; the first error of a close is raised at the end."""
        if self.size < 0:
            return
        self.memory, self.size, self.remap = NO_MEMORY, -1, _no_memory
        for descriptor in self.files.values():
            try:
                self.close(descriptor)
            except FsError as error:
                self.stop = self.stop or error
        self.files = DescriptorTable()

    def close(self, descriptor: Descriptor) -> None:
        """Close an open file.

        Raises:
            FsError: The service refuses what was written, so that the file was not changed.
        """
        handle = descriptor.handle
        if handle is None:
            return
        try:
            handle.close()
        except FsError:
            if descriptor.dirty:
                self.written.discard(descriptor.full_path())
            raise

    def failed(self, error: BaseException) -> int | None:
        """Return the error number that a call's failure is to the program.

        What is no failure of the call but the end of the run is noted, and has no number.
        """
        match error:
            case FsError():
                return error.code
            case OSError():
                return from_os_error(error).code
            case MemoryError():
                return Code.NOMEM
        self.stop = error
        return None

    def arguments(self) -> list[bytes]:
        """Return the program's name and its arguments."""
        return [argument.encode() for argument in self.config.arguments]

    def environment(self) -> list[bytes]:
        """Return the environment variables, each with its value."""
        return [f"{key}={value}".encode() for key, value in self.config.environment.items()]

    def reach(self, end: int) -> None:
        """Make sure that memory has bytes up to an address, which may have grown meanwhile.

        Raises:
            FsError: FAULT: it has not.
        """
        if end > self.size:
            self.memory = self.remap()
            self.size = len(self.memory)
            if end > self.size:
                raise FsError(f"address {end} is beyond {self.size}", Code.FAULT)

    def put_u32(self, address: int, value: int) -> None:
        """Write a 32-bit number to memory."""
        if address + 4 > self.size:
            self.reach(address + 4)
        abi.U32.pack_into(self.memory, address, value)

    def put_u64(self, address: int, value: int) -> None:
        """Write a 64-bit number to memory."""
        if address + 8 > self.size:
            self.reach(address + 8)
        abi.U64.pack_into(self.memory, address, value)

    def span(self, address: int, count: int) -> memoryview:
        """Return a view of a piece of memory; valid until the program goes on."""
        end = address + count
        if end > self.size:
            self.reach(end)
        return self.memory[address:end]

    def text(self, address: int, count: int) -> str:
        """Read a path.

        Raises:
            FsError: ILSEQ: it is not UTF-8. NAMETOOLONG: it is over 4096 bytes.
        """
        if count > MAX_PATH:
            raise FsError("the path is too long", Code.NAMETOOLONG)
        end = address + count
        if end > self.size:
            self.reach(end)
        try:
            return str(self.memory[address:end], "utf-8")
        except UnicodeDecodeError:
            raise FsError("the path is not UTF-8", Code.ILSEQ) from None

    def vectors(self, address: int, count: int) -> list[memoryview]:
        """Return views of the pieces of memory that an array of vectors names."""
        if count > MAX_VECTORS:
            raise FsError("too many vectors", Code.INVAL)
        if address + 8 * count > self.size:
            self.reach(address + 8 * count)
        layout = VECTORS[count] if count < len(VECTORS) else Struct(f"<{2 * count}I")
        numbers = layout.unpack_from(self.memory, address)
        spans, memory, size = [], self.memory, self.size
        for start, length in zip(numbers[::2], numbers[1::2], strict=True):
            if start + length > size:
                self.reach(start + length)
                memory, size = self.memory, self.size
            spans.append(memory[start : start + length])
        return spans

    def descriptor(self, number: int, rights: int = 0) -> Descriptor:
        """Return an open file that has all of some rights.

        Raises:
            FsError: BADF: there is none of that number. NOTCAPABLE: it lacks a right.
        """
        found = self.files.get(number)
        if found is None:
            raise FsError(f"{number} is not open", Code.BADF)
        if rights & ~found.base:
            raise FsError(f"{number} lacks a right", Code.NOTCAPABLE)
        return found

    def data(self, number: int, right: int) -> tuple[Descriptor, Handle]:
        """Return an open file that is not a directory, for reading or writing.

        Raises:
            FsError: BADF: there is none, or it was not opened for this. ISDIR: a directory.
        """
        found = self.files.get(number)
        if found is None:
            raise FsError(f"{number} is not open", Code.BADF)
        handle = found.handle
        if handle is None:
            raise FsError(f"{number} is a directory", Code.ISDIR)
        if not found.base & right:
            raise FsError(f"{number} was not opened for this", Code.BADF)
        return found, handle

    def content(self, number: int, right: int) -> Handle:
        """Return an open file that is not a directory and has a right.

        Raises:
            FsError: BADF: there is none, or a directory. NOTCAPABLE: it lacks the right.
        """
        found = self.descriptor(number)
        if found.handle is None:
            raise FsError(f"{number} is a directory", Code.BADF)
        if not found.base & right:
            raise FsError(f"{number} lacks a right", Code.NOTCAPABLE)
        return found.handle

    def base(self, number: int, rights: int) -> FsNode:
        """Return an open directory that has all of some rights, for a path to start from."""
        found = self.files.get(number)
        if found is None or found.node is None or found.handle or rights & ~found.base:
            found = self.directory(number, rights)
        assert found.node is not None
        return found.node

    def directory(self, number: int, rights: int) -> Descriptor:
        """Return an open directory that has all of some rights.

        Raises:
            FsError: BADF: there is none of that number. NOTDIR: it is not a directory.
                NOTCAPABLE: it lacks a right.
        """
        found = self.files.get(number)
        if found is None:
            raise FsError(f"{number} is not open", Code.BADF)
        if found.node is None or found.handle is not None:
            raise FsError(f"{number} is not a directory", Code.NOTDIR)
        if rights & ~found.base:
            raise FsError(f"{number} lacks a right", Code.NOTCAPABLE)
        return found

    def put_stat(self, address: int, node: FsNode, known: Stat | None = None) -> None:
        """Write what is known about a file to memory."""
        if address + 64 > self.size:
            self.reach(address + 64)
        kind, ino, size, links, accessed, modified, changed = known or node.stat()
        if self.virtual is not None:
            accessed, modified, changed = map(self.virtual.visible, (accessed, modified, changed))
        device = self.namespace.device(node)
        abi.FILESTAT.pack_into(
            *(self.memory, address, device, ino, kind),
            *(links, size, accessed, modified, changed),
        )

    def note_written(self, descriptor: Descriptor) -> None:
        """Remember that a file was changed."""
        descriptor.dirty = True
        if descriptor.node is not None:
            self.written.add(descriptor.full_path())

    def count_output(self, handle: Handle, count: int) -> None:
        """Count bytes of standard output and error.

        Raises:
            Halt: They are more than the run may write.
        """
        if type(handle) is OutputStream:
            self.output_bytes += count
            limit = self.config.output
            if limit is not None and self.output_bytes > limit:
                raise Halt(Reason.OUTPUT, f"more than {limit} bytes of output")

    def check_stopped(self) -> None:
        """Stop the run where it was cancelled or its time is over.

        Raises:
            Halt: It is.
        """
        cancellation = self.config.cancellation
        if cancellation is not None and cancellation.cancelled:
            raise Halt(Reason.CANCELLED, "cancelled")
        deadline = self.deadline
        if deadline is not None and time.monotonic() >= deadline:
            raise Halt(Reason.TIMEOUT, "the time is over")

    def wait(self, handles: Sequence[tuple[Handle, bool]], until: float | None) -> None:
        """Wait until a file is ready, or until a time of the monotonic clock.

        Args:
            handles: Files, each with whether writing is meant.
            until: The time in seconds; `None` for no end.

        Raises:
            Halt: The run was cancelled, or its time is over.
        """
        event = threading.Event()
        cancellation = self.config.cancellation
        undo = [handle.watch(event.set) for handle, _ in handles]
        if cancellation is not None:
            undo.append(cancellation.watch(event.set))
        try:
            while not any(handle.ready(writing) for handle, writing in handles):
                self.check_stopped()
                ends = [end for end in (until, self.deadline) if end is not None]
                remaining = min(ends) - time.monotonic() if ends else None
                if until is not None and time.monotonic() >= until:
                    return
                event.wait(remaining)
                event.clear()
        finally:
            for step in undo:
                step()

    def exit(self, code: int) -> None:
        """End the run.

        Raises:
            Exit: Always.
        """
        raise Exit(code)
