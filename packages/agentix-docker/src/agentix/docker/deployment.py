"""The Docker deployment: sandboxes as containers (architecture: Deployment)."""

import asyncio
import logging
import math
import secrets
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Literal, Self

import aiodocker

from agentix.client import RuntimeClient
from agentix.deployment import (
    DEFAULT_PIDS,
    Deployment,
    Sandbox,
    SandboxConfig,
    SandboxInfo,
    default_memory,
    find_ready_url,
)
from agentix.docker.cancellation import finish, together
from agentix.docker.container import (
    HANDOFF_TARGET,
    TASK_CAPABILITIES,
    ContainerPlan,
    Control,
    Network,
    SandboxImages,
    TcpControl,
    UnixControl,
    container_config,
)
from agentix.docker.engine import (
    ContainerDetails,
    ContainerState,
    Death,
    Engine,
    EngineImage,
    NotFoundError,
    RefusedError,
)
from agentix.docker.keeper import Keeper
from agentix.docker.labels import DEPLOYMENT, OWNER, ROLE, sandbox_labels
from agentix.docker.network import SandboxNetwork
from agentix.docker.output import Output
from agentix.docker.owner import Owner
from agentix.docker.record import SandboxRecord
from agentix.docker.volumes import ClosureVolumes
from agentix.errors import (
    DeploymentError,
    SandboxGoneError,
    SandboxNotFoundError,
    SandboxStartError,
    UsageError,
)
from agentix.linux.control import SOCKET, ControlDirectories, default_control_root, listen_unix
from agentix.linux.handoff import Handoff
from agentix.wire import DEFAULT_PORT

__all__ = ["DockerDeployment"]

logger = logging.getLogger(__name__)

RUNTIME_MARK = "/nix/entry/bin/start"
NAMESPACE_MARK = "/nix/entry/manifest.json"
EVENT_DELAY = 5.0
"""Seconds that the engine's report of an end may come later than the end itself."""
RECONNECT_DELAY = 1.0
"""Seconds until the engine's events are asked for again after the connection broke."""
ANSWER_TIMEOUT = 3.0
"""Seconds that a runtime has to answer when its sandbox's state is asked for."""
ORPHAN_GRACE = 5.0
"""Seconds that a sandbox which nobody guards has until it is removed: an owner that lives holds it
again meanwhile, should its keeper have been removed."""
NETWORK_TRIES = 3
"""How often a sandbox is started whose network is removed by its last user meanwhile."""


class _NotSharedError(DeploymentError):
    """The engine and this process do not see the same control directory."""


class _NetworkGoneError(SandboxStartError):
    """The last user of the network of ours removed it before this sandbox was on it."""


