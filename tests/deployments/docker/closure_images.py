"""Closure images made on the spot: real images, whose content a test decides."""

import io
import json
import secrets
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

STORE_PATH = "nix/store/00000000000000000000000000000000-closure"
MANIFEST = {
    "abi": 1,
    "name": "made-for-a-test",
    "version": "1.0.0",
    "package": "agentix_namespaces.made_for_a_test",
}


def docker(*arguments: str, stdin: bytes | None = None) -> str:
    """Runs the engine's own client and gives what it prints."""
    finished = subprocess.run(["docker", *arguments], input=stdin, capture_output=True)
    assert finished.returncode == 0, finished.stderr.decode()
    return finished.stdout.decode().strip()


@contextmanager
def image_of(files: Mapping[str, tuple[int, bytes]]) -> Iterator[str]:
    """Gives an image with these files, by path: mode and content; its digest is new each time."""
    tag = f"agentix-test/closure:{secrets.token_hex(8)}"
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for path, (mode, content) in {**files, f"{STORE_PATH}/tag": (0o444, tag.encode())}.items():
            member = tarfile.TarInfo(path)
            member.mode, member.size = mode, len(content)
            tar.addfile(member, io.BytesIO(content))
    docker("import", "--change", "VOLUME /nix", "-", tag, stdin=archive.getvalue())
    try:
        yield tag
    finally:
        wait_for_keeper(tag)
        drop_closure(tag)
        docker("image", "rm", tag)


def namespace_files(count: int = 0) -> dict[str, tuple[int, bytes]]:
    """Gives the files of a namespace image that has `count` more in its store."""
    files = {f"{STORE_PATH}/file-{number}": (0o444, b"x" * 1000) for number in range(count)}
    return {"nix/entry/manifest.json": (0o444, json.dumps(MANIFEST).encode()), **files}


def runtime_files(start: str) -> dict[str, tuple[int, bytes]]:
    """Gives the files of a runtime image whose `start` is a shell script."""
    program = shutil.which("busybox")
    assert program is not None, "busybox is not installed; install busybox-static"
    script = f"#!/mnt/runtime/entry/bin/sh\n{start}\n"
    return {
        "nix/entry/bin/sh": (0o555, Path(program).read_bytes()),
        "nix/entry/bin/start": (0o555, script.encode()),
    }


def digest_of(reference: str) -> str:
    """Gives the digest of an image on the engine."""
    return docker("image", "inspect", "--format", "{{.Id}}", reference).removeprefix("sha256:")


def volume_of(reference: str) -> str:
    """Names the volume that an image's closure is copied to."""
    return f"agentix-namespace-{digest_of(reference)}"


def files_in_volume(volume: str, busybox: str) -> int:
    """Counts the files in a volume."""
    mount = f"{volume}:/volume:ro"
    count = ["sh", "-c", "find /volume -type f | wc -l"]
    return int(docker("run", "--rm", "-v", mount, "--network", "none", busybox, *count))


def wait_for_keeper(reference: str) -> None:
    """Wait until the keeper has ended that runs on an image, if there is one."""
    labelled = ["--filter", "label=org.agentix.role=keeper", "--filter", f"ancestor={reference}"]
    for keeper in docker("ps", "--quiet", *labelled).split():
        subprocess.run(["docker", "wait", keeper], capture_output=True)


def drop_closure(reference: str) -> None:
    """Removes the volume of an image and its holder, if they are there."""
    volume = volume_of(reference)
    subprocess.run(["docker", "rm", "-f", f"{volume}-holder"], capture_output=True)
    subprocess.run(["docker", "volume", "rm", "-f", volume], capture_output=True)
