"""The requests that a deployment makes to a Docker engine, typed; untyped JSON ends here."""

import json
import os
import sys
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

import aiodocker
import aiohttp
from aiodocker.events import DockerEvents
from aiodocker.stream import Stream
from aiodocker.volumes import DockerVolume

from agentix.errors import DeploymentError
from agentix.linux.forks import closed_in_forks

__all__ = [
    "ConflictError",
    "ContainerDetails",
    "ContainerState",
    "Death",
    "Engine",
    "EngineFacts",
    "EngineImage",
    "ExecStream",
    "NetworkDetails",
    "NotFoundError",
    "RefusedError",
]


class NotFoundError(DeploymentError):
    """The engine has no such image, container or volume (status 404)."""


class ConflictError(DeploymentError):
    """The name is taken, the thing is in use, or it is being removed already (status 409)."""


class RefusedError(DeploymentError):
    """The engine finds fault with the request itself (status 400)."""


STATUS_ERRORS: Mapping[int, type[DeploymentError]] = {
    400: RefusedError,
    404: NotFoundError,
    409: ConflictError,
}


@dataclass(frozen=True)
class EngineFacts:
    """What a deployment needs to know of an engine."""

    processors: int
    """How many processors it has."""
    memory: int
    """How much memory it has, in bytes."""
    shares_sockets: bool
    """Whether a Unix socket of this process can be handed to a container."""
    now: str
    """The engine's own clock at the time of asking, as `Engine.deaths` takes it."""


@dataclass(frozen=True)
class EngineImage:
    """An image on the engine."""

    reference: str
    """The reference that it was asked for by."""
    digest: str
    """The digest that identifies it: 64 hexadecimal digits."""
    user: str
    """Its `USER`; empty where it has none."""


@dataclass(frozen=True)
class Death:
    """The end of a container's processes."""

    name: str
    """The container's name."""
    exit_code: int
    """Its exit code; 128 and the signal's number where a signal ended it."""
    at: str
    """When it happened, as `Engine.deaths` takes it for `since`."""


@dataclass(frozen=True)
class ContainerState:
    """A container, as a listing tells of it."""

    name: str
    """Its name, without a slash."""
    labels: Mapping[str, str]
    """Its labels."""
    running: bool
    """Whether its processes live."""


@dataclass(frozen=True)
class ContainerDetails:
    """A container, as the engine describes it."""

    id: str
    """Its id: 64 hexadecimal digits."""
    pid: int
    """Its first process, as the engine's host counts it; 0 where none runs."""
    ports: Mapping[int, int]
    """The ports of the host that its TCP ports are published at."""
    labels: Mapping[str, str]
    """Its labels."""


@dataclass(frozen=True)
class NetworkDetails:
    """A network, as the engine describes it."""

    id: str
    """Its id."""
    labels: Mapping[str, str]
    """Its labels."""
    options: Mapping[str, str]
    """The options of its driver."""


class ExecStream:
    """A program that runs in a container, with both ends of its standard streams.

    Args:
        what: What it is, for error messages.
        stream: The connection to it.
    """

    def __init__(self, what: str, stream: Stream) -> None:
        self._what = what
        self._stream = stream
        self.output = _messages(what, stream)
        """Pairs of a file descriptor (1 or 2) and some bytes, until the program ends."""

    async def write(self, data: bytes) -> None:
        """Write to standard input.

        Raises:
            ConflictError: The connection is gone.
        """
        try:
            await self._stream.write_in(data)
        # The client asserts that there is a connection (aiodocker 0.27: Stream.write_in).
        except (OSError, RuntimeError, AssertionError) as error:
            raise ConflictError(f"writing to {self._what}: the connection is gone") from error


