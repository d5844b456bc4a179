"""Images held against the rules: what they declare and hold, and whether their programs start.

The image itself is not run. A container of it, which is never started, fills a volume with its
`/nix`, as a deployment does; programs are started from there in containers of an empty image.
"""

import asyncio
import io
import json
import os
import re
import secrets
import signal
import stat
import tarfile
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

import aiodocker
import aiohttp

from agentix.errors import DeploymentError, UsageError
from agentix.namespace_sdk.check.closure import (
    ClosureFiles,
    check_closure,
    no_volume,
    unusable_program,
)
from agentix.namespace_sdk.check.rules import Finding

__all__ = ["check_image", "check_image_until_terminated"]

PROGRAMS = "/nix/entry/bin"
"""Where the programs of an image are."""

START_SECONDS = 10.0
"""Seconds after which a program that still runs has started."""

NOT_STARTED_CODES = {126, 127}
"""Exit codes of a shell, an engine and a loader for what cannot be started."""

EXEC_FAILURE = re.compile(r"^(?:.*exec user process caused|exec /\S+): ", re.MULTILINE)
"""What runc prints in the place of a program that the kernel refuses to execute."""

UNREACHABLE_STATUS = 900
"""The status that aiodocker gives an engine that cannot be reached."""

CONTAINER_PREFIX = "agentix-check-"
"""What the names of all containers of a check begin with."""

BARE_REPOSITORY = "agentix-check-bare"
"""The repository of the empty image."""

ABANDONED_SECONDS = 3600
"""Seconds after which what a check left belongs to no check any more."""

CHUNK_BYTES = 1 << 20


async def check_image(reference: str) -> list[Finding]:
    """Check an image of the Docker engine; it is not pulled.

    Raises:
        UsageError: The engine has no such image.
        DeploymentError: The engine does not answer, or refuses.
    """
    try:
        docker = aiodocker.Docker()
    except (AssertionError, ValueError, OSError) as error:
        raise UsageError(f"{reference}: no such directory, and no Docker engine") from error
    async with docker:
        try:
            return await ImageCheck(docker, reference).findings()
        except aiodocker.DockerError as error:
            if error.status == UNREACHABLE_STATUS:
                reason = "no such directory, and the Docker engine does not answer"
                raise UsageError(f"{reference}: {reason}: {error.message}") from error
            if error.status == 404:
                reason = "no such directory, and the Docker engine has no such image"
                raise UsageError(f"{reference}: {reason}: build or pull it first") from error
            raise DeploymentError(f"{reference}: {error.message}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise UsageError(
                f"{reference}: no such directory, and the Docker engine does not answer: {error}"
            ) from error


def check_image_until_terminated(reference: str) -> list[Finding]:
    """Check an image as `check_image` does; SIGTERM ends the check and leaves nothing behind.

    Raises:
        UsageError: The engine has no such image.
        DeploymentError: The engine does not answer, refuses, or the check was ended.
    """
    try:
        return asyncio.run(_until_terminated(check_image(reference)))
    except asyncio.CancelledError as error:
        raise DeploymentError(f"{reference}: the check was ended") from error


async def _until_terminated(work: Coroutine[Any, Any, list[Finding]]) -> list[Finding]:
    task = asyncio.create_task(work)
    if threading.current_thread() is threading.main_thread():
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


