"""Privileged messages: commands to an organism, signed by its identity, each good once.

The signature is over the exclusive canonical form of `<payload>`. What is carried out is parsed
again from the very bytes that were verified, so nothing that was not signed is ever looked at.
"""

import base64
import binascii
import math
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import chain
from typing import Annotated, Literal

from lxml import etree
from lxml.etree import _Element as Element
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from agentix.agentserver.core import PRIVILEGED_NAMESPACE
from agentix.agentserver.errors import AgentServerError, Malformed
from agentix.agentserver.identity import Identity, TrustedKey
from agentix.agentserver.xml.canonical import canonical
from agentix.agentserver.xml.gate import admit
from agentix.agentserver.xml.limits import Limits
from agentix.agentserver.xml.parser import parse_strict

__all__ = [
    "Command",
    "GetOrganismGraph",
    "GetStatus",
    "ListListeners",
    "PrivilegedError",
    "PrivilegedGate",
    "RegisterListener",
    "RegisterRemoteGateway",
    "Shutdown",
    "UnregisterListener",
    "UnregisterRemoteGateway",
    "sign_privileged",
]

VERSION = "1.0"
TOLERANCE = 60.0
"""Seconds that a timestamp may differ from now."""

LIMITS = Limits(size=1 << 16)
"""What a privileged message may be made of."""

ROOT, PAYLOAD, SIGNATURE = (
    f"{{{PRIVILEGED_NAMESPACE}}}{name}" for name in ("privileged-msg", "payload", "signature")
)


class PrivilegedError(AgentServerError):
    """A privileged message is refused; the reason is for the one who sent it."""


