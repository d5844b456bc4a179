"""PathCalls: the functions of WASI preview 1 that work on a path (`path_*`)."""

from agentix.oanix.errors import AlreadyExistsError, Code, FsError, NoSuchFileError, NotAFileError
from agentix.oanix.node import FsNode, Kind, OpenFlags
from agentix.oanix.walk import ResolvedPath, entry, find, link, locate, make, move
from agentix.oanix.wasi import abi
from agentix.oanix.wasi.abi import FdFlags, OFlags, Rights
from agentix.oanix.wasi.descriptor import Descriptor
from agentix.oanix.wasi.files import times
from agentix.oanix.wasi.process import WasiProcess

__all__ = ["PathCalls"]

FOLLOW = 1
DIRECTORY, SYMLINK = Kind.DIRECTORY, Kind.SYMLINK
EXCLUSIVE = OFlags.CREAT | OFlags.EXCL
READ_WRITE = Rights.FD_READ | Rights.FD_WRITE
OPEN_FLAGS = {
    (read | write, truncate): OpenFlags(bool(read), bool(write), truncate=truncate)
    for read in (0, Rights.FD_READ)
    for write in (0, Rights.FD_WRITE)
    for truncate in (False, True)
}
"""How a service opens a file for rights to read and write, and with its content dropped."""


class PathCalls(WasiProcess):
    """Functions on paths, each beneath an open directory that the path cannot leave.

    They return 0 or raise `FsError` with the number that the program gets.
    """

    def _place(self, fd: int, rights: int, path: int, length: int) -> ResolvedPath:
        """Return the name that a path ends in, its symbolic link not followed."""
        return entry(self.base(fd, rights), self.text(path, length))

    def _changed(self, fd: int, path: str) -> None:
        self.written.add(f"{self.files[fd].full_path()}/{path.strip('/')}")

    def path_create_directory(self, fd: int, path: int, length: int) -> int:
        """Make a directory."""
        name = self.text(path, length)
        place = entry(self.base(fd, Rights.PATH_CREATE_DIRECTORY), name.rstrip("/") or name)
        if place.node is not None:
            raise AlreadyExistsError(place.name)
        place.parent.mkdir(place.name)
        return 0

    def path_filestat_get(self, fd: int, flags: int, path: int, length: int, out: int) -> int:
        """Return what is known about the file at a path."""
        base = self.base(fd, Rights.PATH_FILESTAT_GET)
        self.put_stat(out, find(base, self.text(path, length), flags & FOLLOW != 0))
        return 0

    def path_filestat_set_times(
        self, fd: int, lookup: int, path: int, length: int, accessed: int, modified: int, flags: int
    ) -> int:
        """Set the times of the file at a path."""
        base = self.base(fd, Rights.PATH_FILESTAT_SET_TIMES)
        wanted = times(accessed, modified, flags)
        find(base, self.text(path, length), bool(lookup & FOLLOW)).set_times(*wanted)
        return 0

    def path_link(
        self,
        fd: int,
        flags: int,
        path: int,
        length: int,
        new_fd: int,
        new_path: int,
        new_length: int,
    ) -> int:
        """Add a name for a file; a symbolic link is not followed."""
        if flags & FOLLOW:
            raise FsError("symbolic links are not followed here", Code.INVAL)
        source = self._place(fd, Rights.PATH_LINK_SOURCE, path, length)
        target = self._place(new_fd, Rights.PATH_LINK_TARGET, new_path, new_length)
        link(source, target)
        self._changed(new_fd, self.text(new_path, new_length))
        return 0

    def path_open(
        self,
        fd: int,
        lookup: int,
        path: int,
        length: int,
        oflags: int,
        base: int,
        inheriting: int,
        flags: int,
        out: int,
    ) -> int:
        """Open, or make and open, the file at a path."""
        directory = self.directory(fd, Rights.PATH_OPEN)
        if flags & ~FdFlags.ALL or oflags & ~15:
            raise FsError("no such flag", Code.INVAL)
        if oflags & OFlags.DIRECTORY and oflags != OFlags.DIRECTORY:
            raise FsError("a directory is not made or cut by opening it", Code.INVAL)
        if out + 4 > self.size:
            self.reach(out + 4)
        name = self.text(path, length)
        exclusive = oflags & EXCLUSIVE == EXCLUSIVE
        assert directory.node is not None
        if oflags & OFlags.CREAT and name[-1:] == "/":
            locate(directory.node, name.rstrip("/") or name, follow=False)
            raise NotAFileError(name)
        place = locate(directory.node, name, lookup & FOLLOW != 0 and not exclusive)
        node = place.node
        made = node is None
        if node is None:
            node = _make(directory, place, oflags)
        elif exclusive:
            raise AlreadyExistsError(name)
        if node.kind is DIRECTORY:
            opened = _open_directory(directory, node, oflags, base)
        else:
            opened = _open_file(directory, node, oflags, base)
            opened.inheriting = inheriting & directory.inheriting & abi.FILE_RIGHTS
            opened.flags = flags
        opened.parent, opened.path = directory, name.strip("/")
        if made or oflags & OFlags.TRUNC:
            self.note_written(opened)
        abi.U32.pack_into(self.memory, out, self.files.add(opened))
        return 0

    def path_readlink(
        self, fd: int, path: int, length: int, buffer: int, size: int, out: int
    ) -> int:
        """Return the path that a symbolic link holds, as much of it as fits."""
        node = find(self.base(fd, Rights.PATH_READLINK), self.text(path, length), follow=False)
        target = node.readlink().encode()[:size]
        self.span(buffer, len(target))[:] = target
        self.put_u32(out, len(target))
        return 0

    def path_remove_directory(self, fd: int, path: int, length: int) -> int:
        """Remove an empty directory."""
        place = self._place(fd, Rights.PATH_REMOVE_DIRECTORY, path, length)
        _named(place).rmdir(place.name)
        return 0

    def path_rename(
        self, fd: int, path: int, length: int, new_fd: int, new_path: int, new_length: int
    ) -> int:
        """Move a file or a directory, replacing what the new path names."""
        source = self._place(fd, Rights.PATH_RENAME_SOURCE, path, length)
        target = self._place(new_fd, Rights.PATH_RENAME_TARGET, new_path, new_length)
        move(source, target)
        self._changed(new_fd, self.text(new_path, new_length))
        return 0

    def path_symlink(self, target: int, target_length: int, fd: int, path: int, length: int) -> int:
        """Make a symbolic link; one to an absolute path would lead out, and is refused."""
        held = self.text(target, target_length)
        if held.startswith("/"):
            raise FsError("the target is absolute", Code.NOTCAPABLE)
        place = self._place(fd, Rights.PATH_SYMLINK, path, length)
        if not held or "\0" in held:
            raise FsError("the target is no path", Code.NOENT if not held else Code.INVAL)
        if place.node is not None:
            raise AlreadyExistsError(place.name)
        if place.directory:
            raise NoSuchFileError(place.name)
        place.parent.symlink(place.name, held)
        self._changed(fd, self.text(path, length))
        return 0

    def path_unlink_file(self, fd: int, path: int, length: int) -> int:
        """Remove a name that is not a directory's."""
        place = self._place(fd, Rights.PATH_UNLINK_FILE, path, length)
        if place.node is not None and place.node.kind is Kind.DIRECTORY:
            raise NotAFileError(place.name)
        _named(place).unlink(place.name)
        return 0