@dataclass
class ImageCheck:
    """The check of one image.

    Args:
        docker: The engine.
        reference: The image.
    """

    docker: aiodocker.Docker
    reference: str

    async def findings(self) -> list[Finding]:
        """Return what is wrong with what it declares, holds and starts."""
        await self._remove_abandoned()
        described = await self.docker.images.inspect(self.reference)
        volumes = (described.get("Config") or {}).get("Volumes") or {}
        findings = [*no_volume(self.reference, volumes)]
        # The volume is declared here, too, so that it is filled where the image forgot it.
        config = {"Image": self.reference, "Cmd": ["none"], "Volumes": {"/nix": {}}}
        async with self._container(config) as holder:
            with tempfile.TemporaryDirectory(prefix="agentix-check-") as directory:
                await self._unpack(holder, Path(directory))
                closure = ClosureFiles(Path(directory, "nix"), "/nix")
                findings += await asyncio.to_thread(check_closure, closure, needs_store=True)
                unusable = await asyncio.to_thread(lambda: [*unusable_program(closure)])
                findings += unusable
                if await self._runs_here(described):
                    known = {finding.file for finding in unusable}
                    findings += await self._start_programs(holder, closure, known)
        return findings

    async def _runs_here(self, described: Mapping[str, Any]) -> bool:
        """Return whether the engine has the processor that the image is built for."""
        version = await self.docker.version()
        return bool(described.get("Architecture") in ("", None, version.get("Arch")))

    async def _remove_abandoned(self) -> None:
        """Remove what checks left that were killed long ago."""
        named = json.dumps({"name": [f"^/{CONTAINER_PREFIX}"]})
        for container in await self.docker.containers.list(all=True, filters=named):
            [name, *_] = container._container["Names"]
            if _is_abandoned(name.removeprefix(f"/{CONTAINER_PREFIX}")):
                with suppress(aiodocker.DockerError):  # another check may be doing the same
                    await container.delete(force=True, v=True)
        for image in await self.docker.images.list():
            for tag in image["RepoTags"] or ():
                if tag.startswith(f"{BARE_REPOSITORY}:") and _is_abandoned(
                    tag.removeprefix(f"{BARE_REPOSITORY}:")
                ):
                    with suppress(aiodocker.DockerError):
                        await self.docker.images.delete(tag, force=True)

    @asynccontextmanager
    async def _container(self, config: Mapping[str, Any]) -> AsyncIterator[str]:
        """Make a container for the length of a block."""
        name = f"{CONTAINER_PREFIX}{_stamp()}"
        container = await self.docker.containers.create(dict(config), name=name)
        try:
            yield name
        finally:
            await container.delete(force=True, v=True)

    async def _unpack(self, container: str, directory: Path) -> None:
        """Copy the container's `/nix` to disk; the volume makes sure that there is one."""
        with tempfile.TemporaryFile(dir=directory) as file:
            query = self.docker._query(f"containers/{container}/archive", params={"path": "/nix"})
            async with query as answer:
                async for chunk in answer.content.iter_chunked(CHUNK_BYTES):
                    file.write(chunk)
            file.seek(0)
            await asyncio.to_thread(unpack, file, directory)

    async def _start_programs(
        self, holder: str, closure: ClosureFiles, unusable: Collection[str]
    ) -> list[Finding]:
        """Start each program that is not known to be unusable."""
        names = [name for name in closure.programs if f"{PROGRAMS}/{name}" not in unusable]
        if not names:
            return []
        async with self._bare_image() as bare:
            starts = [self._start(bare, holder, name) for name in names]
            reasons = await asyncio.gather(*starts)
        return [
            unusable_program.finding(f"{PROGRAMS}/{name}", reason)
            for name, reason in zip(names, reasons, strict=True)
            if reason is not None
        ]

    @asynccontextmanager
    async def _bare_image(self) -> AsyncIterator[str]:
        """Load an image without any file, for the length of a block."""
        tag = f"{BARE_REPOSITORY}:{_stamp()}"
        await self.docker.images.import_image(bare_archive(tag))
        try:
            yield tag
        finally:
            await self.docker.images.delete(tag, force=True)

    async def _start(self, bare: str, holder: str, name: str) -> str | None:
        """Start a program; return why it did not start, where it did not."""
        config = {
            "Image": bare,
            "Entrypoint": [f"{PROGRAMS}/{name}"],
            "Cmd": ["--help"],
            "NetworkDisabled": True,
            "HostConfig": {"VolumesFrom": [f"{holder}:ro"], "NetworkMode": "none", "Init": False},
        }
        async with self._container(config) as started:
            container = self.docker.containers.container(started)
            try:
                await container.start()
            except aiodocker.DockerError as error:
                return f"the engine cannot start it: {_reason(error.message)}"
            try:
                async with asyncio.timeout(START_SECONDS):
                    ended = await container.wait()
            except TimeoutError:
                return None
            said = "".join(await container.log(stdout=True, stderr=True)).strip()
        if has_started(ended["StatusCode"], said):
            return None
        return f"it ends with exit code {ended['StatusCode']}: {said.rpartition(chr(10))[2]}"


