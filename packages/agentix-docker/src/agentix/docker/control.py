"""The directories of this host through which sandboxes are reached."""

import logging
import os
import shutil
import stat
import tempfile
from pathlib import Path

from agentix.docker.owner import Owner
from agentix.errors import DeploymentError, UsageError

__all__ = ["ControlDirectories", "default_control_root"]

logger = logging.getLogger(__name__)

MAX_SOCKET_PATH = 107
"""Bytes that the path of a Unix socket may have (unix(7): `sun_path` has 108, one ends it)."""

OWNER_SUFFIX = ".owner"


def default_control_root() -> Path:
    """Gives the directory for control directories: short, and cleared at boot where possible."""
    runtime_directory = os.environ.get("XDG_RUNTIME_DIR")
    if runtime_directory:
        return Path(runtime_directory) / "agentix"
    if os.geteuid() == 0:
        return Path("/run/agentix")
    return Path(tempfile.gettempdir()) / f"agentix-{os.geteuid()}"


class ControlDirectories:
    """The control directories of one deployment, below a root that all deployments share.

    Beside each directory stands a file that names its owner, made before the directory and
    removed after it: directories whose owner is gone can be told, and removed.

    Args:
        root: The directory shared by all deployments of this user.
        owner: The process that the deployment belongs to.
    """

    def __init__(self, root: Path, owner: Owner) -> None:
        self._root = root
        self._owner = owner

    def open(self) -> None:
        """Makes the root, and removes the directories in it whose owners are gone.

        Raises:
            DeploymentError: The root belongs to another user, or can not be made.
            UsageError: The root's path is too long for sockets below it.
        """
        deepest = self.path("agentix-" + 16 * "0") / "socket"
        if len(os.fsencode(deepest)) > MAX_SOCKET_PATH:
            raise UsageError(f"control_root {self._root} is too long for a Unix socket below it")
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._refuse_foreign_root()
            self._reap()
        except OSError as error:
            raise DeploymentError(f"control root {self._root}: {error}") from error

    def path(self, sandbox_id: str) -> Path:
        """Names the directory of a sandbox."""
        return self._root / sandbox_id

    def add(self, sandbox_id: str) -> Path:
        """Makes the directory of a sandbox, for its owner only."""
        directory = self.path(sandbox_id)
        try:
            directory.with_suffix(OWNER_SUFFIX).write_text(str(self._owner))
            directory.mkdir(mode=0o700)
        except OSError as error:
            raise DeploymentError(f"control directory {directory}: {error}") from error
        return directory

    def remove(self, sandbox_id: str) -> None:
        """Removes the directory of a sandbox, if it is there."""
        _remove(self.path(sandbox_id))

    def _refuse_foreign_root(self) -> None:
        found = self._root.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise DeploymentError(
                f"control root {self._root} is not a directory that only this user can write to"
            )

    def _reap(self) -> None:
        for file in self._root.glob(f"*{OWNER_SUFFIX}"):
            try:
                owner = Owner.parse(file.read_text())
            except FileNotFoundError:
                continue  # another deployment was faster
            if owner is not None and owner.is_gone_from_this_host():
                logger.info("removing the control directory of %s: its owner is gone", file.stem)
                _remove(file.with_suffix(""))


def _remove(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.with_suffix(OWNER_SUFFIX).unlink(missing_ok=True)