class DockerDeployment(Deployment):
    """Makes sandboxes on a Docker engine.

    A closure is copied once per image digest into a volume that stays on the engine as a cache
    (see `prune`). A keeper, a container beside the sandboxes, holds a connection of this process:
    when the process is gone, however it ended and whatever its sandboxes do, the keeper kills them
    `lease` seconds later, and the engine removes their containers.

    Args:
        docker: The client of the engine; by default a new one for the engine that `DOCKER_HOST`,
            the Docker context or the usual socket names. A given client stays open.
        control: How runtimes are reached: over a Unix socket that is made here and handed to the
            sandbox, or over TCP. By default a socket where the engine is this host's; TCP
            elsewhere.
        network: The network of sandboxes whose configuration names none. `bridge` isolates a
            sandbox from the host's loopback and from other sandboxes, `host` is the host's own
            network, `none` has only a loopback of its own.
        publish_host: The address of the engine's host at which TCP ports are published; it must
            be reachable from here. Never a wildcard.
        lease: Seconds that a sandbox outlives its owner.
        pull: Whether a missing image is pulled.
        capabilities: The capabilities that sandboxes keep.
        concurrent_creations: How many sandboxes are made at a time; by default as many as the
            engine has processors. It does not limit how many run.
        control_root: The directory for sockets; short, and on a local file system.
    """

    def __init__(
        self,
        docker: aiodocker.Docker | None = None,
        *,
        control: Literal["unix", "tcp"] | None = None,
        network: Network = "bridge",
        publish_host: str = "127.0.0.1",
        lease: float = 10.0,
        pull: bool = True,
        capabilities: Sequence[str] = TASK_CAPABILITIES,
        concurrent_creations: int | None = None,
        control_root: Path | None = None,
    ) -> None:
        if publish_host in ("", "0.0.0.0", "::"):  # noqa: S104
            raise UsageError(f"publish_host={publish_host!r}: give one address, not all of them")
        if not 0 < lease < math.inf:
            raise UsageError(f"lease={lease!r} is not a number of seconds above 0")
        if concurrent_creations is not None and concurrent_creations < 1:
            raise UsageError(f"concurrent_creations={concurrent_creations!r} is not 1 or more")
        self._docker = docker
        self._asked_control = control
        self._network: Network = network
        self._publish_host = publish_host
        self._lease = lease
        self._pull = pull
        self._capabilities = tuple(capabilities)
        self._concurrent_creations = concurrent_creations
        self._owner = Owner.current()
        self._directories = ControlDirectories(control_root or default_control_root())
        self._id = secrets.token_hex(8)
        self._records: dict[str, SandboxRecord] = {}
        self._creations: set[asyncio.Task[Sandbox]] = set()
        self._state: Literal["new", "open", "closed"] = "new"

    async def __aenter__(self) -> Self:
        """Reach the engine, and remove what owners that are gone left behind on it.

        Raises:
            UsageError: The deployment was entered before.
            DeploymentError: No engine answers, or control directories can not be made.
        """
        if self._state != "new":
            raise UsageError("a DockerDeployment can be entered once: make another")
        self._engine = Engine(self._docker) if self._docker else Engine.from_environ()
        try:
            await self._open()
        except BaseException:
            self._directories.close()
            await self._close_engine()
            raise
        self._state = "open"
        return self

    async def __aexit__(self, *exception: Any) -> None:
        """Delete every sandbox that this deployment made; volumes stay as a cache.

        An error of the block stays the one that is raised: what fails here is a note on it.
        """
        self._state = "closed"
        try:
            await finish(self._close())
        except DeploymentError as failure:
            error = exception[1]
            if error is None:
                raise
            error.add_note(f"and the deployment was not left cleanly: {failure}")
            logger.warning("the deployment was not left cleanly: %s", failure)

    async def create(self, config: SandboxConfig) -> Sandbox:
        """Makes a sandbox and returns once its runtime accepts calls.

        A call that fails or is cancelled leaves no container and no control directory behind; a
        volume that it filled stays.

        Raises:
            UsageError: The configuration asks for what this deployment or the engine can not
                give, or the deployment is not open.
            SandboxStartError: The sandbox ended or stayed silent before it was ready.
            DeploymentError: An image is missing, or the engine failed.
        """
        self._require_open()
        creation = asyncio.create_task(self._create(config))
        self._creations.add(creation)
        creation.add_done_callback(self._creations.discard)
        try:
            return await creation
        except asyncio.CancelledError:
            if not creation.cancelled() and creation.exception() is None:
                # The deployment may have been left meanwhile, and have removed it.
                record = self._records.pop(creation.result().id, None)
                if record is not None:
                    await finish(self._discard(record))
            if self._state == "closed":
                raise DeploymentError(
                    "the deployment was left while the sandbox was made"
                ) from None
            raise

    async def delete(self, sandbox_id: str) -> None:
        """Kills a sandbox and removes all that was made for it; cancellation waits for that.

        Raises:
            SandboxNotFoundError: This deployment has no such sandbox (or no longer).
            DeploymentError: The engine failed; the sandbox can be deleted again.
        """
        record = self._record(sandbox_id)
        del self._records[sandbox_id]
        await finish(self._discard(record))

    async def get(self, sandbox_id: str) -> SandboxInfo:
        """Return the state of one sandbox of this deployment, whose runtime is asked.

        Raises:
            SandboxNotFoundError: This deployment has no such sandbox (or no longer).
            DeploymentError: The engine failed.
        """
        record = self._record(sandbox_id)
        await self._refresh([record])
        answers = not record.ready or record.ended.is_set() or await _answers(record)
        return record.info(answers=answers)

    async def list(self) -> Sequence[SandboxInfo]:
        """Return the state of every sandbox of this deployment, the oldest first.

        Their runtimes are not asked, so that none shows as `unresponsive` here.

        Raises:
            DeploymentError: The engine failed.
        """
        self._require_open()
        await self._refresh([*self._records.values()])
        return [record.info() for record in self._records.values()]

    async def prune(self, *references: str) -> Sequence[str]:
        """Removes closure volumes that no container uses, whichever deployment made them.

        Call it while no sandbox is being made from these images.

        Args:
            references: The runtime and namespace images whose volumes are meant; all volumes on
                the engine where none is given.

        Returns:
            The names of the volumes that were removed.

        Raises:
            DeploymentError: An image is missing, or the engine failed.
        """
        self._require_open()
        if not references:
            return await self._volumes.prune()
        images = await together(*map(self._engine.image, references))
        return await self._volumes.prune([image.digest for image in images])

    async def _open(self) -> None:
        self._facts = facts = await self._engine.facts()
        self._control = self._asked_control or ("unix" if facts.shares_sockets else "tcp")
        self._creating = asyncio.Semaphore(self._concurrent_creations or facts.processors)
        self._volumes = ClosureVolumes(self._engine)
        self._keeper = Keeper(self._engine, self._id, self._lease)
        self._network_of_ours = SandboxNetwork(self._engine)
        await self._keeper.tidy()
        orphans = await self._reap()
        if self._control == "unix":
            await finish(asyncio.to_thread(self._directories.open))
        self._reaping = asyncio.create_task(self._reap_later(orphans))
        self._watch = asyncio.create_task(self._watch_deaths(facts.now))

    async def _reap(self) -> Sequence[ContainerState]:
        """Remove the sandboxes whose owners are gone, also those that were never started.

        Returns:
            Those whose owners cannot be looked up from here, and are not known to live.
        """
        unknown = []
        found = await self._engine.containers({ROLE: "sandbox"})
        living = await self._keeper.living() if found else frozenset()
        for container in found:
            owner = Owner.parse(container.labels.get(OWNER, ""))
            lives = None if owner is None else owner.lives()
            if lives is False:
                await self._remove_orphan(container)
            elif lives is None and container.labels.get(DEPLOYMENT) not in living:
                unknown.append(container)
        return unknown

    async def _reap_later(self, orphans: Iterable[ContainerState]) -> None:
        """Remove the sandboxes that nobody guards, unless somebody does so after all."""
        if not orphans:
            return
        await asyncio.sleep(ORPHAN_GRACE)
        try:
            living = await self._keeper.living()
            for container in orphans:
                if container.labels.get(DEPLOYMENT) not in living:
                    await self._remove_orphan(container)
        except DeploymentError as error:
            logger.warning("sandboxes without an owner were not removed: %s", error)

    async def _remove_orphan(self, container: ContainerState) -> None:
        logger.info("removing sandbox %s: its owner is gone", container.name)
        await self._engine.remove_container(container.name)

    async def _close(self) -> None:
        for creation in self._creations:
            creation.cancel()
        if self._creations:
            await asyncio.wait(self._creations)
        records = [self._records.pop(sandbox_id) for sandbox_id in [*self._records]]
        try:
            outcomes = await asyncio.gather(*map(self._discard, records), return_exceptions=True)
        finally:
            self._watch.cancel()
            await asyncio.wait([self._watch, self._reaping])
            await self._volumes.close()
            await self._keeper.close()
            await self._network_of_ours.remove_unused()
            await asyncio.to_thread(self._directories.close)
            await self._close_engine()
        for failure in filter(None, outcomes):
            raise failure

    async def _close_engine(self) -> None:
        if self._docker is None:
            await self._engine.close()

    def _require_open(self) -> None:
        if self._state != "open":
            raise UsageError("the deployment is not open: use it in an `async with` block")

    def _record(self, sandbox_id: str) -> SandboxRecord:
        self._require_open()
        try:
            return self._records[sandbox_id]
        except KeyError:
            raise SandboxNotFoundError(f"this deployment has no sandbox {sandbox_id!r}") from None

    async def _create(self, config: SandboxConfig) -> Sandbox:
        network = config.network or self._network
        async with self._creating:
            self._refuse_unreachable(network)
            images = await self._images(config)
            try:
                return await self._make(config, network, images)
            except _NotSharedError as error:
                if self._asked_control == "unix":
                    raise
                logger.warning("reaching runtimes over TCP from now on: %s", error)
                self._control = "tcp"
            self._refuse_unreachable(network)
            return await self._make(config, network, images)

    def _refuse_unreachable(self, network: Network) -> None:
        if network == "none" and self._control == "tcp":
            raise UsageError(
                "network='none' needs control over a Unix socket, which needs an engine on this"
                " host that sees this process's files: use network='bridge'"
            )

    async def _images(self, config: SandboxConfig) -> SandboxImages:
        """Finds the images on the engine, and has the volumes of their closures filled."""
        references = [config.image, config.runtime, *config.namespace_images]
        task, runtime, *namespaces = await together(*map(self._image, references))
        await together(
            self._volumes.ensure(runtime, RUNTIME_MARK),
            *(self._volumes.ensure(namespace, NAMESPACE_MARK) for namespace in namespaces),
        )
        return SandboxImages(task, runtime, namespaces)

    async def _image(self, reference: str) -> EngineImage:
        try:
            return await self._engine.image(reference)
        except NotFoundError as error:
            if not self._pull:
                raise DeploymentError(
                    f"image {reference!r} is not on the engine: load or pull it"
                ) from error
        try:
            await self._engine.pull(reference)
            return await self._engine.image(reference)
        except DeploymentError as error:
            raise DeploymentError(
                f"image {reference!r} is not on the engine, and pulling it failed: {error}"
            ) from error

    async def _make(
        self, config: SandboxConfig, network: Network, images: SandboxImages
    ) -> Sandbox:
        """Make a container and wait for its runtime; take all back where that fails."""
        record = SandboxRecord(f"agentix-{secrets.token_hex(8)}", config.image)
        record.token = secrets.token_urlsafe(32)
        self._records[record.id] = record
        try:
            plan = await self._plan(record, config, network, images)
            record.url = await self._boot(record, plan)
        except BaseException:
            await finish(self._take_back(record))
            raise
        record.ready = True
        return Sandbox(record.id, record.url, record.token)

    async def _plan(
        self,
        record: SandboxRecord,
        config: SandboxConfig,
        network: Network,
        images: SandboxImages,
    ) -> ContainerPlan:
        memory, pids = config.memory, config.pids
        return ContainerPlan(
            config=config,
            network=await self._network_of_ours.ensure() if network == "bridge" else network,
            images=images,
            control=self._make_control(record, network),
            memory=default_memory(self._facts.memory) if memory == "default" else memory,
            pids=DEFAULT_PIDS if pids == "default" else pids,
            labels=sandbox_labels(self._id, self._owner),
            capabilities=self._capabilities,
        )

    def _make_control(self, record: SandboxRecord, network: Network) -> Control:
        if self._control == "tcp":
            return TcpControl(self._publish_host, network)
        directory = self._directories.add(record.id)
        try:
            listener = listen_unix(directory / SOCKET)
            record.handoff = Handoff(directory / "handoff", listener)
        except OSError as error:
            raise DeploymentError(f"control directory {directory}: {error}") from error
        return UnixControl(directory / SOCKET, record.handoff.directory)

    async def _boot(self, record: SandboxRecord, plan: ContainerPlan) -> str:
        """Make the container, have it guarded, start it, and return the URL of its runtime."""
        await together(
            self._keeper.hold(plan.images.runtime, record.id),
            self._make_container(record.id, plan),
        )
        for _ in range(NETWORK_TRIES):
            try:
                return await self._ready(record, plan)
            except _NetworkGoneError:
                # The engine has removed the container, as it removes all that cannot start.
                await self._network_of_ours.ensure()
                await self._make_container(record.id, plan)
        return await self._ready(record, plan)

    async def _ready(self, record: SandboxRecord, plan: ContainerPlan) -> str:
        """Start the container, and return the URL of its runtime once that accepts calls."""
        async with self._engine.output_of(record.id) as messages:
            output = Output(messages)
            try:
                async with asyncio.timeout(plan.config.start_timeout):
                    return await self._start(record, plan, output)
            except TimeoutError:
                raise SandboxStartError(
                    f"sandbox {record.id} of image {record.image!r} was not ready within"
                    f" {plan.config.start_timeout:g} s",
                    output=output.tail,
                ) from None

    async def _make_container(self, name: str, plan: ContainerPlan) -> None:
        try:
            await finish(self._engine.create_container(name, container_config(plan)))
        except RefusedError as error:
            if "bind source path does not exist" in str(error):
                raise _NotSharedError(
                    f"the engine does not see this host's files: {error}"
                ) from error
            raise UsageError(f"the engine refuses the configuration: {error}") from error

    async def _start(self, record: SandboxRecord, plan: ContainerPlan, output: Output) -> str:
        """Start the container and return the URL at which this process reaches its runtime."""
        # Standard input ends with the block: what got no token by then ends itself.
        async with self._engine.open_input(record.id) as program:
            await self._start_container(record.id, plan)
            details = await self._engine.container_details(record.id)
            if await self._keeper.guard(record.id, details):
                await program.write(f"{record.token}\n".encode())
                url = await self._ready_url(record, output)
                if url is not None:
                    return self._reachable_url(plan.control, details, url)
        await output.drain()
        await record.wait_ended(EVENT_DELAY)
        if record.handoff is not None and not record.handoff.done and _failed_to_bind(output):
            raise _NotSharedError(f"the sandbox cannot reach {record.handoff.directory}")
        raise SandboxStartError(
            f"sandbox {record.id} of image {record.image!r} ended with exit code"
            f" {record.exit_code} before it was ready",
            record.exit_code,
            output.tail,
        )

    async def _start_container(self, name: str, plan: ContainerPlan) -> None:
        try:
            await finish(self._engine.start_container(name))
        except DeploymentError as error:
            message = f"sandbox {name} cannot start: {error}"
            gone = await self._engine.network(plan.network) is None
            raise (_NetworkGoneError if gone else SandboxStartError)(message) from error

    async def _ready_url(self, record: SandboxRecord, output: Output) -> str | None:
        """Return the URL that the runtime says it listens on, or `None` where it ended first."""
        handoff = record.handoff
        handing = None if handoff is None else asyncio.create_task(handoff.serve())
        try:
            async with aclosing(output.lines()) as lines:
                return await find_ready_url(lines)
        finally:
            if handing is not None:
                handing.cancel()
                await asyncio.gather(handing, return_exceptions=True)

    def _reachable_url(self, control: Control, details: ContainerDetails, url: str) -> str:
        """Return the URL at which this process reaches a runtime that says it listens at `url`."""
        match control:
            case UnixControl():
                return f"unix:{control.socket}"
            case TcpControl(network="host"):
                port = int(url.rpartition(":")[2])
            case TcpControl():
                port = details.ports[DEFAULT_PORT]
        host = f"[{self._publish_host}]" if ":" in self._publish_host else self._publish_host
        return f"http://{host}:{port}"

    async def _take_back(self, record: SandboxRecord) -> None:
        """Undo a creation that failed; its own failure must not hide the first."""
        self._records.pop(record.id, None)
        try:
            await self._discard(record)
        except DeploymentError as error:
            logger.warning("sandbox %s was not removed: %s", record.id, error)

    async def _discard(self, record: SandboxRecord) -> None:
        """Remove all that was made for a sandbox; where that fails it can be deleted again."""
        if record.handoff is not None:
            record.handoff.close()
        try:
            await self._engine.remove_container(record.id)
        except DeploymentError:
            if self._state == "open":
                self._records[record.id] = record
            raise
        await self._keeper.drop(record.id)
        await asyncio.to_thread(self._directories.remove, record.id)

    async def _refresh(self, records: Iterable[SandboxRecord]) -> None:
        """Notes which sandboxes have ended, should the engine's events be late."""
        found = await self._engine.containers({DEPLOYMENT: self._id})
        running = {container.name for container in found if container.running}
        for record in records:
            if record.ready and record.id not in running and not record.ended.is_set():
                await record.wait_ended(EVENT_DELAY)
                record.end(None)

    async def _watch_deaths(self, since: str) -> None:
        """Notes the ends of sandboxes as the engine reports them."""
        while True:
            try:
                async with aclosing(self._engine.deaths({DEPLOYMENT: self._id}, since)) as deaths:
                    async for death in deaths:
                        since = death.at
                        self._note(death)
            except DeploymentError as error:
                logger.warning("the engine's events broke off: %s", error)
            await asyncio.sleep(RECONNECT_DELAY)

    def _note(self, death: Death) -> None:
        record = self._records.get(death.name)
        if record is None or record.ended.is_set():
            return
        record.end(death.exit_code)
        if record.ready:
            logger.warning("sandbox %s ended with exit code %d", record.id, death.exit_code)


async def _answers(record: SandboxRecord) -> bool:
    """Return whether a sandbox's runtime answers; wait for the end of one that is gone."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + ANSWER_TIMEOUT
    try:
        async with RuntimeClient(record.url, token=record.token) as client:
            await client.health(timeout=ANSWER_TIMEOUT)
    except SandboxGoneError:
        if loop.time() < give_up:  # it was refused, as by a socket whose runtime has ended
            await record.wait_ended(EVENT_DELAY)
        return False
    return True


def _failed_to_bind(output: Output) -> bool:
    """Return whether a runtime says that it got no listening socket."""
    return HANDOFF_TARGET in output.tail
