"""LocalDeployment: sandboxes of this machine's own kernel, without an engine."""

import asyncio
import logging
import os
import secrets
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from agentix.client import RuntimeClient
from agentix.deployment import Deployment, Sandbox, SandboxConfig, SandboxInfo, find_ready_url
from agentix.errors import (
    AgentixError,
    DeploymentError,
    SandboxGoneError,
    SandboxNotFoundError,
    SandboxStartError,
    UsageError,
)
from agentix.linux.control import SOCKET, ControlDirectories, default_control_root, listen_unix
from agentix.local.launcher import (
    INNER_SOCKET,
    LISTENER,
    OWN_DIRECTORIES,
    REFUSED,
    REFUSED_PREFIX,
)
from agentix.local.limits import (
    Groups,
    Limits,
    host_memory,
    lasting_memory,
    make_groups,
    remove_groups,
)
from agentix.local.plan import Plan
from agentix.local.process import LaunchedProcess
from agentix.local.reference import Bundle, find_bundle, find_image

__all__ = ["Isolation", "LocalDeployment"]

logger = logging.getLogger(__name__)

Isolation = Literal["namespaces", "none"]
"""How a sandbox is kept apart: by the kernel's namespaces, or not at all."""

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
TOKEN = "agentix-token"  # noqa: S105 - the name of a file

PREFIX = "agentix-"
"""How the ids of sandboxes start, which name their hosts and control groups too."""

PROBE_TIMEOUT = 3.0
"""Seconds that a runtime may take to say that it serves."""

EXIT_PATIENCE = 1.0
"""Seconds between the end of a runtime and that of its launcher, which tells the exit code."""


@dataclass(slots=True)
class _Record:
    """A sandbox, from the moment its making begins until nothing of it is left."""

    id: str
    config: SandboxConfig
    created_at: datetime
    token: str = field(repr=False)
    start: asyncio.Task[str] | None = None
    groups: Groups = field(default_factory=Groups)
    process: LaunchedProcess | None = None
    url: str | None = None
    removal: asyncio.Task[None] | None = None

    def info(self) -> SandboxInfo:
        exit_code = None if self.process is None else self.process.exit_code
        status: Literal["starting", "running", "exited"] = "running" if self.url else "starting"
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
        """Return each bundle once, by the name of its mount."""
        named = {bundle.mount: str(bundle.path) for bundle in self.namespaces}
        return [("runtime", str(self.runtime.path)), *named.items()]


@dataclass(frozen=True, slots=True)
class _Places:
    """Directories as the sandbox sees them."""

    socket: Path
    token: Path
    mounts: Path
    workspace: Path
    temporary: Path
    home: Path


