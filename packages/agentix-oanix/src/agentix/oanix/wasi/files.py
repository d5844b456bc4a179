"""FileCalls: the functions of WASI preview 1 that work on an open file (`fd_*`)."""

from collections.abc import Iterator

from agentix.oanix import determinism
from agentix.oanix.errors import Code, FsError
from agentix.oanix.node import Handle, Kind, NodeEntry
from agentix.oanix.wasi import abi
from agentix.oanix.wasi.abi import FdFlags, Rights, TimeFlags
from agentix.oanix.wasi.descriptor import Descriptor
from agentix.oanix.wasi.process import WasiProcess

__all__ = ["FileCalls", "times"]

MAX_SIZE = 1 << 63
WHENCE_SET, WHENCE_CUR, WHENCE_END = 0, 1, 2


class FileCalls(WasiProcess):
    """Functions on open files; each takes the numbers that the program passed.

    They return 0 or raise `FsError` with the number that the program gets.
    """

    def fd_read(self, fd: int, iovs: int, count: int, out: int) -> int:
        """Read from the position, and move it."""
        found, handle = self.data(fd, Rights.FD_READ)
        buffers = self.vectors(iovs, count)
        if out + 4 > self.size:
            self.reach(out + 4)
        if found.stream:
            total = self._read_stream(found, handle, buffers)
        else:
            total = _read(handle, buffers, found.position)
            found.position += total
        self.bytes_read += total
        abi.U32.pack_into(self.memory, out, total)
        return 0

    def _read_stream(self, found: Descriptor, handle: Handle, buffers: list[memoryview]) -> int:
        buffer = next((buffer for buffer in buffers if len(buffer)), None)
        if buffer is None:
            return 0
        self._await(found, handle, writing=False)
        return handle.read(buffer, 0)

    def _await(self, found: Descriptor, handle: Handle, writing: bool) -> None:
        """Wait until a stream goes on."""
        if handle.ready(writing):
            return
        if found.flags & FdFlags.NONBLOCK:
            raise FsError("the stream would wait", Code.AGAIN)
        self.wait([(handle, writing)], None)

    def fd_pread(self, fd: int, iovs: int, count: int, offset: int, out: int) -> int:
        """Read from an offset."""
        found, handle = self.data(fd, Rights.FD_READ)
        _check_seekable(found)
        if offset >= MAX_SIZE:
            raise FsError("the offset is negative", Code.INVAL)
        buffers = self.vectors(iovs, count)
        if out + 4 > self.size:
            self.reach(out + 4)
        total = _read(handle, buffers, offset)
        self.bytes_read += total
        abi.U32.pack_into(self.memory, out, total)
        return 0

    def fd_write(self, fd: int, iovs: int, count: int, out: int) -> int:
        """Write at the position, or at the end of a file opened to append."""
        found, handle = self.data(fd, Rights.FD_WRITE)
        buffers = self.vectors(iovs, count)
        if out + 4 > self.size:
            self.reach(out + 4)
        if found.stream:
            self._await(found, handle, writing=True)
        total = self._write(found, handle, buffers)
        abi.U32.pack_into(self.memory, out, total)
        return 0

    def _write(self, found: Descriptor, handle: Handle, buffers: list[memoryview]) -> int:
        total = 0
        append = found.flags & FdFlags.APPEND and not found.stream
        for buffer in buffers:
            if len(buffer) == 0:
                continue
            if append:
                found.position = handle.append(buffer)
                total += len(buffer)
                continue
            written = handle.write(buffer, found.position)
            total += written
            found.position = 0 if handle.messages else found.position + written
            if written < len(buffer):
                break
        self._account(found, handle, total)
        return total

    def _account(self, found: Descriptor, handle: Handle, total: int) -> None:
        self.bytes_written += total
        if not found.dirty and total:
            self.note_written(found)
        if found.node is None:
            self.count_output(handle, total)
        elif found.flags & (FdFlags.SYNC | FdFlags.DSYNC):
            handle.sync()

    def fd_pwrite(self, fd: int, iovs: int, count: int, offset: int, out: int) -> int:
        """Write at an offset, also in a file opened to append."""
        found, handle = self.data(fd, Rights.FD_WRITE)
        _check_seekable(found)
        buffers = self.vectors(iovs, count)
        if offset >= MAX_SIZE:
            raise FsError("the offset is negative", Code.INVAL)
        if offset + sum(map(len, buffers)) >= MAX_SIZE:
            raise FsError("the file would be too big", Code.FBIG)
        if out + 4 > self.size:
            self.reach(out + 4)
        total = 0
        for buffer in buffers:
            total += handle.write(buffer, offset + total) if len(buffer) else 0
        self._account(found, handle, total)
        abi.U32.pack_into(self.memory, out, total)
        return 0

    def fd_seek(self, fd: int, offset: int, whence: int, out: int) -> int:
        """Move the position, and return the new one."""
        found = self._positioned(fd)
        asking = offset == 0 and whence == WHENCE_CUR
        if not found.base & Rights.FD_SEEK and not (asking and found.base & Rights.FD_TELL):
            raise FsError(f"{fd} lacks a right", Code.NOTCAPABLE)
        delta = offset - (1 << 64) if offset >= MAX_SIZE else offset
        handle = found.handle
        assert handle is not None
        if whence > WHENCE_END:
            raise FsError(f"whence is {whence}", Code.INVAL)
        starts = {WHENCE_SET: 0, WHENCE_CUR: found.position}
        start = handle.size() if whence == WHENCE_END else starts[whence]
        position = start + delta
        if not 0 <= position < MAX_SIZE:
            raise FsError("the position would be negative", Code.INVAL)
        self.put_u64(out, position)
        found.position = position
        return 0

    def fd_tell(self, fd: int, out: int) -> int:
        """Return the position."""
        found = self._positioned(fd)
        if not found.base & Rights.FD_TELL:
            raise FsError(f"{fd} lacks a right", Code.NOTCAPABLE)
        self.put_u64(out, found.position)
        return 0

    def _positioned(self, fd: int) -> Descriptor:
        found = self.descriptor(fd)
        if found.handle is None:
            raise FsError(f"{fd} is a directory", Code.BADF)
        _check_seekable(found)
        return found

    def fd_close(self, fd: int) -> int:
        """Close a file."""
        if fd not in self.files:
            raise FsError(f"{fd} is not open", Code.BADF)
        self.close(self.files.free(fd))
        return 0

    def fd_sync(self, fd: int) -> int:
        """Make what was written lasting."""
        found = self.descriptor(fd, Rights.FD_SYNC)
        if found.handle is not None:
            found.handle.sync()
        return 0

    def fd_datasync(self, fd: int) -> int:
        """Make what was written lasting."""
        found = self.descriptor(fd, Rights.FD_DATASYNC)
        if found.handle is not None:
            found.handle.sync()
        return 0

    def fd_advise(self, fd: int, offset: int, length: int, advice: int) -> int:
        """Take advice, and do nothing with it."""
        found = self.descriptor(fd)
        if found.handle is None:
            raise FsError(f"{fd} is a directory", Code.BADF)
        if found.stream:
            raise FsError(f"{fd} is a stream", Code.SPIPE)
        if not found.base & Rights.FD_ADVISE:
            raise FsError(f"{fd} lacks a right", Code.NOTCAPABLE)
        if advice > 5 or length >= MAX_SIZE:
            raise FsError("no such advice", Code.INVAL)
        return 0

    def fd_allocate(self, fd: int, offset: int, length: int) -> int:
        """Make a file at least as big as the end of a range."""
        handle = self.content(fd, Rights.FD_ALLOCATE)
        if length == 0 or offset >= MAX_SIZE or length >= MAX_SIZE:
            raise FsError("the range is empty or negative", Code.INVAL)
        if offset + length >= MAX_SIZE:
            raise FsError("the file would be too big", Code.FBIG)
        if offset + length > handle.size():
            handle.resize(offset + length)
            self.note_written(self.files[fd])
        return 0

    def fd_fdstat_get(self, fd: int, out: int) -> int:
        """Return type, flags and rights of a descriptor."""
        found = self.descriptor(fd)
        if out + 24 > self.size:
            self.reach(out + 24)
        abi.FDSTAT.pack_into(
            self.memory, out, found.kind, found.flags, found.base, found.inheriting
        )
        return 0

    def fd_fdstat_set_flags(self, fd: int, flags: int) -> int:
        """Set a descriptor's flags."""
        found = self.descriptor(fd, Rights.FD_FDSTAT_SET_FLAGS)
        if flags & ~FdFlags.ALL:
            raise FsError("no such flag", Code.INVAL)
        found.flags = flags
        return 0

    def fd_fdstat_set_rights(self, fd: int, base: int, inheriting: int) -> int:
        """Drop rights; they cannot be had back."""
        found = self.descriptor(fd)
        base, inheriting = base & abi.ALL_RIGHTS, inheriting & abi.ALL_RIGHTS
        if base & ~found.base or inheriting & ~found.inheriting:
            raise FsError("rights can only be dropped", Code.NOTCAPABLE)
        found.base, found.inheriting = base, inheriting
        return 0

    def fd_filestat_get(self, fd: int, out: int) -> int:
        """Return what is known about an open file."""
        found = self.descriptor(fd, Rights.FD_FILESTAT_GET)
        node = found.node
        if node is None:
            if out + 64 > self.size:
                self.reach(out + 64)
            abi.FILESTAT.pack_into(self.memory, out, 0, fd, found.kind, 1, 0, 0, 0, 0)
            return 0
        self.put_stat(out, node, found.handle.stat() if found.handle is not None else None)
        return 0

    def fd_filestat_set_size(self, fd: int, size: int) -> int:
        """Cut a file, or fill it up with zeros."""
        handle = self.content(fd, Rights.FD_FILESTAT_SET_SIZE)
        if not self.files[fd].base & Rights.FD_WRITE:
            raise FsError(f"{fd} was not opened for writing", Code.INVAL)
        if size >= MAX_SIZE:
            raise FsError("the size is negative", Code.INVAL)
        handle.resize(size)
        self.note_written(self.files[fd])
        return 0

    def fd_filestat_set_times(self, fd: int, accessed: int, modified: int, flags: int) -> int:
        """Set an open file's times."""
        found = self.descriptor(fd, Rights.FD_FILESTAT_SET_TIMES)
        wanted = times(accessed, modified, flags)
        if found.node is None:
            raise FsError(f"{fd} is a stream", Code.BADF)
        if found.handle is None or not found.handle.set_times(*wanted):
            found.node.set_times(*wanted)
        return 0

    def fd_prestat_get(self, fd: int, out: int) -> int:
        """Return how long the name is of a descriptor that was open from the start."""
        name = self.descriptor(fd).preopen
        if name is None:
            raise FsError(f"{fd} was not open from the start", Code.BADF)
        if out + 8 > self.size:
            self.reach(out + 8)
        abi.PRESTAT.pack_into(self.memory, out, 0, len(name))
        return 0

    def fd_prestat_dir_name(self, fd: int, out: int, length: int) -> int:
        """Return the name of a directory that was open from the start."""
        name = self.descriptor(fd).preopen
        if name is None:
            raise FsError(f"{fd} was not open from the start", Code.BADF)
        if length < len(name):
            raise FsError("the buffer is too small", Code.NAMETOOLONG)
        self.span(out, len(name))[:] = name
        return 0

    def fd_readdir(self, fd: int, buffer: int, length: int, cookie: int, out: int) -> int:
        """List a directory; what is listed is that of the moment when cookie 0 was asked."""
        found = self.directory(fd, Rights.FD_READDIR)
        target = self.span(buffer, length)
        if out + 4 > self.size:
            self.reach(out + 4)
        assert found.node is not None
        if cookie == 0 or found.listing is None:
            found.listing = sorted(found.node.entries(), key=lambda entry: entry.name)
        used = 0
        for part in _entries(found.listing, found.node.stat().ino, cookie):
            piece = part[: length - used]
            target[used : used + len(piece)] = piece
            used += len(piece)
            if used == length:
                break
        abi.U32.pack_into(self.memory, out, used)
        return 0

    def fd_renumber(self, fd: int, to: int) -> int:
        """Move a descriptor to the number of another one, which is closed.

        The numbers 0 to 2 may be free: programs emulate dup2 so after closing a standard stream.
        """
        self.descriptor(fd)
        if to not in self.files and to > 2:
            raise FsError(f"{to} is not open", Code.BADF)
        if fd == to:
            return 0
        replaced = self.files.get(to)
        if replaced is not None:
            self.close(replaced)
        self.files[to] = self.files.free(fd)
        return 0


