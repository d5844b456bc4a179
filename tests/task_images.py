"""Task images made on the spot, without a registry, for tests that need a container.

    task_images.py [NAME ...]       make the named images, or all of them; print their tags

Each is made once: an image whose tag is there is left alone, so a change to how one
is made raises the number in its tag.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

CACHE = Path(__file__).resolve().parents[1] / ".cache" / "task-images"
SUITE = "bookworm"
DEBIAN_PACKAGES = ("coreutils", "dash", "findutils", "grep", "libc-bin", "python3-minimal", "sed")
MUSL_PACKAGES = ("busybox-static", "musl")

HOSTILE_ENVIRONMENT = {
    "GCONV_PATH": "/nonexistent/gconv",
    "LD_AUDIT": "/lib/x86_64-linux-gnu/libpthread.so.0",
    "LD_LIBRARY_PATH": "/lib/x86_64-linux-gnu:/usr/lib/x86_64-linux-gnu",
    "LD_PRELOAD": "/lib/x86_64-linux-gnu/libpthread.so.0:/nonexistent/preload.so",
    "OPENSSL_CONF": "/nonexistent/openssl.cnf",
    "PYTHONHOME": "/nonexistent/home",
    "PYTHONPATH": "/usr/lib/python3.11:/nonexistent/path",
    "PYTHONSTARTUP": "/nonexistent/startup.py",
}
"""Settings that break a Python or a loader that believes them; the libraries exist."""


def ensure_busybox(docker_cli: str = "docker") -> str:
    """Make an image of a static busybox and nothing else."""
    return ensure_image("agentix-test/busybox:1", docker_cli, busybox_filesystem)


def ensure_entrypoint(docker_cli: str = "docker") -> str:
    """Make a busybox image whose ENTRYPOINT fails whatever it is given."""
    return ensure_image(
        "agentix-test/entrypoint:1", docker_cli, busybox_filesystem, ['ENTRYPOINT ["false"]']
    )


def ensure_user(docker_cli: str = "docker") -> str:
    """Make a busybox image whose USER is not root."""
    return ensure_image("agentix-test/user:1", docker_cli, busybox_filesystem, ["USER 1000:1000"])


def ensure_search_path(docker_cli: str = "docker") -> str:
    """Make a busybox image with a PATH of its own, /opt/environment/bin first, and a WORKDIR."""
    changes = ["ENV PATH=/opt/environment/bin:/usr/bin:/bin", "WORKDIR /opt/work"]
    return ensure_image("agentix-test/search-path:1", docker_cli, busybox_filesystem, changes)


def ensure_scratch(docker_cli: str = "docker") -> str:
    """Make an image with one text file: no shell, no library, no /etc, no /tmp."""
    return ensure_image("agentix-test/scratch:1", docker_cli, scratch_filesystem)


def ensure_debian(docker_cli: str = "docker") -> str:
    """Make a small Debian image, with glibc, dash, coreutils and a Python of its own."""
    return ensure_image("agentix-test/debian:1", docker_cli, debian_filesystem)


def ensure_hostile(docker_cli: str = "docker") -> str:
    """Make a Debian image whose environment misleads loaders and Pythons."""
    changes = [f"ENV {name}={value}" for name, value in HOSTILE_ENVIRONMENT.items()]
    return ensure_image("agentix-test/hostile:2", docker_cli, debian_filesystem, changes)


def ensure_musl(docker_cli: str = "docker") -> str:
    """Make an image whose only dynamic loader and C library are musl's."""
    return ensure_image("agentix-test/musl:1", docker_cli, musl_filesystem)


TASK_IMAGES: Mapping[str, Callable[[str], str]] = {
    "busybox": ensure_busybox,
    "debian": ensure_debian,
    "entrypoint": ensure_entrypoint,
    "hostile": ensure_hostile,
    "musl": ensure_musl,
    "scratch": ensure_scratch,
    "search-path": ensure_search_path,
    "user": ensure_user,
}
"""What makes each image, by the name in its tag."""