class _Command(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _split(value: object) -> object:
    """Reads a list of words, as `xs:list` has them."""
    return tuple(value.split()) if isinstance(value, str) else value


Words = Annotated[tuple[str, ...], BeforeValidator(_split)]


class RegisterListener(_Command):
    """Adds a listener, as an entry of `listeners` in `organism.yaml` does."""

    name: str
    payload_class: str
    handler: str
    description: str
    agent: bool = False
    broadcast: bool = False
    peers: Words = ()
    reply_class: Words = ()


class UnregisterListener(_Command):
    """Removes a listener."""

    name: str


class ListListeners(_Command):
    """Asks for the names of all listeners, or for all that is known of them."""

    detailed: bool = False


class GetOrganismGraph(_Command):
    """Asks for the organism, or one team of it, as a drawing."""

    team: str | None = None
    format: Literal["mermaid", "graphviz", "json"] = "mermaid"


class GetStatus(_Command):
    """Asks how the organism is."""


class Shutdown(_Command):
    """Ends the organism: after what is under way, or at once."""

    mode: Literal["graceful", "immediate"] = "graceful"
    reason: str = ""


class RegisterRemoteGateway(_Command):
    """Adds another organism, as an entry of `gateways` in `organism.yaml` does."""

    name: str
    remote_url: str
    trusted_identity: str
    description: str


class UnregisterRemoteGateway(_Command):
    """Removes another organism."""

    name: str


Command = (
    RegisterListener
    | UnregisterListener
    | ListListeners
    | GetOrganismGraph
    | GetStatus
    | Shutdown
    | RegisterRemoteGateway
    | UnregisterRemoteGateway
)


def sign_privileged(
    command: str,
    identity: Identity,
    *,
    message_id: str | None = None,
    timestamp: datetime | None = None,
) -> bytes:
    """Wraps a command into a signed message.

    Args:
        command: The command's element, such as `<get-status/>`.
        identity: Who signs.
        message_id: Its id, by which a replay is known; a new one where it is left out.
        timestamp: When it was written, with a time zone; now where it is left out.

    Raises:
        PrivilegedError: The command is not one element.
    """
    root = etree.Element(ROOT, {"version": VERSION}, nsmap={None: PRIVILEGED_NAMESPACE})
    payload = etree.SubElement(root, PAYLOAD)
    payload.set("id", message_id or str(uuid.uuid4()))
    payload.set("timestamp", (timestamp or datetime.now(UTC)).isoformat())
    payload.append(_with_namespace(_parse(command.encode())))
    signature = etree.SubElement(root, SIGNATURE, {"algorithm": "ed25519"})
    signature.text = base64.b64encode(identity.sign(canonical(payload))).decode()
    return etree.tostring(root, encoding="utf-8")


class PrivilegedGate:
    """Lets a command through when its signature, its time and its id are good.

    Args:
        key: Whose signatures are good.
        now: Gives the seconds since 1970.
    """

    def __init__(self, key: TrustedKey, now: Callable[[], float] = time.time) -> None:
        self._key = key
        self._now = now
        self._seen: dict[str, float] = {}

    def open(self, message: bytes) -> Command:
        """Checks a message, and takes its id.

        Raises:
            PrivilegedError: The message is refused.
        """
        payload = self._verified(message)
        self._check_time(payload)
        command = _read_command(payload)
        self._take_id(payload.get("id", ""))
        return command

    @property
    def remembered(self) -> int:
        """How many ids are kept against replays."""
        return len(self._seen)

    def _verified(self, message: bytes) -> Element:
        root = _parse(message)
        if root.tag != ROOT or root.get("version") != VERSION:
            raise PrivilegedError("not a privileged message of version 1.0")
        match list(root):
            case [payload, signature] if (payload.tag, signature.tag) == (PAYLOAD, SIGNATURE):
                pass
            case _:
                raise PrivilegedError("a privileged message has one payload and one signature")
        signed = canonical(payload)
        if signature.get("algorithm") != "ed25519" or not self._key.verify(
            _signature(signature), signed
        ):
            raise PrivilegedError("bad signature")
        return _parse(signed)

    def _check_time(self, payload: Element) -> None:
        try:
            written = datetime.fromisoformat(payload.get("timestamp", ""))
        except ValueError as error:
            raise PrivilegedError("the timestamp is missing or malformed") from error
        if written.tzinfo is None:
            raise PrivilegedError("the timestamp has no time zone")
        if not math.fabs(written.timestamp() - self._now()) <= TOLERANCE:
            raise PrivilegedError("the timestamp is more than 60 seconds off")

    def _take_id(self, message_id: str) -> None:
        """Remembers ids for as long as their timestamps can be good."""
        now = self._now()
        self._seen = {known: until for known, until in self._seen.items() if until >= now}
        if not message_id:
            raise PrivilegedError("the payload has no id")
        if message_id in self._seen:
            raise PrivilegedError("the message was used already")
        self._seen[message_id] = now + 2 * TOLERANCE


def _parse(data: bytes) -> Element:
    """Parses as strictly as a message of the main bus is parsed."""
    try:
        return parse_strict(admit(data, LIMITS.size), LIMITS)
    except Malformed as error:
        raise PrivilegedError(f"not XML that is taken here: {error.kind.value}") from error


def _signature(element: Element) -> bytes:
    try:
        return base64.b64decode("".join((element.text or "").split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise PrivilegedError("the signature is not base64") from error


def _with_namespace(element: Element) -> Element:
    """Puts an unqualified command into the namespace of privileged messages."""
    for each in element.iter():
        if not str(each.tag).startswith("{"):
            each.tag = f"{{{PRIVILEGED_NAMESPACE}}}{each.tag!s}"
    return element


def _read_command(payload: Element) -> Command:
    """Reads a command, whose fields are attributes or elements, with `-` where names have `_`.

    Raises:
        PrivilegedError: There is no such command, or its fields do not fit.
    """
    if len(payload) != 1:
        raise PrivilegedError("the payload is not one command")
    element = payload[0]
    name = _local(element)
    kind = KINDS.get(name)
    if kind is None:
        raise PrivilegedError(f"there is no command {name!r}")
    try:
        return kind.model_validate(dict(_fields(element)))
    except ValidationError as error:
        details = error.errors(include_input=False, include_url=False)
        reasons = "; ".join(f"{'.'.join(map(str, d['loc']))}: {d['msg']}" for d in details)
        raise PrivilegedError(f"{name}: {reasons}") from error


def _fields(element: Element) -> Iterator[tuple[str, str]]:
    seen = set()
    children = ((_local(child), child.text or "") for child in element)
    for name, text in chain(element.attrib.items(), children):
        if name in seen:
            raise PrivilegedError(f"{_local(element)}: {name!r} is given twice")
        seen.add(name)
        yield str(name).replace("-", "_"), str(text).strip()
    if any(len(child) for child in element):
        raise PrivilegedError(f"{_local(element)}: a field holds elements")


def _local(element: Element) -> str:
    return str(element.tag).removeprefix(f"{{{PRIVILEGED_NAMESPACE}}}")


KINDS: Mapping[str, type[Command]] = {
    "register-listener": RegisterListener,
    "unregister-listener": UnregisterListener,
    "list-listeners": ListListeners,
    "get-organism-graph": GetOrganismGraph,
    "get-status": GetStatus,
    "shutdown": Shutdown,
    "register-remote-gateway": RegisterRemoteGateway,
    "unregister-remote-gateway": UnregisterRemoteGateway,
}
