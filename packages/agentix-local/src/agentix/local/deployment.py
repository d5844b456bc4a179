"""LocalDeployment: sandboxes of this machine's own kernel, without an engine."""

import asyncio
import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

from agentix.deployment import Deployment, Sandbox, SandboxConfig, SandboxInfo, find_ready_url
from agentix.errors import (
    DeploymentError,
    SandboxNotFoundError,
    SandboxStartError,
    UsageError,
)
from agentix.local.launcher import CONTROL_DIRECTORY, OWN_DIRECTORIES, REFUSED, REFUSED_PREFIX
from agentix.local.limits import Limits, make_groups, remove_groups
from agentix.local.plan import Plan
from agentix.local.process import LaunchedProcess
from agentix.local.reference import Bundle, find_bundle, find_image

__all__ = ["Isolation", "LocalDeployment"]

logger = logging.getLogger(__name__)

Isolation = Literal["namespaces", "none"]
"""How a sandbox is kept apart: by the kernel's namespaces, or not at all."""

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
SOCKET = "runtime.sock"
TOKEN = "token"  # noqa: S105 - the name of a file
SOCKET_PATH_LIMIT = 107
"""Bytes of the longest path that a Unix socket can have (unix(7))."""


@dataclass(slots=True)
class _Record:
    """A sandbox, from the moment its making begins until nothing of it is left."""

    id: str
    config: SandboxConfig
    created_at: datetime
    token: str = field(repr=False)
    control: Path | None = None
    groups: list[Path] = field(default_factory=list)
    process: LaunchedProcess | None = None
    ready: bool = False
    removal: asyncio.Task[None] | None = None

    def info(self) -> SandboxInfo:
        exit_code = None if self.process is None else self.process.exit_code
        status: Literal["starting", "running", "exited"] = "running" if self.ready else "starting"
        if exit_code is not None:
            status = "exited"
        return SandboxInfo(self.id, self.config.image, status, self.created_at, exit_code)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The directories that a configuration means."""

    image: Path
    runtime: Bundle
    namespaces: tuple[Bundle, ...]

    def mounts(self) -> list[tuple[str, str]]:
        """Gives each bundle once, by the name of its mount."""
        named = {bundle.mount: str(bundle.path) for bundle in self.namespaces}
        return [("runtime", str(self.runtime.path)), *named.items()]


@dataclass(frozen=True, slots=True)
class _Places:
    """Directories as the sandbox sees them."""

    control: Path
    mounts: Path
    workspace: Path
    temporary: Path
    home: Path


class LocalDeployment(Deployment):
    """Makes sandboxes with this machine's kernel alone: no engine, no daemon, no image store.

    A sandbox has its own mounts, processes, System V objects and host name, and, for
    `network="none"`, a network of its own. Its root is the task image, read-only; `/workspace`,
    `/tmp`, `/run` and `/nix` are its own, in memory. `SandboxConfig.image` is `/` for the host's
    root, or the path of a root filesystem directory. `runtime` and `namespaces` are paths of
    bundle directories, or image references that are looked up in `bundles`. The network is the
    host's (`"host"`, the default) or `"none"`. Works as root and as an ordinary user, who is root
    in the sandbox's user namespace.

    Args:
        bundles: The directory in which the image reference `name:tag` is `<name>/<tag>`.
        isolation: `"namespaces"`, or `"none"` where the kernel forbids them: then the runtime is a
            plain child process that sees and may do all that its owner may.
        writable_root: Whether a sandbox may change its root where the task image is a directory;
            what it changes is in memory and its own. The host's root stays read-only.
        directory: Where the control sockets are; a short path, the temporary directory by default.
        concurrent_starts: How many sandboxes may be starting at once, each on a processor of its
            own; others wait for their turn.
    """

    def __init__(
        self,
        *,
        bundles: Path | None = None,
        isolation: Isolation = "namespaces",
        writable_root: bool = False,
        directory: Path | None = None,
        concurrent_starts: int | None = None,
    ) -> None:
        self._bundles = None if bundles is None else Path(bundles).absolute()
        self._isolation = isolation
        self._writable_root = writable_root
        self._directory = directory
        self._starting = asyncio.Semaphore(concurrent_starts or max(2, os.cpu_count() or 2))
        self._records: dict[str, _Record] = {}
        self._closed = False

    async def __aenter__(self) -> Self:
        """Makes the deployment ready for use; there is nothing to prepare."""
        self._closed = False
        if self._isolation == "none":
            logger.warning(
                "isolation is off: what runs in these sandboxes may do all that this user may"
            )
        return self

    async def __aexit__(self, *exception: Any) -> None:
        """Deletes every sandbox that this deployment made."""
        self._closed = True
        removals = [self._removal(record) for record in self._records.values()]
        if removals:
            await _to_the_end(removals)

    async def create(self, config: SandboxConfig) -> Sandbox:
        """Makes a sandbox and returns once its runtime accepts calls.

        A call that fails or is cancelled leaves nothing behind.

        Raises:
            UsageError: The network is `bridge`, a limit can not be enforced here, or the
                deployment is closed.
            SandboxStartError: The runtime ended or stayed silent before it was ready.
            DeploymentError: A bundle or the task image is missing, or the kernel forbids a call
                that the sandbox needs; the message names it.
        """
        if self._closed:
            raise UsageError("this deployment is closed: make sandboxes inside its `async with`")
        parts = self._find_parts(config)
        identity = f"agentix-{secrets.token_hex(6)}"
        record = _Record(identity, config, datetime.now(UTC), secrets.token_urlsafe(32))
        self._records[identity] = record
        try:
            async with self._starting:
                url = await self._start(record, parts)
        except BaseException:
            await _to_the_end([self._removal(record)])
            raise
        record.ready = True
        logger.info("sandbox %s runs on %s", identity, config.image)
        return Sandbox(identity, url, record.token)

    def _find_parts(self, config: SandboxConfig) -> _Parts:
        self._check(config)
        image = find_image(config.image)
        runtime = find_bundle(config.runtime, self._bundles)
        if runtime.host_paths is not None and str(image) != "/":
            raise DeploymentError(
                f"runtime {config.runtime!r} is the host's own interpreter, which runs only with"
                f" image='/', not in {config.image!r}: take a runtime that Nix built"
            )
        found = (find_bundle(reference, self._bundles) for reference in config.namespace_images)
        return _Parts(image, runtime, tuple(found))

    def _check(self, config: SandboxConfig) -> None:
        """Refuses what this deployment can not give."""
        isolated = self._isolation == "namespaces"
        if config.network == "bridge":
            raise UsageError(
                "a local sandbox has no network 'bridge': use DockerDeployment for it, or 'none'"
            )
        if config.network == "none" and not isolated:
            raise UsageError("network 'none' needs isolation='namespaces'")
        if config.image != "/" and not isolated:
            raise UsageError("isolation='none' runs on the host's own files: use image='/'")
        others = config.user not in (None, "root", "0", "0:0")
        if others and isolated and os.geteuid() != 0:
            raise UsageError(
                f"user {config.user!r}: an ordinary user's sandbox has one user, its root"
            )

    async def _start(self, record: _Record, parts: _Parts) -> str:
        """Starts the runtime and gives its URL; what it makes is noted in `record` at once."""
        try:
            record.control = self._make_control(record.token)
            record.groups = make_groups(record.id, Limits.of(record.config))
            places = self._places(record.control, parts)
            record.process = await LaunchedProcess.start(self._plan(record, parts, places))
        except OSError as error:
            raise DeploymentError(f"a sandbox can not be started: {error}") from error
        await self._ready(record.process, record.config.start_timeout)
        return f"unix:{record.control / SOCKET}"

    def _make_control(self, token: str) -> Path:
        """Makes the private directory of the control socket, with the token in it."""
        parent = self._directory or Path(tempfile.gettempdir())
        control = Path(tempfile.mkdtemp(prefix="agentix-", dir=parent))
        if len(os.fsencode(control / SOCKET)) > SOCKET_PATH_LIMIT:
            control.rmdir()
            raise UsageError(f"{parent} is too long for a Unix socket: give a shorter `directory`")
        with open(control / TOKEN, "x", opener=_private_opener) as file:
            file.write(token)
        return control

    def _places(self, control: Path, parts: _Parts) -> _Places:
        """Gives where the sandbox sees what is its own."""
        if self._isolation == "none":
            return _lay_out(control, parts)
        temporary = Path("/tmp")  # noqa: S108 - the sandbox's own
        return _Places(
            control=Path(CONTROL_DIRECTORY),
            mounts=Path("/mnt"),
            workspace=Path("/workspace"),
            temporary=temporary,
            home=temporary / "home",
        )

    def _plan(self, record: _Record, parts: _Parts, places: _Places) -> Plan:
        return Plan(
            owner=os.getpid(),
            isolated=self._isolation == "namespaces",
            private_network=record.config.network == "none",
            hostname=record.id,
            control=str(record.control),
            image=str(parts.image),
            writable=self._writable_root and str(parts.image) != "/",
            mounts=parts.mounts(),
            host_paths=_hidden(parts.runtime.host_paths or ()),
            cgroups=[str(group) for group in record.groups],
            directory=str(places.workspace),
            command=[str(places.mounts / "runtime/entry/bin/start")],
            environment=_environment(record.config, places),
        )

    async def _ready(self, process: LaunchedProcess, timeout: float) -> None:
        """Waits until the runtime says that it accepts calls.

        Raises:
            SandboxStartError: It ended, or said nothing in `timeout` seconds.
            DeploymentError: The kernel refused a call.
        """
        try:
            async with asyncio.timeout(timeout):
                url = await find_ready_url(process.lines())
                code = None if url is not None else await process.wait()
        except TimeoutError as error:
            message = f"the runtime was not ready within {timeout:g} seconds"
            raise SandboxStartError(message, None, process.output) from error
        if code is None:
            process.follow()
            return
        refused = [line for line in process.output.splitlines() if line.startswith(REFUSED_PREFIX)]
        if code == REFUSED and refused:
            raise DeploymentError(_explain(refused[0].removeprefix(REFUSED_PREFIX)))
        raise SandboxStartError(
            f"the runtime ended with exit code {code} before it was ready", code, process.output
        )

    async def delete(self, sandbox_id: str) -> None:
        """Ends a sandbox and removes all that was made for it; cancellation waits for that.

        Raises:
            SandboxNotFoundError: This deployment has no such sandbox (or no longer).
        """
        record = self._find(sandbox_id)
        await _to_the_end([self._removal(record)])
        logger.info("sandbox %s is deleted", sandbox_id)

    async def get(self, sandbox_id: str) -> SandboxInfo:
        """Tells the state of one sandbox of this deployment.

        Raises:
            SandboxNotFoundError: This deployment has no such sandbox (or no longer).
        """
        return self._find(sandbox_id).info()

    async def list(self) -> Sequence[SandboxInfo]:
        """Tells the state of every sandbox of this deployment, the oldest first."""
        return [record.info() for record in self._records.values() if record.removal is None]

    def _find(self, sandbox_id: str) -> _Record:
        record = self._records.get(sandbox_id)
        if record is None or record.removal is not None:
            raise SandboxNotFoundError(f"this deployment has no sandbox {sandbox_id!r}")
        return record

    def _removal(self, record: _Record) -> asyncio.Task[None]:
        """Gives the one removal of a sandbox, which the first that asks for it starts."""
        if record.removal is None:
            record.removal = asyncio.create_task(self._remove(record))
        return record.removal

    async def _remove(self, record: _Record) -> None:
        try:
            if record.process is not None:
                await record.process.end()
            if record.control is not None:
                await asyncio.to_thread(shutil.rmtree, record.control, ignore_errors=True)
            await remove_groups(record.groups)
        finally:
            del self._records[record.id]


def _private_opener(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _environment(config: SandboxConfig, places: _Places) -> dict[str, str]:
    """Gives the environment of the runtime: nothing of the owner's own."""
    environment = {
        "PATH": DEFAULT_PATH,
        "HOME": str(places.home),
        "LANG": "C.UTF-8",
        "TMPDIR": str(places.temporary),
        **config.env,
        "AGENTIX_BIND_UNIX": str(places.control / SOCKET),
        "AGENTIX_TOKEN_FILE": str(places.control / TOKEN),
        "AGENTIX_MOUNT_ROOT": str(places.mounts),
        "AGENTIX_UPLOAD_ROOT": str(places.workspace),
    }
    if config.user is not None:
        environment["AGENTIX_EXEC_USER"] = config.user
    return environment


