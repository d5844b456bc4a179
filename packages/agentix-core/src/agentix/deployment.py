"""The contract of every deployment: what makes, lists and removes sandboxes."""

import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from types import ModuleType
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator

from agentix.errors import DeploymentError, SandboxNotFoundError
from agentix.version import VERSION
from agentix.wire import READY_PREFIX

__all__ = [
    "DEFAULT_MEMORY",
    "DEFAULT_PIDS",
    "DEFAULT_RUNTIME",
    "Deployment",
    "Sandbox",
    "SandboxConfig",
    "SandboxInfo",
    "default_memory",
    "find_ready_url",
]

logger = logging.getLogger(__name__)

DEFAULT_RUNTIME = f"agentix/runtime:{VERSION}"
"""The runtime image of this release."""

DEFAULT_PIDS = 2048
"""Processes and threads that a sandbox may have where its configuration says nothing."""

DEFAULT_MEMORY = 4 * 1024**3
"""Bytes of memory of such a sandbox, on a host that has twice as much."""


def default_memory(host: int) -> int:
    """Return the memory limit of a sandbox whose configuration says nothing.

    Args:
        host: The memory of its host. All sizes are in bytes.
    """
    return min(DEFAULT_MEMORY, host // 2)


def _reference(value: object) -> str:
    """Turns a namespace module into the image reference that it carries as `__image__`."""
    reference = getattr(value, "__image__", None) if isinstance(value, ModuleType) else value
    if isinstance(reference, str) and reference:
        return reference
    if isinstance(value, ModuleType):
        raise ValueError(f"module {value.__name__} has no __image__: give its image reference")
    raise ValueError("give an image reference, or a namespace module that carries one")


Namespace = Annotated[str | ModuleType, PlainValidator(_reference)]
"""A namespace image: its reference, or the module that carries it as `__image__`."""


class SandboxConfig(BaseModel):
    """What a sandbox is made of; unknown fields are refused.

    `None` for a limit means none. A limit that is given and cannot be enforced is refused; a
    default that cannot be is one warning.

    An image reference means what the deployment makes of it: an image for Docker; a root
    filesystem directory (the task image, `/` for the host's own) or a bundle for the local one.
    """

    # Building the validator waits for the first sandbox: a runtime imports this and makes none.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    image: Annotated[str, Field(min_length=1)]
    """The task image, used as it is."""
    runtime: Annotated[str, Field(min_length=1)] = DEFAULT_RUNTIME
    """The runtime image."""
    namespaces: Annotated[Sequence[Namespace], AfterValidator(tuple)] = ()
    """Namespace images, as references or as modules that carry `__image__`."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the sandbox, visible to commands and impls."""
    network: Literal["bridge", "host", "none"] | None = None
    """The network; the deployment's own default where it is not given."""
    memory: Annotated[int, Field(ge=6 * 1024 * 1024)] | Literal["default"] | None = "default"
    """The memory limit in bytes; `"default"` is 4 GiB or half of the host's memory, the smaller."""
    cpus: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """How many processors' worth of time the sandbox may use."""
    pids: Annotated[int, Field(gt=0)] | Literal["default"] | None = "default"
    """How many processes and threads may live at once; `"default"` is 2,048."""
    user: Annotated[str, Field(min_length=1)] | None = None
    """Who runs commands, as `name`, `uid` or `uid:gid`; the task image's own user by default."""
    start_timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 60.0
    """Seconds from the start of the sandbox until it must accept calls."""

    @property
    def namespace_images(self) -> tuple[str, ...]:
        """The references of the namespace images."""
        return tuple(map(_reference, self.namespaces))


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A running sandbox, as its creator holds it."""

    id: str
    """The deployment's name for it."""
    runtime_url: str
    """Where its runtime listens: `http://host:port` or `unix:/path/of/the/socket`."""
    token: str = field(repr=False)
    """The bearer token that every call must carry."""


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """The state of a sandbox at one moment."""

    id: str
    """The deployment's name for it."""
    image: str
    """The task image that it was made from."""
    status: Literal["starting", "running", "unresponsive", "exited"]
    """Whether its runtime answers; one that lives and does not is `unresponsive`."""
    created_at: datetime
    """When it was made, with its time zone."""
    exit_code: int | None = None
    """The exit code of a sandbox that has exited."""


class Deployment(ABC):
    """Makes sandboxes and takes them away again.

    A deployment is an async context manager. Leaving it deletes every sandbox that it made, and
    its sandboxes do not outlive the process that owns it, however that process ends. All methods
    may be called concurrently.
    """

    @abstractmethod
    async def create(self, config: SandboxConfig) -> Sandbox:
        """Makes a sandbox and returns once its runtime accepts calls.

        A call that fails or is cancelled leaves nothing behind.

        Raises:
            UsageError: The configuration asks for what this deployment can not give.
            SandboxStartError: The sandbox ended or stayed silent before it was ready.
            DeploymentError: An image is missing, or the machinery beneath failed.
        """

    @abstractmethod
    async def delete(self, sandbox_id: str) -> None:
        """Ends a sandbox and removes all that was made for it; cancellation waits for that.

        Raises:
            SandboxNotFoundError: This deployment has no such sandbox (or no longer).
        """

    @abstractmethod
    async def get(self, sandbox_id: str) -> SandboxInfo:
        """Tells the state of one sandbox of this deployment.

        Raises:
            SandboxNotFoundError: This deployment has no such sandbox (or no longer).
        """

    @abstractmethod
    async def list(self) -> Sequence[SandboxInfo]:
        """Tells the state of every sandbox of this deployment, the oldest first."""

    @asynccontextmanager
    async def session(self, config: SandboxConfig) -> AsyncIterator[Sandbox]:
        """Gives a sandbox for the length of an `async with` block.

        Raises:
            DeploymentError: As `create` does.
        """
        sandbox = await self.create(config)
        try:
            yield sandbox
        except BaseException as error:
            # What went wrong in the block says more than what went wrong after it.
            try:
                with suppress(SandboxNotFoundError):
                    await self.delete(sandbox.id)
            except DeploymentError as failure:
                error.add_note(f"and sandbox {sandbox.id} was not deleted: {failure}")
                logger.warning("sandbox %s was not deleted: %s", sandbox.id, failure)
            raise
        with suppress(SandboxNotFoundError):
            await self.delete(sandbox.id)

    @abstractmethod
    async def __aenter__(self) -> Self:
        """Makes the deployment ready for use."""

    @abstractmethod
    async def __aexit__(self, *exception: Any) -> None:
        """Deletes every sandbox that this deployment made."""


async def find_ready_url(lines: AsyncIterable[bytes]) -> str | None:
    """Reads what a runtime prints until it is ready, and gives the URL that it listens on.

    Args:
        lines: The standard output of the runtime, split at line ends.

    Returns:
        The URL, or `None` where the output ended first.
    """
    prefix = READY_PREFIX.encode()
    async for line in lines:
        if line.startswith(prefix):
            return line[len(prefix) :].decode(errors="replace").strip()
    return None
