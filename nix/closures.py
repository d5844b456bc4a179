"""Closures: what real Nix builds from an expression, with everything it needs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from agentix.namespace_sdk.build.programs import run_program
from agentix.namespace_sdk.errors import BuildError
from agentix.namespace_sdk.store import STORE, Closure
from nix.offline.fetch import DEFAULT_LOCK, fetch, fetch_or_newer
from nix.offline.lock import Lock

NIX = Path(__file__).resolve().parent
OFFLINE = NIX / "offline"
DAEMON_SOCKET = Path("/nix/var/nix/daemon-socket/socket")

__all__ = ["BuildError", "Builder", "Closure", "default_store", "sandbox_setting"]


@dataclass(frozen=True)
class Builder:
    """Nix, set up for a package set and a store.

    With `nixpkgs` false the package set is the offline one, and Nix runs on a
    configuration of our own. `store` None is the machine's store.
    """

    cache: Path
    nixpkgs: bool = False
    store: Path | None = None
    strict: bool = False
    """Fail where the mirror has dropped a locked file, instead of taking a newer one."""

    def build(self, expressions: Sequence[Path], *options: str) -> list[Closure]:
        """Builds expressions and returns their closures, in the same order.

        Raises:
            BuildError: Building failed.
            FetchError: The sources of the offline package set could not be had.
        """
        if not self.nixpkgs:
            self._fetch()
        paths = self._run("nix-build", "--no-out-link", *options, *map(str, expressions))
        return [self._closure(Path(path)) for path in paths.split()]

    @property
    def lock(self) -> Path:
        """The lock in force: the committed one, unless its files have vanished."""
        if self._newer_lock.exists() and not self.strict:
            return self._newer_lock
        return DEFAULT_LOCK

    def _fetch(self) -> None:
        self._sources.mkdir(parents=True, exist_ok=True)
        if self.strict:
            fetch(Lock.read(DEFAULT_LOCK), self._sources)
        else:
            fetch_or_newer(DEFAULT_LOCK, self._newer_lock, self._sources)

    def _closure(self, entry: Path) -> Closure:
        requisites = self._run("nix-store", "--query", "--requisites", str(entry))
        return Closure.of(entry, requisites, self.store or Path("/"))

    def _run(self, program: str, *arguments: str) -> str:
        store = ["--store", str(self.store)] if self.store else []
        search = [] if program != "nix-build" else ["-I", f"agentix={NIX}"]
        if program == "nix-build" and not self.nixpkgs:
            search += ["-I", f"nixpkgs={OFFLINE}", "--option", "sandbox", sandbox_setting()]
        return run_program(
            [program, *store, *search, *arguments], {**os.environ, **self._environment()}
        )

    def _environment(self) -> dict[str, str]:
        if self.nixpkgs:
            return {}
        return {
            "AGENTIX_OFFLINE_CACHE": str(self._sources),
            "AGENTIX_OFFLINE_LOCK": str(self.lock),
            "NIX_CONF_DIR": str(OFFLINE),
            "NIX_USER_CONF_FILES": str(OFFLINE / "nix.conf"),
        }

    @property
    def _sources(self) -> Path:
        return self.cache / "offline"

    @property
    def _newer_lock(self) -> Path:
        return self._sources / "newer-lock.json"


def default_store(cache: Path) -> Path | None:
    """Chooses the machine's store where this user may build in it, else one in the cache."""
    if os.geteuid() == 0 or os.access(STORE, os.W_OK) or DAEMON_SOCKET.exists():
        return None
    return cache / "nix"


@cache
def sandbox_setting() -> str:
    """Turns Nix's sandbox off where namespaces are forbidden, as in most containers.

    The offline builds run on nothing but busybox and find nothing else either way.
    """
    probe = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "true"]
    try:
        return "true" if subprocess.run(probe, capture_output=True).returncode == 0 else "false"
    except FileNotFoundError:
        return "true"
