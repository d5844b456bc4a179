"""The link between two organisms: who is at each end, and frames that nobody else can make.

The client sends `<authenticate key=".." time=".." nonce=".." signature=".."/>` first, and the
server answers `<welcome principal=".." signature=".."/>`. Both signatures cover the keys of both,
the time, the nonce and the certificate of the server: neither is of use on another connection.
"""

import base64
import binascii
import hashlib
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgpack  # type: ignore[import-untyped]
from lxml import etree

from agentix.agentserver.errors import AgentServerError, Malformed
from agentix.agentserver.identity import Identity, TrustedKey
from agentix.agentserver.xml.gate import admit
from agentix.agentserver.xml.limits import Limits
from agentix.agentserver.xml.parser import parse_strict

__all__ = ["Door", "Greeting", "Link", "LinkError", "Proof", "greet"]

TOLERANCE: Final = 60.0
"""Seconds that the clocks of two organisms may differ."""

LIMITS = Limits(size=4096)


class LinkError(AgentServerError):
    """The other end is not who it should be, or breaks the rules of the link."""


@dataclass(frozen=True)
class Greeting:
    """What both ends of a link agree on."""

    client: TrustedKey
    server: TrustedKey
    time: str
    nonce: str
    certificate: bytes
    """The server's certificate, DER."""

    def statement(self, side: str, more: str = "") -> bytes:
        """Gives what one side signs."""
        digest = hashlib.sha256(self.certificate).hexdigest()
        parts = [side, str(self.client), str(self.server), self.time, self.nonce, digest, more]
        return "\n".join(["agentix-agentserver link 1", *parts]).encode()


def greet(identity: Identity, server: TrustedKey, certificate: bytes) -> tuple[Greeting, str]:
    """Begins a link as its client; gives what to remember, and the first message."""
    now, nonce = f"{time.time():.3f}", secrets.token_hex(16)
    greeting = Greeting(identity.public, server, now, nonce, certificate)
    element = etree.Element(
        "authenticate",
        {
            "key": str(identity.public),
            "time": now,
            "nonce": nonce,
            "signature": _text(identity.sign(greeting.statement("client"))),
        },
    )
    return greeting, etree.tostring(element, encoding="unicode")


def read_welcome(greeting: Greeting, message: bytes) -> str:
    """Checks the server's answer; gives the principal that the client is there.

    Raises:
        LinkError: It is not signed by the server's key.
    """
    try:
        element = parse_strict(admit(message, LIMITS.size), LIMITS)
    except Malformed as error:
        raise LinkError("the other organism answered with what is no welcome") from error
    principal = element.get("principal", "")
    signed = greeting.statement("server", principal)
    if element.tag != "welcome" or not greeting.server.verify(_bytes(element), signed):
        raise LinkError("the other organism is not who it should be: its welcome is not signed")
    return principal


@dataclass(frozen=True)
class Proof:
    """How an organism proves to a user who it is.

    The user sends a nonce with the code, and gets a signature over it, the user's name and the
    certificate of the connection.
    """

    user: str
    nonce: str
    certificate: bytes
    """The server's certificate, DER."""

    @property
    def _statement(self) -> bytes:
        digest = hashlib.sha256(self.certificate).hexdigest()
        parts = ["agentix-agentserver catalog 1", self.user, self.nonce, digest]
        return "\n".join(parts).encode()

    def sign(self, identity: Identity) -> str:
        """Gives the signature, in base64."""
        return _text(identity.sign(self._statement))

    def verify(self, key: TrustedKey, signature: str) -> bool:
        """Tells whether the organism with this key gave the signature."""
        return key.verify(_decoded(signature), self._statement)


class Door:
    """Lets other organisms in, as the server of a link.

    Args:
        identity: Who this organism is.
        certificate: Its certificate, DER.
        now: Gives the seconds since 1970.
    """

    def __init__(
        self, identity: Identity, certificate: bytes, now: Callable[[], float] = time.time
    ) -> None:
        self._identity = identity
        self._certificate = certificate
        self._now = now
        self._seen: dict[str, float] = {}

    def open(self, element: etree._Element) -> Greeting:
        """Checks a first message, and takes its nonce.

        Raises:
            LinkError: It is not signed, too old, or was used already.
        """
        fields = [element.get(name, "") for name in ("key", "time", "nonce")]
        greeting = Greeting(
            TrustedKey.from_text(fields[0]),
            self._identity.public,
            fields[1],
            fields[2],
            self._certificate,
        )
        if not greeting.client.verify(_bytes(element), greeting.statement("client")):
            raise LinkError("bad signature")
        now = self._now()
        if not abs(_number(greeting.time) - now) <= TOLERANCE:
            raise LinkError("the time is more than 60 seconds off")
        self._seen = {nonce: until for nonce, until in self._seen.items() if until >= now}
        if greeting.nonce in self._seen:
            raise LinkError("the message was used already")
        self._seen[greeting.nonce] = now + 2 * TOLERANCE
        return greeting

    def welcome(self, greeting: Greeting, principal: str) -> str:
        """Gives the answer to a client that is let in."""
        signature = self._identity.sign(greeting.statement("server", principal))
        attributes = {"principal": principal, "signature": _text(signature)}
        return etree.tostring(etree.Element("welcome", attributes), encoding="unicode")


class Link:
    """Signs what goes out, and checks that what comes in follows what came before.

    Args:
        identity: This end.
        other: The other end.
        nonce: The nonce of the greeting.
        side: `client` or `server`.
    """

    def __init__(self, identity: Identity, other: TrustedKey, nonce: str, side: str) -> None:
        self._identity = identity
        self._other = other
        self._nonce = nonce
        self._sides = (side, "server" if side == "client" else "client")
        self._sent = 0
        self._received = 0

    def pack(self, number: int, messages: Sequence[bytes]) -> bytes:
        """Makes a frame: the number of a request, and messages."""
        self._sent += 1
        body = msgpack.packb([self._nonce, self._sides[0], self._sent, number, list(messages)])
        return bytes(msgpack.packb([self._identity.sign(body), body]))

    def unpack(self, frame: bytes) -> tuple[int, list[bytes]]:
        """Reads a frame.

        Raises:
            LinkError: The other end did not make it, or not as the next one.
        """
        try:
            signature, body = msgpack.unpackb(frame)
            if not self._other.verify(signature, body):
                raise LinkError("a frame is not signed by the other organism")
            nonce, side, sequence, number, messages = msgpack.unpackb(body)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise LinkError("a frame is malformed") from error
        self._received += 1
        if [nonce, side, sequence] != [self._nonce, self._sides[1], self._received]:
            raise LinkError("a frame is not the next one of this link")
        if type(number) is not int or not isinstance(messages, list):
            raise LinkError("a frame is malformed")
        if not all(type(each) is bytes for each in messages):
            raise LinkError("a frame is malformed")
        return number, messages


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(element: etree._Element) -> bytes:
    return _decoded(element.get("signature", ""))


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")
