"""Walking a path through nodes, component by component, following symbolic links.

Paths are relative to the node that the walk starts from, and no path gets above it. `..` goes back
along the way that the walk came, so a directory needs no knowledge of its parent.
"""

from typing import NamedTuple

from agentix.oanix.errors import (
    AlreadyExistsError,
    Code,
    FsError,
    NoSuchFileError,
    NotCapableError,
    NotDirectoryError,
)
from agentix.oanix.node import FsNode, Kind

__all__ = ["MAX_LINKS", "ResolvedPath", "entry", "find", "link", "locate", "make", "move"]

MAX_LINKS = 40
"""Symbolic links that one walk follows."""

MAX_NAME = 255
"""Bytes of one component."""

SHORT = MAX_NAME // 4
"""Characters that are that many bytes at most."""

UNUSUAL = "", "/", "."
LINK = Kind.SYMLINK


class ResolvedPath(NamedTuple):
    """Where a path ends: a name in a directory, which may or may not be taken."""

    parent: FsNode
    """The directory."""
    name: str
    """The name in it; empty where the path ends at the start of the walk or at `.` or `..`."""
    node: FsNode | None
    """The file of that name, if there is one."""
    directory: bool
    """The path ends in a slash, so only a directory will do."""


def find(base: FsNode, path: str, follow: bool = True) -> FsNode:
    """Return the file at a path.

    Args:
        base: Where the walk starts.
        path: A relative path; the empty path is not found.
        follow: A symbolic link at the end of the path is followed.

    Raises:
        NoSuchFileError: A component is missing.
        NotDirectoryError: A component is used as a directory and is none.
        NotCapableError: The path is absolute or leads above `base`.
        FsError: LOOP: too many symbolic links. NAMETOOLONG: a component is over 255 bytes.
    """
    node = (_plain(base, path) or locate(base, path, follow)).node
    if node is None:
        raise NoSuchFileError(path)
    return node


def locate(base: FsNode, path: str, follow: bool = True) -> ResolvedPath:
    """Return the directory and the name that a path ends at; the last name may be missing.

    Raises:
        NoSuchFileError: A component before the last is missing, or the path is empty.
        NotDirectoryError: A component is used as a directory and is none.
        NotCapableError: The path is absolute or leads above `base`.
        FsError: LOOP, NAMETOOLONG, or INVAL for a path with a zero byte.
    """
    plain = _plain(base, path)
    if plain is not None:
        return plain
    if not path:
        raise NoSuchFileError("the path is empty")
    if path[0] == "/":
        raise NotCapableError(path)
    if "\0" in path:
        raise FsError("a path holds a zero byte", Code.INVAL)
    last = path.rpartition("/")[2]
    directory = last in ("", ".", "..")
    place = _walk(base, path, follow or last == "", directory)
    return place._replace(name="") if last in (".", "..") else place


def entry(base: FsNode, path: str) -> ResolvedPath:
    """Return the name itself that a path ends in, as making, removing and renaming need it.

    A symbolic link at the end is not followed, also where a slash comes after it.

    Raises:
        NotDirectoryError: A slash follows a name that is not a directory's.
        FsError: As `locate` has it.
    """
    bare = path.rstrip("/")
    if bare == path or not bare:
        return locate(base, path, follow=False)
    place = locate(base, bare, follow=False)
    if place.node is not None and place.node.kind is not Kind.DIRECTORY:
        raise NotDirectoryError(path)
    return place._replace(directory=True)


def _plain(base: FsNode, path: str) -> ResolvedPath | None:
    """Walk a path of ordinary names, as most are; `None` where more is to be looked at."""
    if path[:1] in UNUSUAL or path[-1] == "/" or "/." in path or "//" in path or "\0" in path:
        return None
    names = path.split("/")
    if len(path) > SHORT and max(map(len, names)) > SHORT:
        return None
    last = names.pop()
    parent = base
    for name in names:
        parent = parent.lookup(name)
        if parent.kind is LINK:
            return None
    try:
        node = parent.lookup(last)
    except NoSuchFileError:
        return ResolvedPath(parent, last, None, False)
    return None if node.kind is LINK else ResolvedPath(parent, last, node, False)


