"""The directories of this host through which sandboxes are reached.

    ROOT/                       this user's, and nobody else writes to it
    ├── DEPLOYMENT.owner        locked (flock(2)) for as long as the owner lives
    └── DEPLOYMENT/             mode 0700
        └── SANDBOX/            what one sandbox has on the host: its listening socket, and the
                                journal of its control groups

No sandbox sees any of these directories, so nothing that a task does changes where the host
connects, and nothing that it writes lies on the host's disk.

The lock tells a dead owner from a busy one in whichever pid namespace either lives, and the kernel
drops it however the owner ends. A child that the owner forked does not hold it.
"""

import fcntl
import logging
import os
import secrets
import shutil
import socket
import stat
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

from agentix.errors import DeploymentError, UsageError
from agentix.linux.forks import closed_in_forks
from agentix.linux.groups import release_groups

__all__ = ["SOCKET", "ControlDirectories", "default_control_root", "listen_unix"]

logger = logging.getLogger(__name__)

SOCKET = "socket"
"""The name of a listening socket in the directory of its sandbox."""

BACKLOG = 1024
"""Connections that may wait to be accepted; bursts are common."""

MAX_SOCKET_PATH = 107
"""Bytes that the path of a Unix socket may have (unix(7): `sun_path` has 108, one ends it)."""

OWNER_SUFFIX = ".owner"

LONGEST_PATH = f"agentix-{'0' * 16}/handoff/{SOCKET}"
"""The longest path of a socket below the directory of a deployment."""


def default_control_root() -> Path:
    """Return the directory for control directories: short, and cleared at boot where possible."""
    runtime_directory = os.environ.get("XDG_RUNTIME_DIR")
    # sudo may keep the variable of a user who could then put another directory there.
    if runtime_directory and _is_own(Path(runtime_directory)):
        return Path(runtime_directory) / "agentix"
    if os.geteuid() == 0 and os.access("/run", os.W_OK):
        return Path("/run/agentix")
    return Path(tempfile.gettempdir()) / f"agentix-{os.geteuid()}"


def _is_own(directory: Path) -> bool:
    try:
        found = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def listen_unix(path: Path, mode: int = 0o600) -> socket.socket:
    """Listen on a new Unix socket.

    Args:
        path: Where it is made; nothing is there yet.
        mode: Who may connect: connecting needs permission to write (unix(7)).

    Raises:
        OSError: It cannot be made.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(mode)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


class ControlDirectories:
    """The control directories of one deployment, below a root that all deployments share.

    Args:
        root: The directory shared by all deployments of this user; it is made where it is missing.
        longest: The longest path of a socket below the directory of this deployment.
    """

    def __init__(self, root: Path, longest: str = LONGEST_PATH) -> None:
        self._root = root
        self._own = root / secrets.token_hex(6)
        self._longest = longest
        self._lock: ExitStack | None = None

    @property
    def is_open(self) -> bool:
        """Whether the deployment has its own directory."""
        return self._lock is not None

    def open(self) -> None:
        """Make the deployment's own directory, and remove those whose owners are gone.

        Raises:
            DeploymentError: Others may write to the root, or something cannot be made.
            UsageError: The root's path is too long for sockets below it.
        """
        if self._lock is not None:
            return
        if len(os.fsencode(self._own / self._longest)) > MAX_SOCKET_PATH:
            raise UsageError(f"{self._root} is too long for Unix sockets below it")
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._refuse_foreign_root()
            self._reap()
            self._lock = _locked_file(self._owner_file(self._own))
            self._own.mkdir(mode=0o700)
        except OSError as error:
            self.close()
            raise DeploymentError(f"control root {self._root}: {error}") from error

    def add(self, sandbox_id: str) -> Path:
        """Make the directory of a sandbox, for its owner only.

        Raises:
            DeploymentError: It cannot be made.
        """
        directory = self._own / sandbox_id
        try:
            directory.mkdir(mode=0o700)
        except OSError as error:
            raise DeploymentError(f"control directory {directory}: {error}") from error
        return directory

    def remove(self, sandbox_id: str) -> None:
        """Remove the directory of a sandbox, if it is there."""
        _remove_tree(self._own / sandbox_id)

    def close(self) -> None:
        """Remove all that this deployment has below the root."""
        if self._lock is None:
            return
        _remove_tree(self._own)
        self._owner_file(self._own).unlink(missing_ok=True)
        self._lock.close()
        self._lock = None

    def _owner_file(self, directory: Path) -> Path:
        return directory.with_name(directory.name + OWNER_SUFFIX)

    def _refuse_foreign_root(self) -> None:
        found = self._root.lstat()
        others_write = found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX
        trusted = found.st_uid in (0, os.geteuid())
        if not stat.S_ISDIR(found.st_mode) or not trusted or others_write:
            raise DeploymentError(
                f"control root {self._root} is not a directory in which only this user can"
                " change what this user made"
            )

    def _reap(self) -> None:
        for file in self._root.glob(f"*{OWNER_SUFFIX}"):
            lock = _lock_of_dead_owner(file)
            if lock is None:
                continue
            try:
                self._remove_dead(file.with_suffix(""))
                file.unlink(missing_ok=True)
            except OSError as error:
                logger.warning("control directory %s is left: %s", file.with_suffix(""), error)
            finally:
                os.close(lock)

    def _remove_dead(self, directory: Path) -> None:
        """Remove what a dead owner had.

        Raises:
            OSError: Something is in use, or is not this user's; the next to open finds it again.
        """
        logger.info("removing the control directory %s: its owner is gone", directory)
        if not _is_own(directory):
            return  # there was none, or something else has its name since: a link leads anywhere
        for sandbox in directory.glob("*"):
            release_groups(sandbox)
        _remove_tree(directory)
        if directory.exists():
            raise OSError("it could not be removed")


def _remove_tree(directory: Path) -> None:
    """Remove a directory and all below it, read-only directories too, if it is there."""
    for parent, names, _files in os.walk(directory):
        for name in names:
            path = Path(parent, name)
            if not path.is_symlink():
                with suppress(OSError):
                    path.chmod(0o700)
    shutil.rmtree(directory, ignore_errors=True)


def _locked_file(path: Path) -> ExitStack:
    """Make a file and lock it until what is returned is closed."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with ExitStack() as lock:
            lock.callback(os.close, descriptor)
            lock.enter_context(closed_in_forks(descriptor))
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Between the two, another deployment may have taken it for a dead owner's.
            if os.fstat(descriptor).st_nlink:
                return lock.pop_all()


def _lock_of_dead_owner(path: Path) -> int | None:
    """Lock the file of an owner that is gone; return `None` if it lives, or is another user's."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None  # another deployment was faster, or it is another user's
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise PermissionError(path)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