def ensure_image(
    tag: str, docker_cli: str, filesystem: Callable[[], Path], changes: Sequence[str] = ()
) -> str:
    """Imports a root filesystem as an image, unless its tag is there already."""
    if subprocess.run([docker_cli, "image", "inspect", tag], capture_output=True).returncode == 0:
        return tag
    options = [option for change in changes for option in ("--change", change)]
    run([docker_cli, "import", *options, str(filesystem()), tag])
    return tag


def busybox_filesystem() -> Path:
    """Packs a static busybox, with a link for each of its tools."""
    program = shutil.which("busybox")
    if program is None:
        raise FileNotFoundError("busybox is not installed; install busybox-static")
    tools = run([program, "--list"]).split()
    path = archive_path("busybox")
    with tarfile.open(path, "w") as archive:
        add_directories(archive)
        archive.add(Path(program).resolve(), "bin/busybox")
        add_links(archive, tools)
    return path


def scratch_filesystem() -> Path:
    """Packs one text file."""
    path = archive_path("scratch")
    content = b"This image has nothing to run.\n"
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo("README")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return path


def debian_filesystem() -> Path:
    """Unpacks Debian packages into a root filesystem, once."""
    path = archive_path("debian")
    if not path.exists():
        unpack_packages(DEBIAN_PACKAGES, path)
    return path


def musl_filesystem() -> Path:
    """Unpacks Debian's musl and static busybox, once, and links busybox's tools."""
    path = archive_path("musl")
    if not path.exists():
        unpack_packages(MUSL_PACKAGES, path)
        tools = run([shutil.which("busybox") or "busybox", "--list"]).split()
        with tarfile.open(path, "a") as archive:
            add_links(archive, tools)
    return path


def unpack_packages(packages: Sequence[str], path: Path) -> None:
    """Unpacks packages and what they need from the mirror this machine uses."""
    partial = path.with_suffix(".partial.tar")
    include = f"--include={','.join(packages)}"
    source = f"deb {debian_mirror()} {SUITE} main"
    run(["mmdebstrap", "--variant=extract", "--quiet", include, SUITE, str(partial), source])
    partial.replace(path)


def debian_mirror() -> str:
    """Finds a Debian mirror: `AGENTIX_DEBIAN_MIRROR`, or the one this machine's apt is set to."""
    if chosen := os.environ.get("AGENTIX_DEBIAN_MIRROR"):
        return chosen
    targets = run(["apt-get", "indextargets", "--format", "$(ORIGIN) $(LABEL) $(REPO_URI)"])
    for line in targets.splitlines():
        origin, label, uri = line.split(maxsplit=2)
        if (origin, label) == ("Debian", "Debian"):
            return uri
    raise LookupError("apt knows no mirror of Debian; run `apt-get update` once")


def archive_path(name: str) -> Path:
    """Names an archive in the cache."""
    CACHE.mkdir(parents=True, exist_ok=True)
    return CACHE / f"{name}-1.tar"


def add_directories(archive: tarfile.TarFile) -> None:
    """Adds the directories that programs expect."""
    for name, mode in {"bin": 0o755, "etc": 0o755, "opt": 0o755, "tmp": 0o1777}.items():
        member = tarfile.TarInfo(name)
        member.type = tarfile.DIRTYPE
        member.mode = mode
        archive.addfile(member)


def add_links(archive: tarfile.TarFile, tools: Sequence[str]) -> None:
    """Links busybox's tools beside it."""
    for tool in tools:
        if tool == "busybox":
            continue
        member = tarfile.TarInfo(f"bin/{tool}")
        member.type = tarfile.SYMTYPE
        member.linkname = "busybox"
        archive.addfile(member)


def run(command: Sequence[str]) -> str:
    """Runs a program and returns its output; what it says on failure is in the error."""
    finished = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if finished.returncode != 0:
        raise RuntimeError(f"`{' '.join(command)}` failed:\n{finished.stderr}")
    return finished.stdout


if __name__ == "__main__":
    for requested in sys.argv[1:] or TASK_IMAGES:
        print(TASK_IMAGES[requested]("docker"))