class LocalDeployment(Deployment):
    """Sandboxes by this machine's kernel alone: no engine, no daemon, no image store.

    A sandbox has its own mounts, processes, System V objects and host name, and, for
    `network="none"`, a network of its own. Its root is the task image, read-only; `/workspace`,
    `/tmp` and `/run` are its own, in memory, together at most half of its memory limit.
    `SandboxConfig.image` is `/` for the host's root, or the path of a root filesystem directory.
    `runtime` and `namespaces` are paths of bundle directories, or image references that are looked
    up in `bundles`. The network is the host's (`"host"`, the default) or `"none"`. Works as root
    and as an ordinary user, who is root in the sandbox's user namespace.

    Args:
        bundles: The directory in which the image reference `name:tag` is `<name>/<tag>`.
        isolation: `"namespaces"`, or `"none"` where the kernel forbids them: then the runtime is a
            plain child process that sees and may do all that its owner may.
        writable_root: Whether a sandbox may change its root where the task image is a directory;
            what it changes is in memory and its own. The host's root stays read-only.
        directory: Where the control directories are, with the sockets of the sandboxes; a short
            path to which only this user may write. By default `agentix` in `XDG_RUNTIME_DIR`, for
            root `/run/agentix`, and otherwise a directory of this user's in the temporary one.
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
        self._root = Path(directory or default_control_root()).resolve()
        self._control = ControlDirectories(self._root, f"{_place(_new_id())}/{SOCKET}")
        self._opening = asyncio.Lock()
        self._starting = asyncio.Semaphore(concurrent_starts or max(2, os.cpu_count() or 2))
        self._records: dict[str, _Record] = {}
        self._closed = False
        self._warned = False

    async def __aenter__(self) -> Self:
        """Make the deployment ready, and remove what owners left that are gone.

        Raises:
            DeploymentError: The directory for control directories cannot be used.
        """
        self._closed = False
        await self._open()
        if self._isolation == "none":
            logger.warning(
                "isolation is off: what runs in these sandboxes may do all that this user may"
            )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Delete every sandbox that this deployment made.

        Raises:
            DeploymentError: Something of one cannot be removed, and nothing was raised before.
        """
        self._closed = True
        try:
            await _to_the_end([self._removal(record) for record in self._records.values()])
        except DeploymentError as failure:
            if error is None:
                raise
            # What went wrong in the block says more than what went wrong after it.
            error.add_note(f"and the deployment left something behind: {failure}")
            logger.warning("the deployment left something behind: %s", failure)
        finally:
            self._control.close()

    async def _open(self) -> None:
        """Open the control directories; that may wait for what a dead owner left."""
        async with self._opening:
            if self._control.is_open:
                return
            try:
                await _to_the_end([asyncio.create_task(asyncio.to_thread(self._control.open))])
            except BaseException:
                self._control.close()
                raise

    async def create(self, config: SandboxConfig) -> Sandbox:
        """Make a sandbox and return once its runtime accepts calls.

        A call that fails or is cancelled leaves nothing behind.

        Raises:
            UsageError: The network is `bridge`, a limit that was asked for cannot be enforced
                here, or the deployment is closed.
            SandboxStartError: The runtime ended or stayed silent before it was ready.
            DeploymentError: A bundle or the task image is missing, or the kernel forbids a call
                that the sandbox needs; the message names it. Or the sandbox was deleted meanwhile.
        """
        if self._closed:
            raise UsageError("this deployment is closed: make sandboxes inside its `async with`")
        parts = self._find_parts(config)
        identity = _new_id()
        record = _Record(identity, config, datetime.now(UTC), secrets.token_urlsafe(32))
        record.start = asyncio.create_task(self._start(record, parts))
        self._records[identity] = record
        try:
            record.url = await record.start
        except BaseException:
            deleted = record.removal is not None and not _is_cancelled()
            await _to_the_end([self._removal(record)])
            if deleted:
                raise DeploymentError(f"sandbox {identity} was deleted while it started") from None
            raise
        logger.info("sandbox %s runs on %s", identity, config.image)
        return Sandbox(identity, record.url, record.token)

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
        """Refuse what this deployment cannot give."""
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
        """Start the runtime and return its URL; what it makes is noted in `record` at once."""
        await self._open()
        async with self._starting:
            control = self._control.add(_place(record.id))
            host = host_memory()
            limits = Limits.of(record.config, host)
            lasting = lasting_memory(limits.memory or host)
            try:
                record.groups = make_groups(record.id, limits, control)
                self._warn(record.groups)
                record.process = await self._launch(record, parts, control, lasting)
            except OSError as error:
                raise DeploymentError(f"a sandbox cannot be started: {error}") from error
            await self._ready(record.process, record.config.start_timeout)
        return f"unix:{control / SOCKET}"

    def _warn(self, groups: Groups) -> None:
        """Say once which defaults are not enforced."""
        if groups.refused and not self._warned:
            self._warned = True
            logger.warning("sandboxes run without default limits: %s", "; ".join(groups.refused))

    async def _launch(
        self, record: _Record, parts: _Parts, control: Path, lasting: int
    ) -> LaunchedProcess:
        """Start the launcher, which alone has the listening socket then.

        Raises:
            OSError: The socket, a directory or the process cannot be made.
        """
        places = self._places(control, parts)
        with listen_unix(control / SOCKET) as listener:
            plan = Plan(
                isolated=self._isolation == "namespaces",
                private_network=record.config.network == "none",
                hostname=record.id,
                control=str(control),
                socket=str(control / SOCKET),
                hidden=_inside(self._root, parts.image),
                listener=listener.fileno(),
                token_file=str(places.token),
                token=record.token,
                image=str(parts.image),
                writable=self._writable_root and str(parts.image) != "/",
                mounts=parts.mounts(),
                host_paths=_hidden(parts.runtime.host_paths or ()),
                lasting_memory=lasting,
                cgroups=[str(group) for group in record.groups.directories],
                directory=str(places.workspace),
                command=[str(places.mounts / "runtime/entry/bin/start")],
                environment=_environment(record.config, places),
            )
            return await LaunchedProcess.start(plan)

    def _places(self, control: Path, parts: _Parts) -> _Places:
        """Return where the sandbox sees what is its own."""
        if self._isolation == "none":
            return _lay_out(control, parts)
        temporary = Path("/tmp")  # noqa: S108 - the sandbox's own
        return _Places(
            socket=Path(INNER_SOCKET),
            token=Path("/run") / TOKEN,
            mounts=Path("/mnt"),
            workspace=Path("/workspace"),
            temporary=temporary,
            home=temporary / "home",
        )

    async def _ready(self, process: LaunchedProcess, timeout: float) -> None:
        """Wait until the runtime says that it accepts calls.

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
        """End a sandbox and remove all that was made for it; cancellation waits for that.

        Raises:
            SandboxNotFoundError: This deployment has no such sandbox (or no longer).
        """
        record = self._find(sandbox_id)
        await _to_the_end([self._removal(record)])
        logger.info("sandbox %s is deleted", sandbox_id)

    async def get(self, sandbox_id: str) -> SandboxInfo:
        """Return the state of one sandbox of this deployment, and ask its runtime for it.

        A runtime that lives and does not answer within 3 seconds is `unresponsive`.

        Raises:
            SandboxNotFoundError: This deployment has no such sandbox (or no longer).
        """
        record = self._find(sandbox_id)
        if record.info().status != "running" or await _answers(record):
            return record.info()
        found = record.info()
        return replace(found, status="unresponsive") if found.status == "running" else found

    async def list(self) -> Sequence[SandboxInfo]:
        """Return the state of every sandbox of this deployment, the oldest first.

        No runtime is asked, so none is `unresponsive`: that is what `get` tells.
        """
        return [record.info() for record in self._records.values() if record.removal is None]

    def _find(self, sandbox_id: str) -> _Record:
        record = self._records.get(sandbox_id)
        if record is None or record.removal is not None:
            raise SandboxNotFoundError(f"this deployment has no sandbox {sandbox_id!r}")
        return record

    def _removal(self, record: _Record) -> asyncio.Task[None]:
        """Return the one removal of a sandbox, which the first that asks for it starts."""
        if record.removal is None:
            record.removal = asyncio.create_task(self._remove(record))
        return record.removal

    async def _remove(self, record: _Record) -> None:
        try:
            if record.start is not None:
                record.start.cancel()
                await asyncio.gather(record.start, return_exceptions=True)
            if record.process is not None:
                await record.process.end()
            await remove_groups(record.groups)
            await asyncio.to_thread(self._control.remove, _place(record.id))
        finally:
            del self._records[record.id]


async def _answers(record: _Record) -> bool:
    """Whether a runtime says that it serves; one that has ended gets time to be seen off."""
    assert record.url is not None
    assert record.process is not None
    try:
        async with asyncio.timeout(PROBE_TIMEOUT), RuntimeClient(record.url) as client:
            await client.health()
    except SandboxGoneError:
        await record.process.exited(EXIT_PATIENCE)
        return False
    except (AgentixError, TimeoutError):
        return False
    return True


def _new_id() -> str:
    return f"{PREFIX}{secrets.token_hex(6)}"


def _place(sandbox_id: str) -> str:
    """Return the name of a sandbox's directory; each byte is one less for the root's path."""
    return sandbox_id.removeprefix(PREFIX)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _environment(config: SandboxConfig, places: _Places) -> dict[str, str]:
    """Return the environment of the runtime: nothing of the owner's own."""
    environment = {
        "PATH": DEFAULT_PATH,
        "HOME": str(places.home),
        "LANG": "C.UTF-8",
        "TMPDIR": str(places.temporary),
        **config.env,
        "AGENTIX_BIND_FD": str(LISTENER),
        "AGENTIX_URL": f"unix:{places.socket}",
        "AGENTIX_TOKEN_FILE": str(places.token),
        "AGENTIX_MOUNT_ROOT": str(places.mounts),
        "AGENTIX_UPLOAD_ROOT": str(places.workspace),
    }
    if config.user is not None:
        environment["AGENTIX_EXEC_USER"] = config.user
    return environment