def _entries(listing: list[NodeEntry], ino: int, cookie: int) -> Iterator[bytes]:
    """Yield the entries from a cookie on as they lie in memory; the first two are `.` and `..`."""
    own = [NodeEntry(".", Kind.DIRECTORY, ino), NodeEntry("..", Kind.DIRECTORY, ino)]
    for place in range(cookie, len(listing) + 2):
        entry = own[place] if place < 2 else listing[place - 2]
        name = entry.name.encode()
        yield abi.DIRENT.pack(place + 1, entry.ino, len(name), entry.kind) + name


def times(accessed: int, modified: int, flags: int) -> tuple[int | None, int | None]:
    """Return the times that a call sets, in nanoseconds since 1970.

    Raises:
        FsError: INVAL: a time is to be a given one and the current one at once.
    """
    if flags & ~TimeFlags.ALL:
        raise FsError("no such flag", Code.INVAL)
    return (
        _time(accessed, flags & TimeFlags.ATIM, flags & TimeFlags.ATIM_NOW),
        _time(modified, flags & TimeFlags.MTIM, flags & TimeFlags.MTIM_NOW),
    )


def _time(given: int, is_given: int, is_now: int) -> int | None:
    if is_given and is_now:
        raise FsError("a time is given twice", Code.INVAL)
    if is_now:
        return determinism.now()
    return given if is_given else None


def _read(handle: Handle, buffers: list[memoryview], offset: int) -> int:
    total = 0
    for buffer in buffers:
        count = handle.read(buffer, offset + total)
        total += count
        if count < len(buffer):
            break
    return total


def _check_seekable(found: Descriptor) -> None:
    if found.stream:
        raise FsError("a stream has no positions", Code.SPIPE)
