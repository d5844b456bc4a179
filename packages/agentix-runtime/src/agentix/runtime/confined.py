"""Files beneath one directory, which no path, symbolic link or rename leads out of.

Every component is opened by itself, relative to the descriptor of the one before, and never
followed by the kernel: links are read and walked here, `..` goes back to a descriptor that is
still held. What is swapped during a walk can therefore only change which file beneath the root is
found.
"""

import errno
import os
import secrets
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from agentix.errors import UsageError
from agentix.runtime.environment import User

__all__ = ["ConfinedDirectory", "Replacement"]

MAX_LINKS = 40
"""Symbolic links followed in one walk, as many as Linux follows."""

MAX_DEPTH = 256
"""Directories above a file; a walk holds a descriptor of each."""

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Place:
    """A name in an open directory."""

    directory: int
    """The descriptor of the directory."""
    name: str
    """The name in it, which is no link when it was looked at."""


class ConfinedDirectory:
    """The root that uploads and downloads are confined to.

    Args:
        root: The directory; it is made when it is first needed.
        owner: Who shall own what is made in it; the runtime's own user where it is `None`.
    """

    def __init__(self, root: Path, owner: User | None = None) -> None:
        self.root = root
        self._owner = owner

    def prepare(self) -> None:
        """Makes the root where it is missing.

        Raises:
            UsageError: It cannot be made.
        """
        if self.root.is_dir():
            return
        try:
            self.root.mkdir(parents=True)
            if self._owner is not None:
                os.chown(self.root, self._owner.uid, self._owner.gid)
        except OSError as error:
            raise UsageError(f"{self.root} cannot be made: {error.strerror}") from error

    @contextmanager
    def open(self, path: str) -> Iterator[int]:
        """Opens a regular file for reading, as a descriptor.

        Args:
            path: Relative to the root, or absolute and beneath it.

        Raises:
            UsageError: There is no such regular file beneath the root.
        """
        with self._place(path, make=False) as place:
            descriptor = _open_file(place, path)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def replace(self, path: str) -> Iterator["Replacement"]:
        """Return a new file that takes the place of `path` once it is complete, or leaves no trace.

        Directories on the way are made. An error inside the block leaves the old file as it was.

        Raises:
            UsageError: The path leads out of the root, or is something other than a file.
        """
        with self._place(path, make=True) as place:
            _refuse_special(place, path)
            temporary = f".{secrets.token_hex(8)}.part"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(temporary, flags, 0o600, dir_fd=place.directory)
            try:
                yield Replacement(descriptor, place, temporary, self._owner)
            finally:
                os.close(descriptor)
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=place.directory)

    @contextmanager
    def _place(self, path: str, *, make: bool) -> Iterator[Place]:
        """Walks to the directory that holds the last name of a path."""
        held = [os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
        try:
            name = self._walk(held, path, make)
            yield Place(held[-1], name)
        except OSError as error:
            raise _explained(error, path) from error
        finally:
            for descriptor in held:
                os.close(descriptor)

    def _walk(self, held: list[int], path: str, make: bool) -> str:
        pending = deque(self._parts(path, path))
        links = 0
        while pending:
            part = pending.popleft()
            if part == "..":
                _leave(held, path)
            elif (target := _link(held[-1], part)) is not None:
                links += 1
                if links > MAX_LINKS:
                    raise UsageError(f"{path!r} passes too many symbolic links")
                if target.startswith("/"):
                    _leave_all(held)
                pending.extendleft(reversed(self._parts(target, path)))
            elif pending:
                if len(held) > MAX_DEPTH:
                    raise UsageError(f"{path!r} lies deeper than {MAX_DEPTH} directories")
                held.append(self._enter(held[-1], part, make))
            else:
                return part
        raise UsageError(f"{path!r} is a directory, not a file")

    def _parts(self, target: str, path: str) -> list[str]:
        """Splits what is walked: a path that came with a call, or a link on its way."""
        if "\0" in target:
            raise UsageError(f"{path!r} holds a NUL byte")
        parts = [part for part in target.split("/") if part not in ("", ".")]
        if not target.startswith("/"):
            return parts
        root = list(self.root.parts[1:])
        if parts[: len(root)] != root:
            raise UsageError(f"{path!r} leads out of {self.root}")
        return parts[len(root) :]

    def _enter(self, directory: int, name: str, make: bool) -> int:
        if make:
            with suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=directory)
                if self._owner is not None:
                    owner = (self._owner.uid, self._owner.gid)
                    os.chown(name, *owner, dir_fd=directory, follow_symlinks=False)
        return os.open(name, DIRECTORY, dir_fd=directory)


class Replacement:
    """A file that is being written and has no name of its own yet.

    Args:
        descriptor: The file, open for writing.
        place: Where it goes.
        temporary: Its name until then, in the same directory.
        owner: Who shall own it.
    """

    def __init__(self, descriptor: int, place: Place, temporary: str, owner: User | None) -> None:
        self._descriptor = descriptor
        self._place = place
        self._temporary = temporary
        self._owner = owner
        self.size = 0

    def write(self, content: bytes | bytearray) -> None:
        """Append bytes.

        Raises:
            OSError: The file system is full, for one.
        """
        view = memoryview(content)
        while view:
            view = view[os.write(self._descriptor, view) :]
        self.size += len(content)

    def commit(self, mode: int) -> None:
        """Puts the file into its place, in one step.

        Args:
            mode: Its permission bits.
        """
        os.fchmod(self._descriptor, mode)
        if self._owner is not None:
            os.fchown(self._descriptor, self._owner.uid, self._owner.gid)
        directory = self._place.directory
        os.rename(self._temporary, self._place.name, src_dir_fd=directory, dst_dir_fd=directory)


def _leave(held: list[int], path: str) -> None:
    if len(held) == 1:
        raise UsageError(f"{path!r} leads out of the upload root")
    os.close(held.pop())


def _leave_all(held: list[int]) -> None:
    while len(held) > 1:
        os.close(held.pop())


def _link(directory: int, name: str) -> str | None:
    """Reads a symbolic link; gives `None` for what is none, or is not there."""
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise


def _open_file(place: Place, path: str) -> int:
    # Not blocking, because opening a FIFO would wait for a writer.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    _refuse_special(place, path)
    descriptor = os.open(place.name, flags, dir_fd=place.directory)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UsageError(f"{path!r} is not a regular file")
    return descriptor


def _refuse_special(place: Place, path: str) -> None:
    try:
        mode = os.stat(place.name, dir_fd=place.directory, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        raise UsageError(f"{path!r} is a directory, not a file")
    if not stat.S_ISREG(mode):
        raise UsageError(f"{path!r} is not a regular file")


def _explained(error: OSError, path: str) -> Exception:
    """Say which path an error is about; a full disk and a missing file keep their class."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.ENOENT):
        return OSError(error.errno, os.strerror(error.errno), path)
    return UsageError(f"{path!r} cannot be opened: {error.strerror}")
