"""The namespace under development: a sandbox of its newest source, behind one address."""

import asyncio
import signal
import tempfile
import time
from pathlib import Path

from watchfiles import BaseFilter, Change, awatch

from agentix.client import RuntimeClient
from agentix.deployment import SandboxConfig
from agentix.errors import AgentixError, UsageError
from agentix.local import LocalDeployment
from agentix.local.bundle import make_runtime_bundle
from agentix.local.deployment import Isolation
from agentix.namespace_sdk.build.builders import build_closure, choose_builder
from agentix.namespace_sdk.build.pipeline import default_cache
from agentix.namespace_sdk.build.programs import machine_platform
from agentix.namespace_sdk.build.project import Project, find_wheels
from agentix.namespace_sdk.dev.proxy import Backend, Proxy
from agentix.namespace_sdk.store import write_bundle

__all__ = ["serve"]

RUNTIME = "runtime"
"""The directory of the runtime's bundle."""


async def serve(source: Path, socket: Path | None, isolation: Isolation) -> None:
    """Serve a namespace until SIGINT or SIGTERM.

    Args:
        source: The directory of the namespace.
        socket: Where to listen; in a directory of its own where it is `None`.
        isolation: How its sandboxes are kept apart.

    Raises:
        DeploymentError: The runtime cannot be laid out.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    with tempfile.TemporaryDirectory(prefix="agentix-dev-") as directory:
        place = Path(directory)
        address = socket or place / "socket"
        async with (
            LocalDeployment(isolation=isolation, directory=place) as deployment,
            Proxy(address, _print_line) as proxy,
            asyncio.TaskGroup() as tasks,
        ):
            server = DevServer(source, place, deployment, proxy, tasks)
            watcher = SourceWatcher(source, stop, tasks)
            await watcher.start()
            await server.reload()
            _print_line(f"listening on unix:{address}")
            while await watcher.wait():
                await server.reload()
            await server.close()


def _print_line(line: str) -> None:
    print(line, flush=True)


class ShippedFiles(BaseFilter):
    """Changes that can change the namespace: not of what tools and editors leave behind.

    Args:
        source: The directory that is watched.
    """

    def __init__(self, source: Path) -> None:
        super().__init__()
        self._source = source

    def __call__(self, change: Change, path: str) -> bool:
        """Return whether a change of a file matters."""
        left = path.endswith((".pyc", "~", ".swp"))
        parts = Path(path).relative_to(self._source).parts
        return not left and not any(part.startswith(".") or part == "__pycache__" for part in parts)


class SourceWatcher:
    """Changes of a source tree, noted also while nobody waits for one.

    Args:
        source: The directory that is watched.
        stop: Ends the watch.
        tasks: What holds the task that waits for the next change.
    """

    def __init__(self, source: Path, stop: asyncio.Event, tasks: asyncio.TaskGroup) -> None:
        self._changes = awatch(
            source, watch_filter=ShippedFiles(source), stop_event=stop, raise_interrupt=False
        )
        self._tasks = tasks
        self._next = tasks.create_task(self._change())

    async def start(self) -> None:
        """Return once the directory is watched."""
        await asyncio.sleep(0)  # the task's first step starts to watch

    async def wait(self) -> bool:
        """Wait for the next change; return whether there is one before the end."""
        changed = await self._next
        if changed:
            self._next = self._tasks.create_task(self._change())
        return changed

    async def _change(self) -> bool:
        return bool(await anext(self._changes, None))


class DevServer:
    """A sandbox of the newest source behind the proxy.

    Args:
        source: The directory of the namespace.
        place: A directory for bundles; who made it removes it.
        deployment: What makes sandboxes.
        proxy: What stands in front of them.
        tasks: What waits for calls that are under way in sandboxes that were replaced.
    """

    def __init__(
        self,
        source: Path,
        place: Path,
        deployment: LocalDeployment,
        proxy: Proxy,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._source = source
        self._place = place
        self._deployment = deployment
        self._proxy = proxy
        self._tasks = tasks
        self._bundle: Path | None = None
        self._retiring: list[asyncio.Task[None]] = []

    async def reload(self) -> None:
        """Make a sandbox of the source as it is now; what cannot be loaded changes nothing."""
        started = time.monotonic()
        try:
            bundle = await asyncio.to_thread(_make_bundle, self._source, self._place)
            if bundle == self._bundle:
                return
            backend = await self._start(bundle)
        except (AgentixError, OSError) as error:
            kept = " (the version before it goes on)" if self._proxy.backend else ""
            _print_line(f"cannot be loaded{kept}: {error}")
            return
        self._bundle = bundle
        previous, self._proxy.backend = self._proxy.backend, backend
        word = "loaded" if previous is None else "reloaded"
        _print_line(f"{word} in {time.monotonic() - started:.1f} s: {backend.functions}")
        if previous is not None:
            self._retiring.append(self._tasks.create_task(self._retire(previous)))

    async def _start(self, bundle: Path) -> Backend:
        """Start a sandbox and import the namespace in it.

        Raises:
            UsageError: The namespace cannot be imported or described.
        """
        config = SandboxConfig(
            image="/", runtime=str(self._place / RUNTIME), namespaces=[str(bundle)]
        )
        sandbox = await self._deployment.create(config)
        try:
            async with RuntimeClient(sandbox.runtime_url, token=sandbox.token) as client:
                (described,) = await client.namespaces(schemas=True)
            if described.schemas is None:
                raise UsageError(str(described.error))
        except BaseException:
            await self._deployment.delete(sandbox.id)
            raise
        functions = ", ".join(function.name for function in described.schemas.functions)
        return Backend(sandbox, functions)

    async def _retire(self, backend: Backend) -> None:
        await backend.close()
        await self._deployment.delete(backend.sandbox.id)

    async def close(self) -> None:
        """Release all sandboxes, without waiting for calls that are under way."""
        for task in self._retiring:
            task.cancel()
        if self._proxy.backend is not None:
            await self._proxy.backend.session.close()


def _make_bundle(source: Path, place: Path) -> Path:
    """Build the namespace as `build` does, and return its bundle, named after its content.

    Raises:
        UsageError: It cannot be built here.
        BuildError: What builds it failed.
    """
    if not (place / RUNTIME).exists():
        make_runtime_bundle(place / RUNTIME)
    project = Project.read(source)
    closure = build_closure(
        project,
        choose_builder(project).builder,
        find_wheels(project.wheels, project.source, default_cache()),
        platform=machine_platform(),
        plain_root=place / "plain",
        docker_cache=default_cache() / "docker",
    )
    bundle = place / closure.entry.name
    write_bundle(closure, bundle)
    return bundle
