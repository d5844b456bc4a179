"""Namespace: the tree of mounted services that a program sees."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentix.oanix.errors import NamespaceError
from agentix.oanix.fs.device import DeviceFs
from agentix.oanix.fs.fixed import MapFs, TarFs
from agentix.oanix.fs.host import WorkspaceFs
from agentix.oanix.fs.memory import MemFs
from agentix.oanix.fs.overlay import CowFs
from agentix.oanix.fs.quota import Quota
from agentix.oanix.mount import Mode, Mount, MountPoint, split
from agentix.oanix.node import FsNode
from agentix.oanix.service import FileService, Spec
from agentix.oanix.services.logs import LogsFs
from agentix.oanix.services.task import TaskFs

__all__ = ["SERVICES", "Namespace", "NamespaceBuilder", "NamespaceSpec"]

KINDS = (DeviceFs, LogsFs, MapFs, MemFs, TarFs, TaskFs, WorkspaceFs)

SERVICES: Mapping[str, type[FileService]] = {service.kind: service for service in KINDS}
"""Classes of services by the `kind` of their specification."""


class MountSpec(BaseModel):
    """A mount as JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str
    """Where the service is seen."""
    service: int = Field(ge=0)
    """The place of the service in the specification's list."""
    readonly: bool = False
    """Nothing can be changed through the mount."""
    mode: Mode = "replace"
    """How the mount meets those at the same path before it."""
    source: str = "/"
    """The directory or file of the service that is seen."""
    quota: int | None = Field(default=None, ge=0)
    """The place of the mount's quota in the specification's list; `None` for no quota."""


class QuotaSpec(BaseModel):
    """A quota as JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_bytes: int | None = Field(default=None, ge=0)
    """Bytes of content that can be added."""
    max_files: int | None = Field(default=None, ge=0)
    """Files that can be added."""


class NamespaceSpec(BaseModel):
    """A namespace as JSON.

    ```python
    from agentix.oanix import MapFs, Namespace, NamespaceSpec

    namespace = Namespace.builder().mount("/task", MapFs({"n": b"42"})).build()
    text = NamespaceSpec.model_validate(namespace.spec()).model_dump_json()
    assert Namespace.of(NamespaceSpec.model_validate_json(text)).read("/task/n") == b"42"
    ```
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    """The version of this form."""
    services: list[dict[str, Any]] = []
    """The services, each with its `kind` and its arguments."""
    quotas: list[QuotaSpec] = []
    """The quotas; mounts that name the same one share it."""
    mounts: list[MountSpec] = []
    """The mounts, in their order."""


