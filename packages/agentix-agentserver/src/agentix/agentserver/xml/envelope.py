"""The envelope: who sends a payload to whom, in which thread."""

import secrets
from collections.abc import Sequence
from typing import Final, NamedTuple

from lxml import etree
from lxml.etree import _Element as Element

from agentix.agentserver.core import CORE_NAMESPACE, ENVELOPE_NAMESPACE
from agentix.agentserver.errors import Malformed, MalformedKind
from agentix.agentserver.names import collapse, new_thread_id
from agentix.agentserver.xml.canonical import canonical
from agentix.agentserver.xml.gate import admit
from agentix.agentserver.xml.limits import Limits
from agentix.agentserver.xml.parser import parse_strict
from agentix.agentserver.xml.repair import repair

__all__ = ["ENVELOPE_XSD", "MESSAGE", "Envelope", "build_envelope", "open_envelope"]

ENVELOPE_XSD: Final = f"""\
<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns="{ENVELOPE_NAMESPACE}" \
targetNamespace="{ENVELOPE_NAMESPACE}" elementFormDefault="qualified">
  <xs:simpleType name="name">
    <xs:restriction base="xs:token">
      <xs:minLength value="1"/>
    </xs:restriction>
  </xs:simpleType>
  <xs:element name="message">
    <xs:complexType>
      <xs:sequence>
        <xs:element name="meta">
          <xs:complexType>
            <xs:sequence>
              <xs:element name="from" type="name"/>
              <xs:element name="to" type="name" minOccurs="0"/>
              <xs:element name="thread" type="name"/>
              <xs:any namespace="##other" processContents="skip" minOccurs="0" \
maxOccurs="unbounded"/>
            </xs:sequence>
          </xs:complexType>
        </xs:element>
        <xs:choice>
          <xs:any namespace="##other" processContents="skip"/>
          <xs:any namespace="##local" processContents="skip"/>
        </xs:choice>
      </xs:sequence>
    </xs:complexType>
  </xs:element>
</xs:schema>
""".encode()
"""The schema of an envelope: one `meta`, and one payload that is no part of an envelope itself."""

SCHEMA: Final = etree.XMLSchema(etree.fromstring(ENVELOPE_XSD))
MESSAGE: Final = f"{{{ENVELOPE_NAMESPACE}}}message"
META: Final = f"{{{ENVELOPE_NAMESPACE}}}meta"
FROM: Final = f"{{{ENVELOPE_NAMESPACE}}}from"
TO: Final = f"{{{ENVELOPE_NAMESPACE}}}to"
THREAD: Final = f"{{{ENVELOPE_NAMESPACE}}}thread"
HEAD: Final = f'<message xmlns="{ENVELOPE_NAMESPACE}"><meta><from>'


class Envelope(NamedTuple):
    """A message that was read: well-formed, within limits, and of the envelope's schema."""

    sender: str
    """What it claims to be from; nothing is proved by that."""
    to: str | None
    """Whom it names as its receiver, where it names one."""
    thread: str | None
    """The thread that it names, whatever that is; None where there is no such element."""
    payload: Element
    """The payload, in its place within the message."""
    canonical: bytes
    """The whole message as canonical XML, with a fresh thread where it names none."""
    repairs: tuple[str, ...] = ()
    """What had to be done to make it well-formed."""

    def in_thread(self, thread: str) -> "Envelope":
        """Puts the message into a thread, in its tree and its canonical bytes too."""
        if thread == self.thread:
            return self
        message = self.payload.getparent()
        assert message is not None, "the payload stays in the message that it came in"
        for element in message[0]:
            if element.tag == THREAD:
                element.text = thread
        return self._replace(thread=thread, canonical=canonical(message))


def open_envelope(data: bytes, limits: Limits) -> Envelope:
    """Reads a message from bytes that may be anything.

    Raises:
        Malformed: They are no message; nothing of them was acted upon.
    """
    data = admit(data, limits.size)
    message, repairs = parse_or_repair(data, limits)
    absent = not is_envelope(message)
    if absent and not (add_thread(message) and is_envelope(message)):
        raise Malformed(MalformedKind.ENVELOPE)
    written = canonical(message)
    meta, payload = message
    sender, second, *others = meta
    to, thread = (token(second), others[0]) if second.tag == TO else (None, second)
    claimed = None if absent else token(thread)
    return Envelope(token(sender), to, claimed, payload, written, repairs)


