"""Envelopes: who sends a payload to whom, in which thread; canonical XML; emissions taken apart."""

import base64
import re
import secrets
from collections.abc import Iterator, Sequence
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple

from lxml import etree
from lxml.etree import _Element as Element

from agentix.agentserver.errors import Malformed, MalformedKind
from agentix.agentserver.names import CORE_NAMESPACE, ENVELOPE_NAMESPACE, collapse, new_thread_id
from agentix.agentserver.xml.parser import (
    MessageLimits,
    parse_strict,
    parse_unlimited,
    precheck,
    precheck_text,
    repair,
)

__all__ = [
    "ATTEMPT_BYTES",
    "ENVELOPE_XSD",
    "HUH",
    "MESSAGE",
    "CannedText",
    "Emission",
    "Envelope",
    "build_envelope",
    "canonical",
    "compose",
    "huh",
    "is_huh",
    "open_envelope",
    "read_emission",
]


def canonical(element: Element) -> bytes:
    """Write an element by Exclusive XML Canonicalization 1.0, without comments.

    Neither what surrounds the element nor the text after it is part of that.

    Raises:
        Malformed: There is no such form, as for a namespace that is a relative URI.
    """
    try:
        return etree.tostring(element, method="c14n", exclusive=True, with_comments=False)
    except etree.LxmlError as error:
        raise Malformed(MalformedKind.CANONICAL, str(error)) from error


ATTEMPT_BYTES = 1_024
"""How much of a failed attempt is given back, in bytes before base64."""

HUH = f"{{{CORE_NAMESPACE}}}huh"
"""The tag of a `<huh>`, in Clark notation."""


class CannedText(Enum):
    """All that a `<huh>` may say; what happened in detail is for the log."""

    INVALID_PAYLOAD = "Invalid payload structure"
    """A schema refuses it, or the root is unknown, or is not for this sender: all look the same."""
    NO_BYTES = "Handler failed to return valid bytes \u2014 likely missing return or wrong type"
    """A handler returned something else than bytes."""
    MALFORMED = "Malformed message"
    """It is no envelope, or not XML, or too large."""
    HANDLER_FAILED = "Handler failed"
    """A handler raised, timed out, died, or emitted nothing."""
    LIMIT_EXCEEDED = "Limit exceeded"
    """A budget is used up."""


def huh(error: CannedText, attempt: bytes) -> Element:
    """Make a `<huh>`.

    Args:
        error: What it says.
        attempt: The bytes that failed; the first 1,024 are given back.
    """
    element = etree.Element(HUH, nsmap={None: CORE_NAMESPACE})
    etree.SubElement(element, f"{{{CORE_NAMESPACE}}}error").text = error.value
    encoded = base64.b64encode(attempt[:ATTEMPT_BYTES]).decode("ascii")
    etree.SubElement(element, f"{{{CORE_NAMESPACE}}}original-attempt").text = encoded
    return element


def is_huh(element: Element) -> bool:
    """Return whether an element is a `<huh>` of the core namespace."""
    return element.tag == HUH


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
NAME: Final = "[0-9A-Za-z_.:@+/-]+"
"""A name that XML writes as it is, and that is read as it was written."""

TAG: Final = "[0-9A-Za-z_.-]+"
"""A name of an element that has no prefix; whether it is one is for the parser to say."""

START: Final = f'<message xmlns="{ENVELOPE_NAMESPACE}"><meta><from>'
END: Final = "</message>"
PLAIN: Final = re.compile(NAME)
ORDINARY: Final = re.compile(
    rf"""{re.escape(START)}({NAME})</from>(?:<to>({NAME})</to>)?<thread>({NAME})</thread></meta>"""
    rf"""<{TAG}\ xmlns="">(?:[^<>&\r]*</?{TAG}>)+"""
)
"""A message that is its own canonical form, if it is well-formed, as the pump writes them too.

It has no attributes, no declarations but these two, and nothing that has two spellings. All that
it leaves open of the envelope's schema is that there is one payload, with no text after it.
"""

OWN_VALUES: Final = 2
"""The declarations of namespaces in a message of which the payload is unqualified."""

SHORTEST_ELEMENT: Final = 7
"""Bytes of the shortest element in canonical form, `<a></a>`."""

OPENINGS_KEPT: Final = 1_024
"""How many pairs of sender and receiver are remembered in their written form."""


class Envelope(NamedTuple):
    """A message that was read: well-formed, within limits, and of the envelope's schema."""

    sender: str
    """What it claims to be from; nothing is proved by that."""
    to: str | None
    """Whom it names as its receiver, where it names one."""
    thread: str | None
    """The thread that it names, whatever that is; None where there is no such element."""
    payload: Element
    """The payload, in its place within the message, or where `compose` was given it."""
    canonical: bytes
    """The whole message as canonical XML, with a fresh thread where it names none."""
    repairs: tuple[str, ...] = ()
    """What had to be done to make it well-formed."""