def _lay_out(control: Path, parts: _Parts) -> _Places:
    """Make the directories of a sandbox without isolation."""
    places = _Places(
        socket=control / SOCKET,
        token=control / TOKEN,
        mounts=control / "mnt",
        workspace=control / "workspace",
        temporary=control / "tmp",
        home=control / "home",
    )
    for directory in (places.mounts, places.workspace, places.temporary, places.home):
        directory.mkdir()
    for name, source in parts.mounts():
        (places.mounts / name).symlink_to(source)
    return places


def _inside(directory: Path, image: Path) -> str:
    """Return where a task image shows a directory of the host; empty where it does not."""
    return f"/{directory.relative_to(image)}" if directory.is_relative_to(image) else ""


def _hidden(paths: Iterable[str]) -> "list[str]":
    """Return those paths of the host that the sandbox's own directories would cover."""
    own = [Path("/var/tmp"), *(Path("/", name) for name in OWN_DIRECTORIES)]  # noqa: S108
    return [path for path in paths if any(Path(path).is_relative_to(top) for top in own)]


def _explain(call: str) -> str:
    return (
        f"this machine does not let a sandbox be made: it refused {call}. Allow user namespaces"
        " here, or run as root; LocalDeployment(isolation='none') works without, and isolates"
        " nothing"
    )


async def _to_the_end(tasks: Collection[asyncio.Task[None]]) -> None:
    """Wait for the end of all tasks; a cancellation meanwhile is raised after it.

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
