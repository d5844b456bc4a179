"""The environment of commands: scrubbed, with the task image's PATH first (protocol: /exec)."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from agentix.dispatch import Registry
from agentix.errors import NamespaceNotFoundError, UsageError

__all__ = ["DEFAULT_PATH", "CommandEnvironment", "User", "scrubbed"]

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
"""PATH where the task image has none."""

STRIPPED = {
    "LD_AUDIT",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "LOCALE_ARCHIVE",
    "PYTHONHOME",
    "PYTHONPATH",
    "SSL_CERT_FILE",
}
STRIPPED_PREFIXES = ("AGENTIX_", "FONTCONFIG_", "NIX_")

PUT_ASIDE = "AGENTIX_TASK_"
"""How a variable of the task image is called that must not reach the runtime itself, such as
OPENSSL_CONF: the program `start` renames it, and commands have it by its own name."""


def scrubbed(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that commands may see, with a PATH in any case."""
    kept = {
        name: value
        for name, value in environ.items()
        if name not in STRIPPED and not name.startswith(STRIPPED_PREFIXES)
    }
    kept |= {
        name.removeprefix(PUT_ASIDE): value
        for name, value in environ.items()
        if name.startswith(PUT_ASIDE)
    }
    kept["PATH"] = kept.get("PATH") or DEFAULT_PATH
    return kept


@dataclass(frozen=True, slots=True)
class User:
    """Who runs commands and owns what is uploaded."""

    uid: int
    """The user's number."""
    gid: int
    """The primary group's number."""
    groups: tuple[int, ...] = ()
    """The supplementary groups."""
    home: str = "/"
    """The home directory."""

    @classmethod
    def find(cls, text: str, etc: Path = Path("/etc")) -> Self:
        """Looks a user up as a container engine does for `USER`: `name`, `uid`, `user:group`.

        Raises:
            UsageError: The task image has no such user or group.
        """
        name, _, group = text.partition(":")
        account = _entry(etc / "passwd", name, number=2)
        if account is None and not name.isdigit():
            raise UsageError(f"the task image has no user {name!r}")
        uid = int(account[2]) if account else int(name)
        gid = int(account[3]) if account else 0
        login = account[0] if account else ""
        groups = tuple(
            int(fields[2])
            for fields in _entries(etc / "group")
            if login in fields[3].split(",") and login
        )
        if group:
            found = _entry(etc / "group", group, number=2)
            if found is None and not group.isdigit():
                raise UsageError(f"the task image has no group {group!r}")
            gid, groups = (int(found[2]) if found else int(group)), ()
        return cls(uid, gid, groups, account[5] if account and account[5] else "/")


def _entries(file: Path) -> list[list[str]]:
    """Reads a file of colon-separated fields; lines that are not entries are passed over."""
    if not file.is_file():
        return []
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    entries = [line.split(":") for line in lines]
    return [entry for entry in entries if len(entry) >= 4 and entry[2].isdigit()]


def _entry(file: Path, wanted: str, number: int) -> list[str] | None:
    """Finds an entry by its name, or else by its number."""
    entries = _entries(file)
    by_name = (entry for entry in entries if entry[0] == wanted)
    by_number = (entry for entry in entries if entry[number] == wanted)
    return next(by_name, None) or next(by_number, None)


@dataclass(frozen=True, slots=True)
class CommandEnvironment:
    """Works out the environment of each command."""

    base: Mapping[str, str]
    """The scrubbed environment of the sandbox."""
    registry: Registry
    """The namespaces whose programs a command may ask for."""

    @classmethod
    def of_process(cls, registry: Registry, user: User | None) -> Self:
        """Takes the environment that the sandbox was started with."""
        base = scrubbed(os.environ)
        if user is not None:
            base["HOME"] = user.home
        return cls(base, registry)

    def build(self, extra: Mapping[str, str], paths_from: Sequence[str]) -> dict[str, str]:
        """Return the environment of one command.

        Args:
            extra: What the call sets, on top of the sandbox's own.
            paths_from: Packages whose programs go first on PATH; `["*"]` for all.

        Raises:
            NamespaceNotFoundError: A package is not mounted.
            UsageError: A variable's name or value cannot be one.
        """
        for name, value in extra.items():
            if not name or "=" in name or "\0" in name + value:
                raise UsageError(f"{name!r} cannot be set in an environment")
        environment = {**self.base, **extra}
        paths = [str(entry / "bin") for entry in self._entries(paths_from)]
        environment["PATH"] = os.pathsep.join([*paths, environment.get("PATH") or DEFAULT_PATH])
        return environment

    def _entries(self, paths_from: Sequence[str]) -> list[Path]:
        if "*" in paths_from:
            return [mounted.entry for mounted in self.registry]
        return [self._entry(package) for package in paths_from]

    def _entry(self, package: str) -> Path:
        mounted = self.registry.get(package)
        if mounted is None:
            raise NamespaceNotFoundError(f"paths_from: no namespace {package} is mounted")
        return mounted.entry