def open_envelope(data: bytes, limits: MessageLimits) -> Envelope:
    """Read a message from bytes that may be anything.

    Raises:
        Malformed: They are no message; nothing of them was acted upon.
    """
    ordinary = open_ordinary(data, limits)
    return ordinary if ordinary is not None else open_any(data, limits)


def open_ordinary(data: bytes, limits: MessageLimits) -> Envelope | None:
    """Read a message that is canonical as it came; return None for all others."""
    text = precheck_text(data, limits.size)
    found = ORDINARY.fullmatch(text) if has_few_elements(text, limits) else None
    if found is None:
        return None
    try:
        message = parse_unlimited(data)
    except Malformed:  # perhaps it can be repaired
        return None
    if len(message) != 2 or message[1].tail is not None:
        return None
    sender, to, thread = found.groups()
    return Envelope(sender, to, thread, message[1], data)


def has_few_elements(written: str, limits: MessageLimits) -> bool:
    """Return whether a canonical message has fewer elements than could be beyond any limit."""
    if limits.few_values < OWN_VALUES:
        return False
    short = len(written) <= SHORTEST_ELEMENT * limits.few_tags
    return short or written.count("<") <= 2 * limits.few_tags


def open_any(data: bytes, limits: MessageLimits) -> Envelope:
    """Read a message, however it is written."""
    data = precheck(data, limits.size)
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


def parse_or_repair(data: bytes, limits: MessageLimits) -> tuple[Element, tuple[str, ...]]:
    """Parse a document strictly, after a repair where that fails."""
    try:
        return parse_strict(data, limits), ()
    except Malformed as error:
        if error.kind is not MalformedKind.SYNTAX:
            raise
    repaired = repair(data.decode(), limits)
    return parse_strict(repaired.text.encode(), limits), repaired.notes


def is_envelope(message: Element) -> bool:
    """Return whether a document is of the envelope's schema."""
    try:
        return SCHEMA.validate(message)
    except etree.LxmlError:  # a tree that the strict parser does not make
        return False


def add_thread(message: Element) -> bool:
    """Add a fresh thread to a message that names none; return whether it did."""
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
    """Return the text of an xs:token, which white space around it is no part of."""
    text = element.text or ""
    return text if text.isprintable() and " " not in text else collapse(text)


