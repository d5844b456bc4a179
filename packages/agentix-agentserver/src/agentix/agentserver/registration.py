"""Registration: from a listener as organism.yaml has it to one that can be called."""

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from agentix.agentserver.errors import RegistrationError
from agentix.agentserver.ingress import read_payload, validate_payload
from agentix.agentserver.names import check_listener_name, root_tag
from agentix.agentserver.payload import PayloadCodec, RecordType, from_data
from agentix.agentserver.pipeline import Pipeline
from agentix.agentserver.registry import Listener
from agentix.agentserver.spec import LimitsSpec, ListenerSpec
from agentix.agentserver.trusted import TrustedListener
from agentix.agentserver.worker.handlers import Handlers, HandlerSource

__all__ = ["REPLY_CLASS", "Registrar"]

REPLY_CLASS = "agentix.agentserver.core.Reply"
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
        """Makes listeners that are in no table yet, in their order.

        Raises:
            RegistrationError: The first of them that can not be a listener, and why.
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

    def make_trusted(self, trusted: TrustedListener) -> Listener:
        """Makes a listener of what runs in the pump.

        Raises:
            RegistrationError: Its name or its payload can not be a listener's.
        """
        check_listener_name(trusted.name)
        record = trusted.payload
        codec: PayloadCodec | None = None
        if record is not None:
            codec = PayloadCodec(root_tag(trusted.name, record.name), record)
        return Listener(
            name=trusted.name,
            description=trusted.description,
            codecs=(codec,),
            pipeline=listener_pipeline(),
            handler_seconds=trusted.handler_seconds or self._limits.handler_seconds,
            iterations=self._limits.iterations,
            trusted=trusted,
        )

    def write_schemas(self, listeners: Sequence[Listener]) -> None:
        """Writes the XSD of each listener to `NAME/v1.xsd`, whole or not at all."""
        for listener in listeners:
            codec = listener.codecs[0]
            if codec is not None:
                write_schema(self._schemas / listener.name / "v1.xsd", codec.xsd)


def source_of(spec: ListenerSpec) -> HandlerSource:
    """Gives where the code of a listener is; an agent takes every reply, unless it says which."""
    replies = spec.reply_class or ((REPLY_CLASS,) if spec.agent else ())
    return HandlerSource(spec.name, spec.handler, (spec.payload_class, *replies), spec.agent)


def codecs_of(
    name: str, paths: Sequence[str], records: Sequence[RecordType]
) -> tuple[tuple[PayloadCodec | None, ...], dict[str, int]]:
    """Gives the codec of each class, and which reply class takes which tag."""
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
    """Gives the codec of a payload under the root tag of the group that a listener answers for."""
    if not spec.broadcast:
        return None
    return PayloadCodec(root_tag(spec.name.rpartition(".")[0], record.name), record)


def listener_pipeline() -> Pipeline:
    """Gives the steps that a message goes through for its listener."""
    return Pipeline((validate_payload, read_payload))


def write_schema(path: Path, xsd: bytes) -> None:
    """Writes a file by way of another one; nothing is done where it is there with that content."""
    with suppress(FileNotFoundError):
        if path.read_bytes() == xsd:
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_name(f".{path.name}.{os.getpid()}")
    made.write_bytes(xsd)
    made.replace(path)