def _stamp() -> str:
    """Return a part of a name: when it was made, and what no other check has."""
    return f"{int(time.time())}-{secrets.token_hex(8)}"


def _is_abandoned(stamp: str) -> bool:
    made = stamp.partition("-")[0]
    return made.isdigit() and int(made) < time.time() - ABANDONED_SECONDS


def _reason(message: str) -> str:
    """Return the last part of an engine's message, which names what was missing."""
    return message.strip().rpartition("caused: ")[2].rpartition("process: ")[2] or message


def has_started(exit_code: int, output: str) -> bool:
    """Return whether a program ran, whatever it made of its arguments.

    Args:
        exit_code: That of its container.
        output: What was printed, by the program or by what should have started it.
    """
    if exit_code in NOT_STARTED_CODES or _killed_by_fault(exit_code):
        return False
    return exit_code == 0 or EXEC_FAILURE.search(output) is None


def _killed_by_fault(exit_code: int) -> bool:
    faults = (signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV)
    return exit_code - 128 in faults


def unpack(archive: IO[bytes], directory: Path) -> None:
    """Unpack an archive with modes and links as they are; owners and devices are left out.

    No member is written through a link, so that nothing lands outside of the directory.
    """
    directories: list[tuple[Path, int]] = []
    with tarfile.open(fileobj=archive) as members:
        for member in members:
            path = directory / member.name
            if ".." in path.parts or any(parent.is_symlink() for parent in path.parents):
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            if member.isdir():
                path.mkdir(exist_ok=True)
                directories.append((path, member.mode))
            elif member.issym():
                path.symlink_to(_link_target(member, path, directory))
            elif member.islnk():
                path.hardlink_to(directory / member.linkname)
            elif (content := members.extractfile(member)) is not None:
                with path.open("wb") as file:
                    while chunk := content.read(CHUNK_BYTES):
                        file.write(chunk)
                path.chmod(stat.S_IMODE(member.mode) | stat.S_IRUSR)
    # Last and deepest first, because nothing can be written to a directory without permission.
    for path, mode in reversed(directories):
        path.chmod(stat.S_IMODE(mode) | stat.S_IRWXU)


def _link_target(member: tarfile.TarInfo, path: Path, directory: Path) -> str:
    """Return a link's target, which leads into the unpacked store where it led into /nix's.

    The link `entry` stays as it is: whether it is relative is a rule.
    """
    if member.linkname.startswith("/nix/store/") and member.name != "nix/entry":
        return os.path.relpath(directory / member.linkname[1:], path.parent)
    return member.linkname


def bare_archive(tag: str) -> bytes:
    """Return an archive for `docker load` of an image with one empty directory."""
    layer = _tar([_directory("dev")])
    digest = sha256(layer).hexdigest()
    configuration = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            "history": [{}],
        }
    ).encode()
    name = f"{sha256(configuration).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": [tag], "Layers": ["layer.tar"]}]
    files = {
        "layer.tar": layer,
        name: configuration,
        "manifest.json": json.dumps(manifest).encode(),
    }
    return _tar([_file(name, len(content)) for name, content in files.items()], [*files.values()])


def _tar(members: Sequence[tarfile.TarInfo], contents: Sequence[bytes] = ()) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for number, member in enumerate(members):
            tar.addfile(member, io.BytesIO(contents[number]) if contents else None)
    return archive.getvalue()


def _directory(name: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.mode = tarfile.DIRTYPE, 0o755
    return member


def _file(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = size
    return member