def build_envelope(
    sender: str, to: str | None, thread: str, payload: Element, repairs: Sequence[str] = ()
) -> bytes:
    """Write a message as canonical XML.

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
    start, _ = opening(sender, to)
    noted = repair_note(repairs) if repairs else ""
    written = canonical_payload(payload)
    return f"{start}{escape(thread)}</thread>{noted}</meta>{written}{END}".encode()


@lru_cache(maxsize=OPENINGS_KEPT)
def opening(sender: str, to: str | None) -> tuple[str, bool]:
    """Write a message up to the text of its thread; tell whether both names are plain."""
    receiver = f"<to>{escape(to)}</to>" if to is not None else ""
    plain = all(PLAIN.fullmatch(name) for name in (sender, to) if name is not None)
    return f"{START}{escape(sender)}</from>{receiver}<thread>", plain


def compose(
    sender: str,
    to: str | None,
    thread: str,
    payload: Element,
    limits: MessageLimits,
    repairs: Sequence[str] = (),
) -> Envelope:
    """Return what reading the message around a payload would give, and mostly without reading it.

    That is `open_envelope(build_envelope(...), limits)`, with the same canonical bytes and the
    same refusals. The payload is the element itself where nothing but the message around it would
    be new, and one that was read anew where it is qualified, or large, or the names are not plain.

    Args:
        sender: Who it is from, as the pump knows.
        to: The receiver; None leaves it to the root tag of the payload.
        thread: The thread, as the receiver knows it.
        payload: An element of a tree that `parse_strict` made within these limits; it stays there.
        limits: What the message may be made of.
        repairs: What had to be done to make the payload well-formed.

    Raises:
        Malformed: A message around this payload is none that may be sent.
    """
    start, plain = opening(sender, to)
    tag = str(payload.tag)
    if repairs or not plain or tag[0] == "{" or PLAIN.fullmatch(thread) is None:
        return open_envelope(build_envelope(sender, to, thread, payload, repairs), limits)
    written = canonical(payload).decode()
    message = f"{start}{thread}</thread></meta>{unqualified(written, tag)}{END}"
    data = message.encode()
    small = len(data) <= limits.size and has_few_elements(message, limits)
    if not small or not has_few_values(written, limits):
        return open_envelope(data, limits)
    return Envelope(sender, to, thread, payload, data)


def has_few_values(written: str, limits: MessageLimits) -> bool:
    """Return whether a canonical payload has few attributes, and declares no namespaces."""
    if "=" not in written:
        return True
    return written.count("=") + OWN_VALUES <= limits.few_values and "xmlns" not in written


def canonical_payload(payload: Element) -> str:
    """Write a payload as it stands within an envelope, whose namespace is the default there."""
    written = canonical(payload).decode()
    if payload.prefix is not None:
        return below_default(written)
    tag = str(payload.tag)
    return written if tag[0] == "{" else unqualified(written, tag)


def unqualified(written: str, tag: str) -> str:
    """Add the `xmlns=""` that an element without a namespace needs within an envelope."""
    return written.replace(tag, f'{tag} xmlns=""', 1)


def below_default(written: str) -> str:
    """Add the `xmlns=""` that elements below a prefixed one need within an envelope.

    A wrapper says that the default namespace is none, in a way that C14N passes on to them.
    """
    prefix = f"w{secrets.token_hex(8)}"
    start, end = f'<{prefix}:w xmlns:{prefix}="urn:wrapper">', f"</{prefix}:w>"
    wrapped = f'{start[:-1]} xmlns="">{written}{end}'
    message = etree.fromstring(f'<message xmlns="{ENVELOPE_NAMESPACE}">{wrapped}</message>')
    return canonical(message).decode().partition(start)[2].rpartition(end)[0]


def repair_note(repairs: Sequence[str]) -> str:
    """Write what was repaired, as the `<huh>` that a meta carries."""
    notes = "".join(f"<repair>{escape(note)}</repair>" for note in repairs)
    return f'<huh xmlns="{CORE_NAMESPACE}">{notes}</huh>'


def escape(text: str) -> str:
    """Write a text as canonical XML does."""
    if "&" in text or "<" in text or ">" in text or "\r" in text:
        text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        return text.replace("\r", "&#xD;")
    return text


WRAPPER: Final = f"w{secrets.token_hex(16)}"
"""The element that emissions are parsed in, which no handler can know, and so none can end.

It is one for the life of the process: libxml2 keeps every distinct name that it has parsed.
"""


class Emission(NamedTuple):
    """What a handler returned, read."""

    payloads: tuple[Element, ...]
    """The root elements, in their order; text after them does not belong to them."""
    repairs: tuple[str, ...]
    """What had to be done to make it well-formed."""
    prose: str
    """The text around the elements, which goes nowhere; for the log."""
    envelopes: int
    """How many whole messages the handler forged; only their payloads are among these."""


def read_emission(data: bytes, limits: MessageLimits) -> Emission:
    """Take apart what a handler returned.

    Args:
        data: Any bytes: XML elements, with prose between them, such as a language model writes.
        limits: What it may be made of.

    Raises:
        Malformed: It is not XML, and cannot be made XML without loss.
    """
    text = precheck_text(data, limits.size).removeprefix("\ufeff")
    wrapper, repairs = parse_wrapped(text, limits)
    elements = wrapper[:]
    tags = [element.tag for element in elements]
    if tags == ["dummy"]:
        wrapper = elements[0]
        elements = wrapper[:]
        tags = [element.tag for element in elements]
    envelopes = tags.count(MESSAGE)
    payloads = unpacked(elements) if envelopes else elements
    return Emission(tuple(payloads), repairs, prose(wrapper, elements), envelopes)


def parse_wrapped(text: str, limits: MessageLimits) -> tuple[Element, tuple[str, ...]]:
    """Parse elements without a root, within one that has a name of ours."""
    try:
        return parse_strict(f"<{WRAPPER}>{text}</{WRAPPER}>".encode(), limits), ()
    except Malformed as error:
        if error.kind is not MalformedKind.SYNTAX:
            raise
    repaired = repair(text, limits)
    wrapped = f"<{WRAPPER}>{repaired.text}</{WRAPPER}>".encode()
    return parse_strict(wrapped, limits), repaired.notes


def unpacked(elements: Sequence[Element]) -> Iterator[Element]:
    """Return elements, and of those that are messages the payloads."""
    for element in elements:
        if element.tag == MESSAGE:
            yield from (child for child in element if child.tag != META)
        else:
            yield element


def prose(wrapper: Element, elements: Sequence[Element]) -> str:
    """Return the text around the elements, the white space at its ends aside."""
    tails = [element.tail for element in elements]
    return "".join(filter(None, (wrapper.text, *tails))).strip()