class Engine:
    """A Docker engine.

    Every method raises `NotFoundError`, `ConflictError`, `RefusedError` or plain `DeploymentError`.
    """

    def __init__(self, docker: aiodocker.Docker) -> None:
        self._docker = docker

    @classmethod
    def from_environ(cls) -> Self:
        """Reaches the engine that `DOCKER_HOST`, the Docker context or the usual socket names."""
        try:
            return cls(aiodocker.Docker())
        except (AssertionError, ValueError, OSError) as error:
            raise DeploymentError(
                "no Docker engine: DOCKER_HOST is not set and there is no /var/run/docker.sock"
            ) from error

    async def close(self) -> None:
        """Closes the connections to the engine."""
        await self._docker.close()

    async def facts(self) -> EngineFacts:
        """Asks the engine about itself."""
        with _translated("the Docker engine does not answer"):
            info = await self._docker.system.info()
        return EngineFacts(
            processors=max(1, int(info.get("NCPU", 1))),
            memory=int(info["MemTotal"]),
            shares_sockets=self._shares_sockets(info),
            now=str(int(datetime.fromisoformat(info["SystemTime"]).timestamp())),
        )

    def _shares_sockets(self, info: Mapping[str, Any]) -> bool:
        """Return whether the engine runs on this kernel; whether it sees our files, a try shows."""
        return (
            type(self._docker.connector) is aiohttp.UnixConnector
            and sys.platform == "linux"
            and info.get("KernelVersion") == os.uname().release
        )

    async def image(self, reference: str) -> EngineImage:
        """Looks an image up."""
        with _translated(f"image {reference!r}"):
            found = await self._docker.images.inspect(reference)
        digest = found["Id"].removeprefix("sha256:")
        return EngineImage(reference, digest, (found.get("Config") or {}).get("User") or "")

    async def pull(self, reference: str) -> None:
        """Fetches an image from its registry."""
        with _translated(f"pulling image {reference!r}"):
            await self._docker.images.pull(reference)

    async def create_container(self, name: str, config: Mapping[str, Any]) -> None:
        """Makes a container, and whatever volume it names that is not there yet."""
        with _translated(f"creating container {name}"):
            await self._docker.containers.create(dict(config), name=name)

    async def container_exists(self, name: str) -> bool:
        """Tells whether a container has been made completely."""
        try:
            with _translated(f"container {name}"):
                await self._docker.containers.get(name)
        except NotFoundError:
            return False
        return True

    async def start_container(self, name: str) -> None:
        """Starts a container."""
        with _translated(f"starting container {name}"):
            await self._docker.containers.container(name).start()

    async def container_details(self, name: str) -> ContainerDetails:
        """Describe a container."""
        with _translated(f"container {name}"):
            found = await self._docker.containers.get(name)
        published = found["NetworkSettings"]["Ports"] or {}
        ports = {
            int(port.partition("/")[0]): int(bindings[0]["HostPort"])
            for port, bindings in published.items()
            if bindings and port.endswith("/tcp")
        }
        labels = found["Config"]["Labels"] or {}
        return ContainerDetails(found["Id"], found["State"]["Pid"], ports, labels)

    async def remove_container(self, name: str) -> None:
        """Kills a container and removes it, with its anonymous volumes; returns once it is gone."""
        container = self._docker.containers.container(name)
        try:
            with _translated(f"removing container {name}"):
                await container.delete(force=True, v=True)
        except NotFoundError:
            return
        except ConflictError:
            await self._wait_until_removed(name)

    async def _wait_until_removed(self, name: str) -> None:
        try:
            with _translated(f"waiting until container {name} is removed"):
                await self._docker.containers.container(name).wait(condition="removed")
        except NotFoundError:
            return

    async def wait_until_stopped(self, name: str) -> None:
        """Return once a container does not run."""
        with _translated(f"waiting for container {name}"):
            await self._docker.containers.container(name).wait(condition="not-running")

    async def containers(self, labels: Mapping[str, str]) -> list[ContainerState]:
        """Lists the containers, running or not, that carry all of `labels`."""
        return await self._containers({"label": _label_filter(labels)})

    async def containers_with_volume(self, volume: str) -> list[ContainerState]:
        """Lists the containers, running or not, that use a volume."""
        return await self._containers({"volume": [volume]})

    async def _containers(self, filters: Mapping[str, list[str]]) -> list[ContainerState]:
        with _translated("listing containers"):
            found = await self._docker.containers.list(all=True, filters=json.dumps(filters))
        return [_container_state(container._container) for container in found]

    async def container_file_exists(self, name: str, path: str) -> bool:
        """Tells whether a container, which need not run, has something at `path`."""
        try:
            with _translated(f"{path} of container {name}"):
                await self._docker.containers.container(name).get_archive(path)
        except NotFoundError:
            return False
        return True

    @asynccontextmanager
    async def output_of(self, name: str) -> AsyncIterator[AsyncIterator[tuple[int, bytes]]]:
        """Attaches to what a container prints from now on, for the length of the block.

        Yields:
            Pairs of a file descriptor (1 or 2) and some bytes, until the container ends.
        """
        stream = self._docker.containers.container(name).attach(stdout=True, stderr=True)
        async with self._open(name, stream):
            yield _messages(name, stream)

    @asynccontextmanager
    async def open_input(self, name: str) -> AsyncIterator[ExecStream]:
        """Attach to the standard input of a container that is not started yet.

        It ends with the block. The connection is not the one of `output_of`: where both are one,
        the engine closes it when standard output ends, and what is left of standard error is lost.
        """
        stream = self._docker.containers.container(name).attach(stdin=True)
        async with self._open(name, stream):
            yield ExecStream(f"container {name}", stream)

    @asynccontextmanager
    async def _open(self, name: str, stream: Stream) -> AsyncIterator[None]:
        """Keep a connection for the length of the block, in this process and none of its forks."""
        with _translated(f"attaching to container {name}"):
            await stream._init()
        try:
            with closed_in_forks(_descriptor(stream)):
                yield
        finally:
            await stream.close()

    @asynccontextmanager
    async def executing(self, name: str, command: Sequence[str]) -> AsyncIterator[ExecStream]:
        """Run a program in a running container; its standard input ends with the block."""
        what = f"a program in container {name}"
        with _translated(what):
            execution = await self._docker.containers.container(name).exec(command, stdin=True)
        stream = execution.start(detach=False)
        async with self._open(name, stream):
            yield ExecStream(what, stream)

    async def execute(self, name: str, command: Sequence[str]) -> str:
        """Run a program in a running container and return what it printed."""
        async with self.executing(name, command) as stream:
            return b"".join([data async for _, data in stream.output]).decode(errors="replace")

    async def network(self, name: str) -> NetworkDetails | None:
        """Describe a network, or return `None` where there is none of that name."""
        try:
            with _translated(f"network {name}"):
                found = await self._docker._query_json(f"networks/{name}")
        except NotFoundError:
            return None
        return NetworkDetails(found["Id"], found["Labels"] or {}, found["Options"] or {})

    async def create_network(self, name: str, config: Mapping[str, object]) -> None:
        """Make a network."""
        with _translated(f"creating network {name}"):
            await self._docker.networks.create({**config, "Name": name})

    async def remove_network(self, name: str) -> None:
        """Remove a network.

        Raises:
            DeploymentError: A container is on it (status 403 or 409).
        """
        with _translated(f"removing network {name}"):
            async with self._docker._query(f"networks/{name}", method="DELETE"):
                pass

    async def remove_volume(self, name: str) -> None:
        """Removes a volume, if it is there.

        Raises:
            ConflictError: A container uses it, or is being made with it.
        """
        with suppress(NotFoundError), _translated(f"removing volume {name}"):
            await DockerVolume(self._docker, name).delete()  # type: ignore[no-untyped-call]

    async def deaths(self, labels: Mapping[str, str], since: str) -> AsyncGenerator[Death, None]:
        """Reports the end of every container that carries all of `labels`, as it happens.

        Args:
            labels: Which containers.
            since: The engine's time from which on, in seconds of the epoch, with a fraction or
                without: `EngineFacts.now` or `Death.at`.

        Yields:
            The ends, until the connection breaks.
        """
        wanted = {"event": ["die"], "label": _label_filter(labels)}
        source = DockerEvents(self._docker)  # type: ignore[no-untyped-call]
        channel = source.subscribe(since=since, filters=json.dumps(wanted))  # type: ignore[no-untyped-call]
        try:
            while (event := await channel.get()) is not None:
                yield _death(event)
            if source.task is not None:
                with _translated("following events"):
                    await source.task
        finally:
            with suppress(aiodocker.DockerError, aiohttp.ClientError):
                await source.stop()  # type: ignore[no-untyped-call]


