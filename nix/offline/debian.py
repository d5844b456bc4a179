"""Debian packages: downloaded by apt on a configuration of our own, and read."""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Collection, Sequence
from email.message import Message
from email.parser import Parser
from io import BytesIO
from pathlib import Path

from nix.offline.command import FetchError, run
from nix.offline.lock import LockedFile

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
ARCHITECTURE = "amd64"


class PrivateApt:
    """Debian's own client on a configuration and a state of its own."""

    def __init__(self, folder: Path, suite: str) -> None:
        self._folder = folder
        self._suite = suite

    def update(self) -> None:
        """Writes the configuration and downloads the package lists."""
        for name in ("state/lists/partial", "cache/archives/partial"):
            (self._folder / name).mkdir(parents=True, exist_ok=True)
        (self._folder / "status").write_text("")
        (self._folder / "sources.list").write_text(
            f"deb [signed-by={KEYRING}] {debian_mirror()} {self._suite} main\n"
        )
        (self._folder / "apt.conf").write_text(self._configuration())
        self._run("apt-get", "update", "-q")

    def candidate(self, name: str) -> str:
        """Tells which version the mirror has."""
        return self._record(name)["Version"]

    def download(self, names: Sequence[str], folder: Path) -> None:
        """Downloads packages into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        self._run("apt-get", "download", "-q", *names, cwd=folder)

    def locked_file(self, name: str, others: Collection[str]) -> LockedFile:
        """Locks the version that the mirror has; of what it needs, only `others` are named."""
        record = self._record(name)
        depends = f"{record.get('Depends', '')},{record.get('Pre-Depends', '')}".split(",")
        required = {re.sub(r"[ (:|].*", "", entry.strip()) for entry in depends}
        return LockedFile(
            version=record["Version"],
            file=f"{name}_{record['Version'].replace(':', '%3a')}_{record['Architecture']}.deb",
            sha256=record["SHA256"],
            requires=tuple(sorted(required & set(others) - {name})),
        )

    def _record(self, name: str) -> Message:
        shown = self._run("apt-cache", "show", "--no-all-versions", name)
        return Parser().parsestr(shown)

    def _configuration(self) -> str:
        folder = self._folder
        return f"""{machine_proxies()}
Dir::Etc::sourcelist "{folder}/sources.list";
Dir::Etc::sourceparts "-";
Dir::Etc::parts "-";
Dir::State "{folder}/state";
Dir::State::status "{folder}/status";
Dir::Cache "{folder}/cache";
APT::Architecture "{ARCHITECTURE}";
APT::Architectures "{ARCHITECTURE}";
APT::Sandbox::User "";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled "false";
"""

    def _run(self, *command: str, cwd: Path | None = None) -> str:
        environment = {**os.environ, "APT_CONFIG": str(self._folder / "apt.conf"), "LC_ALL": "C"}
        return run(command, cwd=cwd, environment=environment)


def debian_mirror() -> str:
    """Finds a mirror of the Debian archive: the one that this machine's apt is set to.

    `AGENTIX_DEBIAN_MIRROR` names another, for machines of Debian's relatives.

    Raises:
        FetchError: apt knows none.
    """
    if chosen := os.environ.get("AGENTIX_DEBIAN_MIRROR"):
        return chosen
    targets = run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(ORIGIN) $(LABEL)"])
    for line in targets.splitlines():
        uri, _, origin = line.partition(" ")
        if origin == "Debian Debian":
            return uri
    raise FetchError(
        "apt knows no mirror of Debian; run `apt-get update` once, or name a mirror in "
        "AGENTIX_DEBIAN_MIRROR, or build by nix/Dockerfile"
    )


def machine_proxies() -> str:
    """Keeps the proxies that the machine's apt is set to use."""
    sections = (run(["apt-config", "dump", f"Acquire::{scheme}"]) for scheme in ("http", "https"))
    return "".join(sections)


def debian_member(package: Path, suffix: str) -> bytes:
    """Reads one file of a Debian package."""
    with tarfile.open(fileobj=BytesIO(archive_member(package, "data.tar")), mode="r:*") as data:
        member = next(entry for entry in data if entry.isfile() and entry.name.endswith(suffix))
        file = data.extractfile(member)
        assert file is not None
        return file.read()


def archive_member(package: Path, prefix: str) -> bytes:
    """Reads one member of an `ar` archive: 60-byte headers, contents padded to even lengths."""
    content = package.read_bytes()
    position = len(b"!<arch>\n")
    while position < len(content):
        name = content[position : position + 16].decode()
        size = int(content[position + 48 : position + 58])
        position += 60
        if name.startswith(prefix):
            return content[position : position + size]
        position += size + size % 2
    raise FetchError(f"{package} has no member {prefix}; it is no Debian package")