def parse_or_repair(data: bytes, limits: Limits) -> tuple[Element, tuple[str, ...]]:
    """Parses a document strictly, after a repair where that fails."""
    try:
        return parse_strict(data, limits), ()
    except Malformed as error:
        if error.kind is not MalformedKind.SYNTAX:
            raise
    repaired = repair(data.decode(), limits)
    return parse_strict(repaired.text.encode(), limits), repaired.notes


def is_envelope(message: Element) -> bool:
    """Tells whether a document is of the envelope's schema."""
    try:
        return SCHEMA.validate(message)
    except etree.LxmlError:  # a tree that the strict parser does not make
        return False


def add_thread(message: Element) -> bool:
    """Adds a fresh thread to a message that names none; gives whether it did."""
    if len(message) == 0 or message[0].tag != META or len(message[0]) == 0:
        return False
    meta = message[0]
    before = [child for child in meta if child.tag in (FROM, TO)]
    if len(before) == 0 or meta.find(THREAD) is not None:
        return False
    element = etree.Element(THREAD)
    element.text = new_thread_id()
    meta.insert(len(before), element)
    return True


def token(element: Element) -> str:
    """Gives the text of an xs:token, which white space around it is no part of."""
    text = element.text or ""
    return text if text.isprintable() and " " not in text else collapse(text)


def build_envelope(
    sender: str, to: str | None, thread: str, payload: Element, repairs: Sequence[str] = ()
) -> bytes:
    """Writes a message as canonical XML.

    Args:
        sender: Who it is from, as the pump knows.
        to: The receiver; None leaves it to the root tag of the payload.
        thread: The thread, as the receiver knows it.
        payload: The payload; it stays where it is, and neither its surroundings nor the text
            after it come along.
        repairs: What had to be done to make the payload well-formed.

    Raises:
        Malformed: The payload has no canonical form.
    """
    receiver = f"</from><to>{escape(to)}</to><thread>" if to is not None else "</from><thread>"
    noted = repair_note(repairs) if repairs else ""
    head = f"{HEAD}{escape(sender)}{receiver}{escape(thread)}</thread>{noted}</meta>".encode()
    return head + canonical_payload(payload) + b"</message>"


def canonical_payload(payload: Element) -> bytes:
    """Writes a payload as it stands within an envelope, whose namespace is the default there."""
    written = canonical(payload)
    if payload.prefix is not None:
        return below_default(written)
    name = str(payload.tag)
    if name[0] == "{":
        return written
    after_name = 1 + len(name.encode())
    return written[:after_name] + b' xmlns=""' + written[after_name:]


def below_default(written: bytes) -> bytes:
    """Adds the `xmlns=""` that elements below a prefixed one need within an envelope.

    A wrapper says that the default namespace is none, in a way that C14N passes on to them.
    """
    prefix = f"w{secrets.token_hex(8)}"
    start = f'<{prefix}:w xmlns:{prefix}="urn:wrapper">'.encode()
    end = f"</{prefix}:w>".encode()
    wrapped = start[:-1] + b' xmlns="">' + written + end
    message = etree.fromstring(
        f'<message xmlns="{ENVELOPE_NAMESPACE}">'.encode() + wrapped + b"</message>"
    )
    return canonical(message).partition(start)[2].rpartition(end)[0]


def repair_note(repairs: Sequence[str]) -> str:
    """Writes what was repaired, as the `<huh>` that a meta carries."""
    notes = "".join(f"<repair>{escape(note)}</repair>" for note in repairs)
    return f'<huh xmlns="{CORE_NAMESPACE}">{notes}</huh>'


def escape(text: str) -> str:
    """Writes a text as canonical XML does."""
    if "&" in text or "<" in text or ">" in text or "\r" in text:
        text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        return text.replace("\r", "&#xD;")
    return text