def _named(place: ResolvedPath) -> FsNode:
    """Return the directory of a name that is there and can be taken away."""
    if place.node is None:
        raise NoSuchFileError(place.name)
    if not place.name:
        raise FsError("the path ends in a dot", Code.INVAL)
    place.parent.check_unmounted(place.name)
    return place.parent


def _make(directory: Descriptor, place: ResolvedPath, oflags: int) -> FsNode:
    """Make the missing file that a walk ended at."""
    if not oflags & OFlags.CREAT:
        raise NoSuchFileError(place.name)
    if not directory.base & Rights.PATH_CREATE_FILE:
        raise FsError("files may not be made here", Code.NOTCAPABLE)
    if oflags & OFlags.EXCL:
        return place.parent.create(place.name)
    return make(place)


def _open_directory(directory: Descriptor, node: FsNode, oflags: int, base: int) -> Descriptor:
    """Open a directory with all rights that it inherits: programs ask for fewer than they use."""
    if base & Rights.FD_WRITE or oflags & (OFlags.TRUNC | OFlags.CREAT):
        raise NotAFileError("a directory is not written")
    opened = Descriptor.directory(node.hold(), "", directory.inheriting)
    opened.base &= directory.base | ~abi.DIRECTORY_RIGHTS
    return opened


def _open_file(directory: Descriptor, node: FsNode, oflags: int, base: int) -> Descriptor:
    if node.kind is SYMLINK:
        code = Code.NOTDIR if oflags & OFlags.DIRECTORY else Code.LOOP
        raise FsError("the path ends at a symbolic link", code)
    if oflags & OFlags.DIRECTORY:
        raise FsError("not a directory", Code.NOTDIR)
    rights = base & directory.inheriting & abi.FILE_RIGHTS
    truncate = bool(oflags & OFlags.TRUNC)
    if truncate and not directory.base & Rights.PATH_FILESTAT_SET_SIZE:
        raise FsError("files may not be truncated here", Code.NOTCAPABLE)
    handle = node.open(OPEN_FLAGS[rights & READ_WRITE, truncate])
    if truncate:
        handle.resize(0)
    if handle.stream:
        rights &= abi.STREAM_RIGHTS
    return Descriptor(node, handle, node.kind, rights)