def _label_filter(labels: Mapping[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in labels.items()]


def _container_state(found: Mapping[str, Any]) -> ContainerState:
    return ContainerState(
        name=found["Names"][0].removeprefix("/"),
        labels=found["Labels"] or {},
        running=found["State"] in ("running", "paused"),
    )


def _death(event: Mapping[str, Any]) -> Death:
    attributes = event["Actor"]["Attributes"]
    seconds, nanoseconds = divmod(event["timeNano"], 10**9)
    at = f"{seconds}.{nanoseconds:09}"
    return Death(attributes["name"], int(attributes["exitCode"]), at)


def _descriptor(stream: Stream) -> int:
    """Return the number of a connection's socket, or -1 where it is closed already."""
    connection = None if stream._resp is None else stream._resp.connection
    transport = None if connection is None else connection.transport
    found = None if transport is None else transport.get_extra_info("socket")
    return -1 if found is None else int(found.fileno())


async def _messages(name: str, stream: Stream) -> AsyncIterator[tuple[int, bytes]]:
    with _translated(f"reading from container {name}"):
        while (message := await stream.read_out()) is not None:
            yield message.stream, message.data


@contextmanager
def _translated(what: str) -> Iterator[None]:
    """Turns the errors of the HTTP client into this module's; `what` was being done."""
    try:
        yield
    except aiodocker.DockerError as error:
        kind = STATUS_ERRORS.get(error.status, DeploymentError)
        raise kind(f"{what}: {error.message}") from error
    except (aiohttp.ClientError, OSError) as error:
        raise DeploymentError(f"{what}: the Docker engine cannot be reached: {error}") from error