def _walk(base: FsNode, path: str, follow: bool, directory: bool) -> ResolvedPath:
    way, links, name = [base], 0, ""
    ahead = _components(path)
    while ahead:
        name = ahead.pop()
        if name == "..":
            _back(way, path)
            name = ""
            continue
        node = _enter(way[-1], name, bool(ahead))
        if node is None:
            return ResolvedPath(way[-1], name, None, directory)
        if node.kind is LINK and (ahead or follow):
            links += 1
            ahead += _target(node, links, path)
            continue
        way.append(node)
    node = way[-1]
    if directory and node.kind is not Kind.DIRECTORY:
        raise NotDirectoryError(path)
    return ResolvedPath(way[-2] if len(way) > 1 else base, name, node, directory)


def _components(path: str) -> list[str]:
    """Split a path, and return the components that matter, the last one first."""
    return [name for name in reversed(path.split("/")) if name and name != "."]


def _enter(parent: FsNode, name: str, more: bool) -> FsNode | None:
    if len(name) > SHORT and len(name.encode()) > MAX_NAME:
        raise FsError(name, Code.NAMETOOLONG)
    try:
        return parent.lookup(name)
    except NoSuchFileError:
        if more:
            raise
        return None


def _target(node: FsNode, links: int, path: str) -> list[str]:
    if links > MAX_LINKS:
        raise FsError(path, Code.LOOP)
    target = node.readlink()
    if target.startswith("/"):
        raise NotCapableError(path)
    return _components(target)


def _back(way: list[FsNode], path: str) -> None:
    if way[-1].kind is not Kind.DIRECTORY:
        raise NotDirectoryError(path)
    if len(way) == 1:
        raise NotCapableError(path)
    way.pop()


def make(place: ResolvedPath) -> FsNode:
    """Make the missing file that a walk ended at, or return what others made meanwhile.

    O_CREAT without O_EXCL opens a file that is there by then (man 2 open).
    """
    try:
        return place.parent.create(place.name)
    except AlreadyExistsError:
        return place.parent.lookup(place.name)


def move(source: ResolvedPath, target: ResolvedPath) -> None:
    """Rename what one walk ended at to where another one did, as rename(2) does.

    Raises:
        NoSuchFileError: There is no source.
        NotDirectoryError: A slash follows a name that is not a directory's.
        FsError: BUSY: a mount is in the way. XDEV: the places are of two services. INVAL: a
            directory would go into itself.
    """
    if not source.name or not target.name:
        raise FsError(source.name, Code.BUSY)
    if source.node is None:
        raise NoSuchFileError(source.name)
    if target.directory and source.node.kind is not Kind.DIRECTORY:
        raise NotDirectoryError(target.name)
    source.parent.check_unmounted(source.name)
    target.parent.check_unmounted(target.name)
    parent, into = source.parent.underlying(), target.parent.underlying()
    if parent.owner is not into.owner:
        raise FsError(source.name, Code.XDEV)
    parent.rename(source.name, into, target.name)


def link(source: ResolvedPath, target: ResolvedPath) -> None:
    """Add a name where one walk ended for what another one ended at, as link(2) does.

    Raises:
        NoSuchFileError: There is no source, or the new name ends in a slash.
        AlreadyExistsError: The new name is taken.
        FsError: PERM: the source is a directory. XDEV: the places are of two services.
    """
    if source.node is None:
        raise NoSuchFileError(source.name)
    if target.node is not None:
        raise AlreadyExistsError(target.name)
    if source.node.kind is Kind.DIRECTORY:
        raise FsError(source.name, Code.PERM)
    if target.directory:
        raise NoSuchFileError(target.name)
    into = target.parent.underlying()
    if source.node.owner is not into.owner:
        raise FsError(source.name, Code.XDEV)
    into.link(target.name, source.node)
