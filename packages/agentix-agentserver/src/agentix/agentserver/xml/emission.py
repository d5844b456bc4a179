"""Emissions: the bytes that a handler returns, taken apart into the payloads that they hold."""

import secrets
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from lxml.etree import _Element as Element

from agentix.agentserver.errors import Malformed, MalformedKind
from agentix.agentserver.xml.envelope import MESSAGE, META
from agentix.agentserver.xml.gate import admit_text
from agentix.agentserver.xml.limits import Limits
from agentix.agentserver.xml.parser import parse_strict
from agentix.agentserver.xml.repair import repair

__all__ = ["Emission", "read_emission"]

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


def read_emission(data: bytes, limits: Limits) -> Emission:
    """Takes apart what a handler returned.

    Args:
        data: Any bytes: XML elements, with prose between them, such as a language model writes.
        limits: What it may be made of.

    Raises:
        Malformed: It is not XML, and can not be made XML without loss.
    """
    text = admit_text(data, limits.size).removeprefix("\ufeff")
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


def parse_wrapped(text: str, limits: Limits) -> tuple[Element, tuple[str, ...]]:
    """Parses elements without a root, within one that has a name of ours."""
    try:
        return parse_strict(f"<{WRAPPER}>{text}</{WRAPPER}>".encode(), limits), ()
    except Malformed as error:
        if error.kind is not MalformedKind.SYNTAX:
            raise
    repaired = repair(text, limits)
    wrapped = f"<{WRAPPER}>{repaired.text}</{WRAPPER}>".encode()
    return parse_strict(wrapped, limits), repaired.notes


def unpacked(elements: Sequence[Element]) -> Iterator[Element]:
    """Gives elements, and of those that are messages the payloads."""
    for element in elements:
        if element.tag == MESSAGE:
            yield from (child for child in element if child.tag != META)
        else:
            yield element


def prose(wrapper: Element, elements: Sequence[Element]) -> str:
    """Gives the text around the elements, the white space at its ends aside."""
    tails = [element.tail for element in elements]
    return "".join(filter(None, (wrapper.text, *tails))).strip()
