"""Assembly: what `organism.yaml` names, made: listeners, workers, models, functions, organisms."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from agentix.agentserver.credentials import Identity
from agentix.agentserver.errors import IdentityError, RegistrationError
from agentix.agentserver.functions import Functions
from agentix.agentserver.gateway.link import RemoteOrganism
from agentix.agentserver.llm.endpoint import Endpoint, ModelPeer, read_key
from agentix.agentserver.names import check_listener_name, root_tag
from agentix.agentserver.payload import PayloadCodec, RecordType, from_data
from agentix.agentserver.registry import InProcessListener, Listener, Pipeline
from agentix.agentserver.routing import read_payload, validate_payload
from agentix.agentserver.spec import GatewaySpec, LimitsSpec, ListenerSpec, OrganismSpec
from agentix.agentserver.worker.handlers import Handlers, HandlerSource, Isolation, WorkerSettings
from agentix.agentserver.worker.inprocess import InProcessHandlers
from agentix.agentserver.worker.pool import WorkerPool
from agentix.agentserver.xml.parser import MessageLimits

if TYPE_CHECKING:
    from agentix.agentserver.organism import Organism

__all__ = [
    "REPLY_CLASS",
    "Registrar",
    "make_handler_runner",
    "own_identity",
    "private_paths",
    "remote_organism",
    "start_builtins",
    "temporary_directory_if_empty",
]


REPLY_CLASS = "agentix.agentserver.Reply"
"""The class that takes every reply, as its tag and its XML."""


class Registrar:
    """Makes listeners: their code is imported elsewhere, and described in plain data.

    Args:
        handlers: What imports their code.
        limits: What holds for listeners that say nothing else.
        schemas: The directory that XSD files are written to.
    """

    def __init__(self, handlers: Handlers, limits: LimitsSpec, schemas: Path) -> None:
        self._handlers = handlers
        self._limits = limits
        self._schemas = schemas

    async def make(self, specs: Sequence[ListenerSpec]) -> list[Listener]:
        """Make listeners that are in no table yet, in their order.

        Raises:
            RegistrationError: The first of them that cannot be a listener, and why.
        """
        outcomes = await asyncio.gather(*map(self._make, specs), return_exceptions=True)
        listeners = []
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
            listeners.append(outcome)
        return listeners

    async def _make(self, spec: ListenerSpec) -> Listener:
        source = source_of(spec)
        described = await self._handlers.describe(source)
        records = [from_data(data) for data in described.records]
        if len(records) != len(source.payload_classes):
            raise RegistrationError(f"{spec.name}: its code was described in part only")
        codecs, replies = codecs_of(spec.name, source.payload_classes, records)
        return Listener(
            name=spec.name,
            description=spec.description,
            codecs=codecs,
            group_codec=group_codec(spec, records[0]),
            replies=replies,
            pipeline=listener_pipeline(),
            handler_seconds=spec.handler_seconds or self._limits.handler_seconds,
            iterations=spec.iterations or self._limits.iterations,
            tokens=spec.tokens,
            source=source,
            agent=spec.agent,
            broadcast=spec.broadcast,
            peers=spec.peers,
        )

    def make_in_process(self, listener: InProcessListener) -> Listener:
        """Make a listener of what runs in the pump.

        Raises:
            RegistrationError: Its name or its payload cannot be a listener's.
        """
        check_listener_name(listener.name)
        record = listener.payload
        codec: PayloadCodec | None = None
        if record is not None:
            codec = PayloadCodec(root_tag(listener.name, record.name), record)
        return Listener(
            name=listener.name,
            description=listener.description,
            codecs=(codec,),
            pipeline=listener_pipeline(),
            handler_seconds=listener.handler_seconds or self._limits.handler_seconds,
            iterations=self._limits.iterations,
            in_process=listener,
        )

    def write_schemas(self, listeners: Sequence[Listener]) -> None:
        """Write the XSD of each listener to `NAME/v1.xsd`, whole or not at all."""
        for listener in listeners:
            codec = listener.codecs[0]
            if codec is not None:
                write_schema(self._schemas / listener.name / "v1.xsd", codec.xsd)


def source_of(spec: ListenerSpec) -> HandlerSource:
    """Return where the code of a listener is; an agent takes every reply, unless it says which."""
    replies = spec.reply_class or ((REPLY_CLASS,) if spec.agent else ())
    return HandlerSource(spec.name, spec.handler, (spec.payload_class, *replies), spec.agent)


def codecs_of(
    name: str, paths: Sequence[str], records: Sequence[RecordType]
) -> tuple[tuple[PayloadCodec | None, ...], dict[str, int]]:
    """Return the codec of each class, and which reply class takes which tag."""
    codecs: list[PayloadCodec | None] = [PayloadCodec(root_tag(name, records[0].name), records[0])]
    replies: dict[str, int] = {}
    for index, (path, record) in enumerate(zip(paths[1:], records[1:], strict=True), start=1):
        any_reply = path == REPLY_CLASS
        tag = "" if any_reply else record.name.lower()
        if tag in replies:
            raise RegistrationError(f"{name}: two reply classes take <{tag}>: keep one")
        replies[tag] = index
        codecs.append(None if any_reply else PayloadCodec(tag, record))
    return tuple(codecs), replies


def group_codec(spec: ListenerSpec, record: RecordType) -> PayloadCodec | None:
    """Return the codec of a payload under the root tag of the group that a listener answers for."""
    if not spec.broadcast:
        return None
    return PayloadCodec(root_tag(spec.name.rpartition(".")[0], record.name), record)


def listener_pipeline() -> Pipeline:
    """Return the steps that a message goes through for its listener."""
    return Pipeline((validate_payload, read_payload))


def write_schema(path: Path, xsd: bytes) -> None:
    """Write a file by way of another one; nothing is done where it is there with that content."""
    with suppress(FileNotFoundError):
        if path.read_bytes() == xsd:
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_name(f".{path.name}.{os.getpid()}")
    made.write_bytes(xsd)
    made.replace(path)


def private_paths(spec: OrganismSpec, directory: Path) -> tuple[str, ...]:
    """Return the files and directories that workers must not read: keys, users and topology.

    Args:
        spec: What the organism is made of.
        directory: Where it is.
    """
    return tuple(sorted({str(directory / path) for path in _paths(spec, directory)}))


def _paths(spec: OrganismSpec, directory: Path) -> Iterator[str | Path]:
    yield from directory.glob("*.yaml")
    yield from directory.glob("*.yml")
    yield spec.schemas
    if spec.journal is not None:
        yield spec.journal.path
    organism = spec.organism
    own = (organism.identity, organism.users, spec.oob.unix_socket, spec.runtime.token_file)
    yield from (path for path in own if path is not None)
    if organism.tls is not None:
        yield organism.tls.key
    yield from (model.key_file for model in spec.llm if model.key_file is not None)


@contextlib.contextmanager
def temporary_directory_if_empty(path: Path) -> Iterator[None]:
    """Have a directory from now on, and leave it only if something is in it."""
    path.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.rmdir()


def make_handler_runner(spec: OrganismSpec, directory: Path) -> WorkerPool | InProcessHandlers:
    """Make what runs the handlers of an organism, not yet started.

    Args:
        spec: What the organism is made of.
        directory: What relative paths in it are relative to.
    """
    settings = settings_of(spec, directory)
    return (
        InProcessHandlers(settings)
        if settings.isolation is Isolation.INPROCESS
        else WorkerPool(settings)
    )


def settings_of(spec: OrganismSpec, directory: Path) -> WorkerSettings:
    """Return what workers may do."""
    workers = spec.workers
    return WorkerSettings(
        isolation=Isolation(spec.isolation),
        preload=spec.preload,
        path=tuple(str(directory / path) for path in spec.import_paths),
        hidden=private_paths(spec, directory),
        readable=tuple(str(directory / path) for path in workers.readable),
        output=spec.limits.message_bytes,
        workers=workers.live,
        spares=workers.spares,
        idle=workers.idle_seconds,
        memory=workers.memory_bytes,
        cpu=workers.cpu_seconds,
        processes=workers.processes,
        open_files=workers.open_files,
        file_size=workers.file_bytes,
    )


@asynccontextmanager
async def start_builtins(organism: "Organism") -> AsyncIterator[None]:
    """Add to an organism that has not started what `organism.yaml` names beside its listeners.

    Raises:
        LLMError: The key of a model is not where the file says.
        IdentityError: A key is missing or open to others.
        GatewayError: The certificates that should vouch for another organism cannot be read.
        FunctionFailedError: The runtime cannot be asked about its functions.
        RegistrationError: A function is not there, or has no XML form.
    """
    async with AsyncExitStack() as resources:
        for spec in organism.spec.llm:
            endpoint = Endpoint(spec, read_key(spec, organism.directory))
            await resources.enter_async_context(endpoint)
            organism.add_in_process(ModelPeer(endpoint, organism).listener())
        for gateway in organism.spec.gateways:
            if gateway.remote_url is not None:
                remote = await resources.enter_async_context(remote_organism(organism, gateway))
                organism.add_gateway(gateway, remote.listener())
        functions = sorted(_functions(organism.spec))
        if functions:
            most = organism.spec.limits.message_bytes
            runtime = Functions(organism.spec.runtime, organism.directory, most)
            await resources.enter_async_context(runtime)
            for listener in await runtime.listeners(functions):
                organism.add_in_process(listener)
        yield


def _functions(spec: OrganismSpec) -> set[str]:
    """Return the functions of namespaces that are anybody's peers."""
    peers = {peer for listener in spec.listeners for peer in listener.peers}
    return {peer.removeprefix("ns:") for peer in peers if peer.startswith("ns:")}


def remote_organism(organism: "Organism", gateway: GatewaySpec) -> RemoteOrganism:
    """Make the way to another organism.

    Raises:
        IdentityError: This organism has no identity, or the other one's is no key.
        GatewayError: The certificates that should vouch for the other one cannot be read.
    """
    limits = MessageLimits(size=organism.spec.limits.message_bytes)
    return RemoteOrganism(gateway, own_identity(organism), organism.directory, limits)


def own_identity(organism: "Organism") -> Identity:
    """Read the organism's own key.

    Raises:
        IdentityError: It has none, or others may read it.
    """
    path = organism.spec.organism.identity
    if path is None:
        raise IdentityError("the organism has no identity: name its key in organism.identity")
    return Identity.load(organism.directory / path)