def _lay_out(control: Path, parts: _Parts) -> _Places:
    """Makes the directories of a sandbox without isolation."""
    places = _Places(
        control, control / "mnt", control / "workspace", control / "tmp", control / "home"
    )
    for directory in (places.mounts, places.workspace, places.temporary, places.home):
        directory.mkdir()
    for name, source in parts.mounts():
        (places.mounts / name).symlink_to(source)
    return places


def _hidden(paths: Iterable[str]) -> "list[str]":
    """Gives those paths of the host that the sandbox's own directories would cover."""
    own = [Path("/var/tmp"), *(Path("/", name) for name in OWN_DIRECTORIES)]  # noqa: S108
    return [path for path in paths if any(Path(path).is_relative_to(top) for top in own)]


def _explain(call: str) -> str:
    return (
        f"this machine does not let a sandbox be made: it refused {call}. Allow user namespaces"
        " here, or run as root; LocalDeployment(isolation='none') works without, and isolates"
        " nothing"
    )


async def _to_the_end(tasks: Collection[asyncio.Task[None]]) -> None:
    """Waits for the end of all tasks; a cancellation meanwhile is raised after it.

    Raises:
        Exception: The first error of a task, once all have ended.
    """
    cancelled: asyncio.CancelledError | None = None
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError as error:
            cancelled = error
    for task in tasks:
        task.result()
    if cancelled is not None:
        raise cancelled