class Namespace(FileService):
    """An immutable tree of mounted services, and itself a service that can be mounted.

    ```python
    from agentix.oanix import MapFs, MemFs, Namespace

    namespace = (
        Namespace.builder()
        .mount("/task", MapFs({"word.txt": b"hello"}), readonly=True)
        .mount("/tmp", MemFs())
        .build()
    )
    namespace.write("/tmp/answer", namespace.read("/task/word.txt"))
    assert Namespace.from_spec(namespace.spec()).digest == namespace.digest
    ```

    Args:
        mounts: The mounts in their order; `Namespace.builder()` collects them.

    Raises:
        NamespaceError: A path is malformed, or a file is mounted where a directory is needed.
    """

    kind: ClassVar[str] = "namespace"

    def __init__(self, mounts: Iterable[Mount] = ()) -> None:
        self.mounts = tuple(mounts)
        """The mounts in their order."""
        self._points = MountPoint.tree(self.mounts)
        self._root = self._points.node()
        self._devices: dict[int, int] = {}
        for mount in self.mounts:
            self._devices.setdefault(id(mount.service), len(self._devices) + 1)

    @staticmethod
    def builder() -> "NamespaceBuilder":
        """Start a namespace without mounts."""
        return NamespaceBuilder()

    def attach(self) -> FsNode:
        """Return the root directory."""
        return self._root

    def resolve(self, path: str) -> tuple[FileService, str] | None:
        """Return the service that a path belongs to, and the path within it.

        The longest mount whose path is a prefix of `path`, name by name, has it; of several at one
        place, the one in front. `None` where no mount is above the path.
        """
        found = self._mount_of(path)
        return None if found is None else (found[0].service, found[1])

    def bind(self, source: str, target: str, mode: Mode, readonly: bool) -> Mount:
        """Make the mount that shows what is at one path at another one too.

        Raises:
            NamespaceError: No service has the source path.
        """
        found = self._mount_of(source)
        if found is None:
            raise NamespaceError(f"no mount has {source}, so it cannot be bound to {target}")
        mount, inside = found
        readonly = readonly or mount.readonly
        return Mount(target, mount.service, readonly, mode, inside, mount.quota)

    def _mount_of(self, path: str) -> tuple[Mount, str] | None:
        names = split(path)
        found, point, depth = self._points.layers[:1], self._points, 0
        for index, name in enumerate(names, 1):
            below = point.below.get(name)
            if below is None:
                break
            point = below
            if point.layers:
                found, depth = point.layers[:1], index
        if not found:
            return None
        inside = [*split(found[0].source), *names[depth:]]
        return found[0], "/" + "/".join(inside)

    def device(self, node: FsNode) -> int:
        """Return the number of the service that holds a file, from 1; 0 for a mount's own."""
        return self._devices.get(id(node.owner), 0)

    def spec(self) -> Spec:
        """Describe the namespace as JSON, each service once.

        Raises:
            NamespaceError: A service cannot be written as JSON.
        """
        services = {id(mount.service): mount.service for mount in self.mounts}
        places = {key: place for place, key in enumerate(services)}
        quotas = {id(mount.quota): mount.quota for mount in self.mounts if mount.quota is not None}
        quota_places = {key: place for place, key in enumerate(quotas)}
        spec = NamespaceSpec(
            services=[{"kind": s.kind, **s.spec()} for s in services.values()],
            quotas=[
                QuotaSpec(max_bytes=quota.max_bytes, max_files=quota.max_files)
                for quota in quotas.values()
            ],
            mounts=[
                MountSpec(
                    path=mount.path,
                    service=places[id(mount.service)],
                    readonly=mount.readonly,
                    mode=mount.mode,
                    source=mount.source,
                    quota=quota_places.get(id(mount.quota)),
                )
                for mount in self.mounts
            ],
        )
        return spec.model_dump()

    @classmethod
    def from_spec(
        cls, spec: Mapping[str, Any], kinds: Mapping[str, type[FileService]] = SERVICES
    ) -> Self:
        """Make the namespace that `spec` described.

        Args:
            spec: The description.
            kinds: Classes of services by their kind.

        Raises:
            NamespaceError: The description is malformed or names an unknown kind.
        """
        try:
            parsed = NamespaceSpec.model_validate({k: v for k, v in spec.items() if k != "kind"})
        except ValidationError as error:
            raise NamespaceError(f"not a namespace: {error}") from error
        return cls.of(parsed, kinds)

    @classmethod
    def of(cls, spec: NamespaceSpec, kinds: Mapping[str, type[FileService]] = SERVICES) -> Self:
        """Make the namespace of a description that is in order.

        Raises:
            NamespaceError: The description names an unknown kind, or a service is malformed.
        """
        services = [_make_service(service, kinds) for service in spec.services]
        quotas = [Quota(**quota.model_dump()) for quota in spec.quotas]
        return cls(_make_mount(mount, services, quotas) for mount in spec.mounts)

    @property
    def digest(self) -> str:
        """The SHA-256 of the specification in canonical JSON, in hexadecimal."""
        text = json.dumps(self.spec(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()


class NamespaceBuilder:
    """Mounts, collected for a namespace.

    ```python
    from agentix.oanix import MapFs, MemFs, NamespaceBuilder, Quota

    builder = NamespaceBuilder().mount("/etc", MapFs({"hosts": b"127.0.0.1 localhost"}))
    builder.mount("/tmp", MemFs(), quota=Quota(max_bytes=1 << 20)).bind("/etc/hosts", "/tmp/hosts")
    assert builder.build().read("/tmp/hosts") == b"127.0.0.1 localhost"
    ```
    """

    def __init__(self) -> None:
        self._mounts: list[Mount] = []

    def mount(
        self,
        path: str,
        service: FileService,
        *,
        readonly: bool = False,
        mode: Mode = "replace",
        source: str = "/",
        quota: Quota | None = None,
    ) -> Self:
        """Add a service at a path.

        Args:
            path: Where it is seen, from the root.
            service: What is seen there.
            readonly: Nothing can be changed through this mount.
            mode: How it meets what is mounted at the same path already.
            source: The directory or file of the service that is seen.
            quota: How much programs can add through this mount, and others with the same quota.

        Raises:
            NamespaceError: The path or the source is malformed.
        """
        clean = "/" + "/".join(split(path))
        inside = "/" + "/".join(split(source))
        self._mounts.append(Mount(clean, service, readonly, mode, inside, quota))
        return self

    def bind(
        self, source: str, target: str, *, mode: Mode = "replace", readonly: bool = False
    ) -> Self:
        """Show what is at one path, a file or a directory, at another path too.

        Raises:
            NamespaceError: No service mounted so far has the source path.
        """
        clean = "/" + "/".join(split(target))
        self._mounts.append(Namespace(self._mounts).bind(source, clean, mode, readonly))
        return self

    def build(self) -> Namespace:
        """Return the namespace.

        Raises:
            NamespaceError: A file is mounted where a directory is needed.
        """
        return Namespace(self._mounts)


def _make_service(spec: Mapping[str, Any], kinds: Mapping[str, type[FileService]]) -> FileService:
    arguments = dict(spec)
    kind = arguments.pop("kind", None)
    if kind not in kinds and kind != CowFs.kind:
        raise NamespaceError(f"no service of kind {kind!r}; there are {', '.join(sorted(kinds))}")
    try:
        if kind == CowFs.kind:
            return CowFs(_make_service(arguments["base"], kinds))
        return kinds[kind].from_spec(arguments)
    except (KeyError, TypeError, ValueError) as error:
        raise NamespaceError(f"a service of kind {kind} is malformed: {error!r}") from error


def _make_mount(spec: MountSpec, services: list[FileService], quotas: list[Quota]) -> Mount:
    if spec.service >= len(services):
        raise NamespaceError(f"{spec.path} names service {spec.service} of {len(services)}")
    if spec.quota is not None and spec.quota >= len(quotas):
        raise NamespaceError(f"{spec.path} names quota {spec.quota} of {len(quotas)}")
    quota = None if spec.quota is None else quotas[spec.quota]
    service = services[spec.service]
    return Mount(spec.path, service, spec.readonly, spec.mode, spec.source, quota)
