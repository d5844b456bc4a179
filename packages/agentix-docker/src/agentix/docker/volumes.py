"""The volumes that carry closures: one for each image digest, filled by Docker itself."""

import asyncio
import logging
from collections.abc import Collection
from contextlib import suppress

from agentix.docker.cancellation import finish
from agentix.docker.engine import ConflictError, Engine, EngineImage
from agentix.docker.labels import DIGEST, ROLE, closure_labels
from agentix.errors import DeploymentError

__all__ = ["ClosureVolumes", "volume_name"]

logger = logging.getLogger(__name__)

POLL = 0.05
"""Seconds between looks while another process fills a volume; the engine has no event for it."""

KEEPER_PATIENCE = 6.0
"""Seconds in which a keeper ends that has no sandbox."""


def volume_name(digest: str) -> str:
    """Names the volume of an image digest."""
    return f"agentix-namespace-{digest}"


def _holder_name(digest: str) -> str:
    return f"{volume_name(digest)}-holder"


class ClosureVolumes:
    """Fills a volume for each image digest, exactly once on an engine.

    Docker copies an image's `/nix` into an empty volume when a container is made with it, and a
    second container on the same volume does not wait for the copy. The container that is made
    for the copy therefore has a name, which the engine gives to one process only, and which can
    be looked up only once the copy is complete: it is the lock and the mark of completion. It is
    never started. A volume without its holder is what an interrupted copy left.

    Args:
        engine: The engine that has the images.
        timeout: Seconds that a fill may take.
    """

    def __init__(self, engine: Engine, timeout: float = 600.0) -> None:
        self._engine = engine
        self._timeout = timeout
        self._fills: dict[str, asyncio.Task[None]] = {}
        self._checked: set[tuple[str, str]] = set()

    async def ensure(self, image: EngineImage, must_have: str) -> str:
        """Gives the volume that holds the closure of `image`, and fills it where that is due.

        Args:
            image: An image with a closure in `/nix`.
            must_have: The path of a file that makes it one.

        Raises:
            DeploymentError: The image has no such file, or the volume could not be filled.
        """
        fill = self._fills.get(image.digest)
        if fill is None:
            fill = asyncio.create_task(self._ensure_filled(image))
            self._fills[image.digest] = fill
            fill.add_done_callback(lambda _: self._fills.pop(image.digest))
        await asyncio.shield(fill)
        if (image.digest, must_have) not in self._checked:
            await self._check(image, must_have)
            self._checked.add((image.digest, must_have))
        return volume_name(image.digest)

    async def close(self) -> None:
        """Waits for the fills that are under way."""
        if self._fills:
            await asyncio.wait(list(self._fills.values()))

    async def prune(self, digests: Collection[str] | None = None) -> list[str]:
        """Remove the volumes, of all digests or of some, that no sandbox uses.

        Returns:
            The names of the volumes that were removed.
        """
        removed = []
        for holder in await self._engine.containers({ROLE: "holder"}):
            digest = holder.labels[DIGEST]
            if digests is not None and digest not in digests:
                continue
            if await self._is_unused(digest):
                with suppress(ConflictError):
                    await finish(self._remove(digest))
                    removed.append(volume_name(digest))
        return removed

    async def _is_unused(self, digest: str) -> bool:
        """Return whether no sandbox uses a volume; an idle keeper has some seconds to go."""
        give_up = asyncio.get_running_loop().time() + KEEPER_PATIENCE
        while True:
            users = await self._engine.containers_with_volume(volume_name(digest))
            roles = {user.labels.get(ROLE) for user in users} - {"holder"}
            if roles != {"keeper"} or asyncio.get_running_loop().time() > give_up:
                return not roles
            await asyncio.sleep(POLL)

    async def _ensure_filled(self, image: EngineImage) -> None:
        holder = _holder_name(image.digest)
        try:
            async with asyncio.timeout(self._timeout):
                while not await self._engine.container_exists(holder):
                    if not await self._fill(image):
                        await asyncio.sleep(POLL)
        except TimeoutError as error:
            raise DeploymentError(
                f"volume {volume_name(image.digest)} of image {image.reference!r} was not filled"
                f" within {self._timeout:g} s"
            ) from error

    async def _fill(self, image: EngineImage) -> bool:
        """Fills the volume, or tells that another process is doing it."""
        volume = volume_name(image.digest)
        # A volume in use is being filled, or was filled by a holder that was removed since.
        with suppress(ConflictError):
            await self._engine.remove_volume(volume)
        try:
            await finish(self._engine.create_container(_holder_name(image.digest), _holder(image)))
        except ConflictError:
            return False
        logger.info("filled volume %s from image %s", volume, image.reference)
        return True

    async def _check(self, image: EngineImage, path: str) -> None:
        if await self._engine.container_file_exists(_holder_name(image.digest), path):
            return
        with suppress(ConflictError):
            await finish(self._remove(image.digest))
        raise DeploymentError(
            f"image {image.reference!r} has no {path}: it is not an Agentix image of this kind"
        )

    async def _remove(self, digest: str) -> None:
        await self._engine.remove_container(_holder_name(digest))
        await self._engine.remove_volume(volume_name(digest))


def _holder(image: EngineImage) -> dict[str, object]:
    """Describes the container that makes Docker fill the volume; it never runs."""
    volume = {
        "Type": "volume",
        "Source": volume_name(image.digest),
        "Target": "/nix",
        "VolumeOptions": {"Labels": closure_labels("volume", image.digest)},
    }
    return {
        "Image": f"sha256:{image.digest}",
        "Entrypoint": ["never-started"],
        "Labels": closure_labels("holder", image.digest),
        "HostConfig": {"Mounts": [volume], "NetworkMode": "none"},
    }
